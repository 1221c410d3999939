"""Graphs that change from round to round, as plain edges and weights.

A round is what agents do in one step: for each edge (j, i), "j sends to i", the weight that i gives
to it. An agent gives the rest, up to 1, to its own value. `parley.graphs.changing` turns these into
topologies.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations

import numpy as np

Edge = tuple[int, int]
Round = dict[Edge, float]


def one_peer_exponential(agents: int) -> list[Round]:
    """Every agent sends to the one 1, 2, 4, … places ahead, one of these per round, keeping half.

    Ying et al., "Exponential graph is provably efficient for decentralized deep training",
    NeurIPS 2021. For a power of two, one period computes the exact mean.

    >>> one_peer_exponential(4)[1]
    {(0, 2): 0.5, (1, 3): 0.5, (2, 0): 0.5, (3, 1): 0.5}
    """
    shifts = [2**k for k in range(agents.bit_length()) if 2**k < agents]
    return [{(i, (i + s) % agents): 0.5 for i in range(agents)} for s in shifts] or [{}]


def random_matching(
    edges: Iterable[Edge], seed: int, number: int, most: int | None = None
) -> list[Edge]:
    """Random edges i — j with i < j of which no two share an agent: as many as fit, or `most`.

    >>> random_matching([(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)], seed=0, number=1)
    [(0, 1), (2, 3)]
    """
    edges = [(i, j) for j, i in edges if i < j]
    rng = np.random.default_rng(np.random.SeedSequence([seed, 6, number]))
    taken: list[Edge] = []
    busy: set[int] = set()
    for e in rng.permutation(len(edges)).tolist():
        if busy.isdisjoint(edges[e]) and (most is None or len(taken) < most):
            taken.append(edges[e])
            busy.update(edges[e])
    return sorted(taken)


def matchings(agents: int, rounds: int, seed: int) -> list[Round]:
    """Random pairs average their values; with an odd number of agents, one is left out.

    >>> [len(pairs) for pairs in matchings(5, 3, seed=0)]
    [4, 4, 4]
    """
    rng = np.random.default_rng([seed, agents, rounds])
    made = []
    for _ in range(rounds):
        order = rng.permutation(agents).tolist()
        made.append(_averaged(zip(order[::2], order[1::2], strict=False)))
    return made


def base(agents: int, degree: int) -> list[Round]:
    """The Base-(k+1) graph: at most k neighbours each, and one period computes the exact mean.

    Takezawa et al., "Beyond exponential graph", NeurIPS 2023. Works for any number of agents; the
    number of rounds grows with its logarithm.

    >>> [len(base(agents, 1)) for agents in (2, 4, 5, 6, 8)], len(base(25, 4))
    ([1, 2, 5, 4, 3], 2)
    """
    everyone = list(range(agents))
    whole = _simple_base(everyone, degree)
    # Groups whose size has no small factors are averaged first, then averaged across groups.
    size = agents
    for factor in range(2, degree + 2):
        while size % factor == 0:
            size //= factor
    groups = agents // size
    if agents == 1:
        return [{}]
    parts = [everyone[g * size : (g + 1) * size] for g in range(groups)]
    split = _together([_simple_base(part, degree) for part in parts])
    across = _together([_hyper_hypercube(list(same), degree) for same in zip(*parts, strict=True)])
    both = split + across
    return both if len(both) < len(whole) else whole


def _simple_base(agents: Sequence[int], degree: int) -> list[Round]:
    """For any number of agents.

    n = a₁ b^p₁ + a₂ b^p₂ + … in base b = k + 1, larger powers first, cuts the agents into blocks
    V₁, V₂, …, of which block l consists of a_l parts. Each block first takes its own mean. Then,
    one block after another, every agent in the later blocks talks to one agent of each part
    of block l, no agent of which is used twice: after that the mean of each part and the mean
    of all later blocks together equal the mean over all agents. The parts then average while the
    later blocks continue; in the last block all values are equal already.
    """
    blocks: list[list[Sequence[int]]] = []
    left, power = list(agents), 1
    while power * (degree + 1) <= len(left):
        power *= degree + 1
    while left:
        count = len(left) // power
        if count:
            blocks.append([left[a * power : (a + 1) * power] for a in range(count)])
            left = left[count * power :]
        power //= degree + 1
    inside = [_hyper_hypercube([v for part in block for v in part], degree) for block in blocks]
    made = _together(inside)
    if len(blocks) == 1:
        return made
    branches = []
    for number, block in enumerate(blocks[:-1]):
        own = sum(map(len, block))
        later = [v for b in blocks[number + 1 :] for part in b for v in part]
        weight = own / (len(block) * (own + len(later)))
        meeting: Round = {}
        for place, v in enumerate(later):
            for part in block:
                meeting |= {(v, part[place]): weight, (part[place], v): weight}
        means = _together([_hyper_hypercube(part, degree) for part in block])
        branches.append([*([{}] * number), meeting, *means])
    return made + _together(branches)


def _hyper_hypercube(agents: Sequence[int], degree: int) -> list[Round]:
    """For a number whose prime factors are at most k + 1: one round per factor, in which groups
    of that many agents average."""
    made, stride = [], 1
    for factor in _factors(len(agents), degree + 1):
        groups = [
            [agents[start + offset + stride * digit] for digit in range(factor)]
            for start in range(0, len(agents), stride * factor)
            for offset in range(stride)
        ]
        made.append(_averaged(groups))
        stride *= factor
    return made


@cache
def _factors(number: int, largest: int) -> tuple[int, ...]:
    """As few factors as possible, each at most `largest`.

    >>> _factors(12, 4), _factors(12, 6), _factors(1, 2)
    ((3, 4), (2, 6), ())
    """
    if number == 1:
        return ()
    ways = [(*_factors(number // f, largest), f) for f in range(2, largest + 1) if number % f == 0]
    return min(ways, key=lambda way: (len(way), way))


def _averaged(groups: Iterable[Sequence[int]]) -> Round:
    """All agents in a group talk to one another, all with the same weight."""
    made: Round = {}
    for group in groups:
        for i, j in combinations(sorted(group), 2):
            made |= {(i, j): 1 / len(group), (j, i): 1 / len(group)}
    return made


def _together(branches: Sequence[Sequence[Round]]) -> list[Round]:
    """Runs the rounds of separate groups side by side; groups that finish early wait."""
    length = max(map(len, branches))
    return [
        {
            edge: w
            for branch in branches
            for edge, w in (branch[r] if r < len(branch) else {}).items()
        }
        for r in range(length)
    ]


def sections(lines: Iterable[str]) -> list[list[tuple[int, str]]]:
    """The numbered lines of each round of a schedule; a ``round`` line starts the next one.

    >>> sections(["round", "0 1", "round 2  # nobody talks", "round", "1 2"])
    [[(2, '0 1')], [], [(5, '1 2')]]
    """
    rounds: list[list[tuple[int, str]]] = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if re.fullmatch(r"round(\s+\d+)?:?", text):
            rounds.append([])
        elif text:
            if not rounds:
                rounds.append([])
            rounds[-1].append((number, text))
    return rounds
