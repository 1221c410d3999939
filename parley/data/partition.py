"""Who holds which sample: labels in, one list of sample indices per agent out.

A partition is written as `kind` or `kind:value`:

| spec          | every agent's data                                                    |
|---------------|-----------------------------------------------------------------------|
| `iid`         | an even share of the shuffled samples                                 |
| `skew:s`      | a share s of every class sorted by label, the rest shuffled and dealt |
| `dirichlet:a` | per class, proportions over the agents drawn from Dir(a)              |
| `classes:k`   | k whole classes' shares, all classes held by equally many agents      |
| `quantity:b`  | a share of the shuffled samples, the shares drawn from Dir(b)         |
| `column:NAME` | the samples of some values of a column: of some writers, for example  |
| `feature:F`   | an even share, with inputs that differ: see `parley.data.features`    |
| `file:PATH`   | the index lists in a JSON file                                        |

`skew` follows the paper's rule that no two neighbours on the graph share a class (in the sorted
part). It is obeyed whenever that is possible; when it is not, `Partition.note` says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.data import features
from parley.data.colouring import spread_classes
from parley.errors import BadValue, unknown_name
from parley.files import Unreadable, parse_json, read_text
from parley.graphs import Topology

Indices = NDArray[np.int64]

# The random stream for partitions, separate from those for batches and models.
_STREAM = 4
_DIRICHLET_DRAWS = 100
_MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class Partition:
    """One array of sample indices per agent."""

    indices: tuple[Indices, ...]
    """Sample indices of agent 0, 1, ...; each array is sorted."""
    note: str = ""
    """Which rule could not be obeyed, and why; empty if all were."""


def partition(
    spec: str,
    labels: NDArray[Any],
    topology: Topology,
    seed: int,
    used: Indices | None = None,
    groups: Indices | None = None,
) -> Partition:
    """Deals the samples with these labels to the agents of the graph.

    `used` are the indices of the samples to deal out (default: all). Indices always refer to the
    whole dataset: lists from a file lose unused samples, every other kind deals only the used ones.
    `groups` are the numbers of the values of a column, where that decides.

    >>> from parley.graphs import ring
    >>> labels = np.repeat(np.arange(10), 3)
    >>> [np.unique(labels[i]).tolist() for i in partition("skew:1", labels, ring(5), 0).indices]
    [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    """
    kind, value = parse(spec)
    labels = np.asarray(labels)
    if used is not None and len(used) < len(labels):
        if kind is KINDS["file"]:
            return _without_unused(spec, partition(spec, labels, topology, seed), used)
        some = None if groups is None else groups[used]
        dealt = partition(spec, labels[used], topology, seed, groups=some)
        return Partition(tuple(used[part] for part in dealt.indices), dealt.note)
    countable = labels.size > 0 and np.issubdtype(labels.dtype, np.integer)
    check_labels(labels, int(labels.max()) + 1 if countable else 1)
    if topology.agents > len(labels):
        raise BadValue(
            "agents",
            topology.agents,
            f"at most {len(labels)}, so that every agent has a training sample",
        )
    if kind is KINDS["column"]:
        if groups is None:
            raise BadValue("partition", spec, "another partition", "these data have no columns")
        return _column(spec, groups, topology, seed)
    return kind.deal(value, labels.astype(np.int64), topology, seed)


def _without_unused(spec: str, dealt: Partition, used: Indices) -> Partition:
    left = tuple(np.intersect1d(part, used) for part in dealt.indices)
    for agent, part in enumerate(left):
        if not len(part):
            because = f"fraction and validation leave agent {agent} without samples"
            raise BadValue("partition", spec, "a larger fraction or a smaller validation", because)
    return Partition(left, dealt.note)


def parse(spec: str) -> tuple["PartitionKind", Any]:
    """The kind and value of a spec, checked as far as possible without data.

    >>> parse("skew:0.5")[1]
    0.5
    >>> parse("skew:2")
    Traceback (most recent call last):
    parley.errors.BadValue: partition: 'skew:2' is not valid; valid: skew:s with s from 0 to 1
    """
    name, _, text = spec.partition(":")
    if name not in KINDS:
        raise unknown_name("partition", spec, (kind.form for kind in KINDS.values()))
    kind = KINDS[name]
    try:
        value = kind.read(text)
    except ValueError:
        raise BadValue("partition", spec, f"{kind.form} {kind.values}".strip()) from None
    return kind, value


def check_labels(labels: NDArray[Any], classes: int) -> None:
    """Refuses labels that are not whole numbers 0..classes-1 or that leave a class empty.

    >>> check_labels(np.array([0, 2]), 3)
    Traceback (most recent call last):
    parley.errors.BadValue: data: 'labels' is not valid (class 1 has no training sample); ...
    """
    valid = f"one whole number from 0 to {classes - 1} per sample, every class present"
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        found = f"{labels.dtype} labels of shape {labels.shape}"
        raise BadValue("data", "labels", valid, because=found)
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        found = f"they run from {labels.min()} to {labels.max()}"
        raise BadValue("data", "labels", valid, because=found)
    missing = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
    if missing.size:
        raise BadValue("data", "labels", valid, because=f"{_name(missing)} no training sample")


def holdings(indices: Sequence[Indices], labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """How many samples of each class each agent holds: [agents, classes].

    >>> holdings([np.array([0, 1]), np.array([2])], np.array([0, 0, 1]), 2).tolist()
    [[2, 0], [0, 1]]
    """
    return np.stack([np.bincount(labels[i], minlength=classes) for i in indices])


def folders(spec: str) -> list[str] | None:
    """The dataset folders, one per agent, if a `file:` partition lists folders."""
    if not spec.startswith("file:"):
        return None
    entries = _read_list(spec)
    if entries and all(isinstance(entry, str) for entry in entries):
        return entries
    return None


def _iid(_: None, labels: Indices, topology: Topology, seed: int) -> Partition:
    return _partition(np.array_split(_rng(seed).permutation(len(labels)), topology.agents))


def _skew(share: float, labels: Indices, topology: Topology, seed: int) -> Partition:
    if share == 0:
        return _iid(None, labels, topology, seed)
    agents = topology.agents
    by_class = _by_class(labels, _rng(seed))
    # At least one sample of every class stays sorted, so that every class has a holder.
    sizes = [max(1, round(share * len(of_class))) for of_class in by_class]
    stay = [np.sort(of_class[:k]) for of_class, k in zip(by_class, sizes, strict=True)]
    pool = _rng(seed, 1).permutation(
        np.concatenate([of_class[k:] for of_class, k in zip(by_class, sizes, strict=True)])
    )

    note = ""
    if agents <= len(stay):
        kept = np.array_split(np.concatenate(stay), agents)
        if _neighbours_share(kept, labels, topology):
            kept = [np.concatenate(group) for group in _contiguous_groups(stay, agents)]
    else:
        # An agent without sorted samples still gets some from the pool, if there is one.
        room = [len(of_class) if share == 1 else agents for of_class in stay]
        class_of, note = spread_classes(topology, room)
        kept = _split_among_holders(stay, [[c] for c in class_of])
    dealt = np.array_split(pool, agents)
    return _partition([np.concatenate(pair) for pair in zip(kept, dealt, strict=True)], note)


def _dirichlet(a: float, labels: Indices, topology: Topology, seed: int) -> Partition:
    rng = _rng(seed)
    by_class = _by_class(labels, rng)
    for _ in range(_DIRICHLET_DRAWS):
        shares = rng.dirichlet(np.full(topology.agents, a), size=len(by_class))
        cuts = [
            np.split(of_class, np.rint(np.cumsum(share[:-1]) * len(of_class)).astype(int))
            for of_class, share in zip(by_class, shares, strict=True)
        ]
        parts = [np.concatenate(of_agent) for of_agent in zip(*cuts, strict=True)]
        if all(map(len, parts)):
            break
    return _partition(parts)


def _classes(k: int, labels: Indices, topology: Topology, seed: int) -> Partition:
    agents, spec = topology.agents, f"classes:{k}"
    rng = _rng(seed)
    by_class = _by_class(labels, rng)
    classes = len(by_class)
    if k > classes:
        raise BadValue("partition", spec, f"classes:k with k from 1 to {classes}")
    if agents * k < classes:
        raise BadValue(
            "partition",
            spec,
            f"k of at least {-(-classes // agents)} for {agents} agents and {classes} classes",
            because=f"{_name(np.arange(agents * k, classes))} no holder",
        )
    # Every agent in turn takes the k least-held classes, breaking ties at random: this covers every
    # class, and the numbers of holders never differ by more than one.
    held = np.zeros(classes)
    classes_of = []
    for _ in range(agents):
        taken = np.argsort(held + 0.5 * rng.random(classes))[:k]
        held[taken] += 1
        classes_of.append(taken.tolist())
    short = [c for c in range(classes) if len(by_class[c]) < held[c]]
    note = f"{_name(np.array(short))} fewer samples than holders" if short else ""
    return _partition(_split_among_holders(by_class, classes_of), note)


def _quantity(b: float, labels: Indices, topology: Topology, seed: int) -> Partition:
    rng = _rng(seed)
    order, share = rng.permutation(len(labels)), rng.dirichlet(np.full(topology.agents, b))
    cuts = np.rint(np.cumsum(share[:-1]) * len(labels)).astype(int)
    return _partition(np.split(order, cuts))


def _column(spec: str, groups: Indices, topology: Topology, seed: int) -> Partition:
    """With as many values as agents, each agent has one, in order; with more, about equally many,
    chosen at random."""
    present, agents = np.unique(groups), topology.agents
    if len(present) < agents:
        because = f"the column has {len(present)} values for {agents} agents"
        raise BadValue("partition", spec, f"a column with at least {agents} values", because)
    order = present if len(present) == agents else _rng(seed).permutation(present)
    dealt = np.array_split(order, agents)
    return _partition([np.flatnonzero(np.isin(groups, values)) for values in dealt])


def _dealt_by_column(*_: object) -> Partition:
    raise AssertionError("a column deals by its values, not by labels")


def _feature(_: str, labels: Indices, topology: Topology, seed: int) -> Partition:
    return _iid(None, labels, topology, seed)


def _file(path: str, labels: Indices, topology: Topology, seed: int) -> Partition:
    spec = f"file:{path}"

    def wrong(because: str) -> BadValue:
        valid = f"a list of {topology.agents} lists of sample indices, one per agent"
        return BadValue("partition", spec, valid, because)

    entries = _read_list(spec)
    if len(entries) != topology.agents:
        raise wrong(f"it has {len(entries)} entries for {topology.agents} agents")
    parts, seen = [], np.zeros(len(labels), dtype=bool)
    for agent, entry in enumerate(entries):
        if not isinstance(entry, list) or not entry:
            raise wrong(f"agent {agent}'s entry is not a list with at least one index")
        if not all(type(i) is int and 0 <= i < len(labels) for i in entry):
            raise wrong(f"agent {agent} has an index outside 0 to {len(labels) - 1}")
        part = np.unique(np.array(entry, dtype=np.int64))
        if len(part) < len(entry) or seen[part].any():
            raise wrong(f"agent {agent} has an index that an agent already holds")
        seen[part] = True
        parts.append(part)
    return _partition(parts)


@dataclass(frozen=True)
class PartitionKind:
    """A row of the table of partitions."""

    form: str
    """How it is written."""
    values: str
    """Which values it accepts, in words."""
    read: Callable[[str], Any]
    """Parses the text after the colon, or raises ValueError."""
    deal: Callable[[Any, Indices, Topology, int], Partition]


def _nothing(text: str) -> None:
    if text:
        raise ValueError(text)


def _number(text: str, valid: Callable[[float], bool], of: type[Any] = float) -> Any:
    value = of(text)
    if not valid(value):
        raise ValueError(text)
    return value


def _path(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


KINDS: dict[str, PartitionKind] = {
    "iid": PartitionKind("iid", "", _nothing, _iid),
    "skew": PartitionKind(
        "skew:s", "with s from 0 to 1", lambda text: _number(text, lambda s: 0 <= s <= 1), _skew
    ),
    "dirichlet": PartitionKind(
        "dirichlet:a",
        "with a number a above 0",
        lambda text: _number(text, lambda a: 0 < a < np.inf),
        _dirichlet,
    ),
    "classes": PartitionKind(
        "classes:k",
        f"with a whole number k from 1 to {_MOST_CLASSES}",
        lambda text: _number(text, lambda k: 1 <= k <= _MOST_CLASSES, int),
        _classes,
    ),
    "quantity": PartitionKind(
        "quantity:b",
        "with a number b above 0",
        lambda text: _number(text, lambda b: 0 < b < np.inf),
        _quantity,
    ),
    "column": PartitionKind("column:NAME", "with the name of a column", _path, _dealt_by_column),
    "feature": PartitionKind(f"feature:{features.FORMS}", "", features.parse, _feature),
    "file": PartitionKind("file:PATH", "with the path of a JSON file", _path, _file),
}


def _rng(seed: int, part: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, _STREAM, part])


def _by_class(labels: Indices, rng: np.random.Generator) -> list[Indices]:
    """Every class's sample indices, in random order."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


def _partition(parts: Sequence[Indices], note: str = "") -> Partition:
    """Sorts the parts, and gives agents without a sample one from the largest holder."""
    parts = [np.sort(part) for part in parts]
    for agent, part in enumerate(parts):
        if not len(part):
            donor = max(range(len(parts)), key=lambda i: len(parts[i]))
            parts[agent], parts[donor] = parts[donor][-1:], parts[donor][:-1]
    return Partition(tuple(parts), note)


def _split_among_holders(
    by_class: Sequence[Indices], classes_of: Sequence[Sequence[int]]
) -> list[Indices]:
    """Splits every class evenly among the agents that hold it."""
    parts: list[list[Indices]] = [[] for _ in classes_of]
    for c, of_class in enumerate(by_class):
        holders = [agent for agent, classes in enumerate(classes_of) if c in classes]
        for agent, piece in zip(holders, np.array_split(of_class, len(holders)), strict=True):
            parts[agent].append(piece)
    return [np.concatenate(part) for part in parts]


def _neighbours_share(parts: Sequence[Indices], labels: Indices, topology: Topology) -> bool:
    has = holdings(parts, labels, int(labels.max()) + 1) > 0
    return any((has[i] & has[j]).any() for i, j in topology.edges)


def _contiguous_groups(by_class: Sequence[Indices], groups: int) -> list[Sequence[Indices]]:
    """Whole classes in contiguous groups of about equally many samples, none empty."""
    classes = len(by_class)
    ends = np.cumsum([len(of_class) for of_class in by_class])
    cuts = [0]
    for group in range(1, groups):
        nearest = int(np.abs(ends - ends[-1] * group / groups).argmin()) + 1
        # Leave at least one class for this group and each of the following ones.
        cuts.append(min(max(nearest, cuts[-1] + 1), classes - groups + group))
    return [by_class[a:b] for a, b in zip(cuts, [*cuts[1:], classes], strict=True)]


def _read_list(spec: str) -> list[Any]:
    path = Path(spec.removeprefix("file:"))
    valid = "a JSON file: a list with one entry per agent"
    try:
        entries = parse_json(read_text(path))
    except Unreadable as error:
        raise BadValue("partition", spec, valid, because=str(error)) from None
    if not isinstance(entries, list):
        raise BadValue("partition", spec, valid, because=f"it is a {type(entries).__name__}")
    return entries


def _name(classes: NDArray[Any]) -> str:
    """Names classes, with the verb: 'class 3 has', 'classes 3, 4 have'."""
    if len(classes) == 1:
        return f"class {classes[0]} has"
    return f"classes {', '.join(map(str, classes))} have"
