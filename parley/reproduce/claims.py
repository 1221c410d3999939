"""What can be claimed about the paper's choices and its order of methods, seed by seed."""

import itertools
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from parley.reproduce.preset import METHODS, choice_words, parse_variant
from parley.results.paired import Difference, significant
from parley.training.record import value

if TYPE_CHECKING:
    from parley.reproduce.collect import PresetResult

GOSSIPED, AVERAGED = "accuracy_after_gossip", "accuracy_mean_model"


def by_seed(result: "PresetResult", name: str) -> dict[int, float]:
    """The final accuracy of every finished run, in percent."""
    ends = {seed: value(records[-1], name) for seed, records in result.runs.items()}
    return {seed: 100 * end for seed, end in ends.items() if end is not None}


class Ablation(NamedTuple):
    """The effect of some choices, with everything else unchanged."""

    before: "PresetResult"
    after: "PresetResult"
    choices: Sequence[str]
    """As printed in `after` and as run in `before`."""
    others: Sequence[str]
    """As printed in both."""
    gossiped: Difference
    averaged: Difference

    @property
    def words(self) -> str:
        """For example ``floor, given scale``: scale is as printed on both sides."""
        beside = f", given {choice_words(self.others)}" if self.others else ""
        return choice_words(self.choices) + beside

    @property
    def sentence(self) -> str:
        """For example ``floor as printed, where scale is as printed too``."""
        beside = f", where {choice_words(self.others)} is as printed too" if self.others else ""
        return f"{choice_words(self.choices)} as printed{beside}"

    @property
    def means(self) -> tuple[float, float]:
        """Accuracies after gossip of both sides, over the seeds that both have."""
        sides = by_seed(self.before, GOSSIPED), by_seed(self.after, GOSSIPED)
        seeds = sides[0].keys() & sides[1].keys()
        before, after = (statistics.fmean(side[seed] for seed in seeds) for side in sides)
        return before, after


def ablations(results: Sequence["PresetResult"]) -> list[Ablation]:
    """Pairs every run with some choices as printed with the one that is entirely as run and, for
    several choices, with those in which just one of them is as run."""
    found = []
    for after in (r for r in results if r.is_ablation and r.runs):
        printed = parse_variant(after.variant)[1]
        for before in results:
            if (before.preset, before.reduction) != (after.preset, after.reduction):
                continue
            base, others = parse_variant(before.variant)
            choices = [choice for choice in printed if choice not in others]
            subset = len(choices) + len(others) == len(printed)
            if base != "as-run" or not choices or not subset or (others and len(choices) > 1):
                continue
            pair = [
                Difference.of(by_seed(before, name), by_seed(after, name))
                for name in (GOSSIPED, AVERAGED)
            ]
            if pair[0] and pair[1]:
                found.append(Ablation(before, after, choices, others, pair[0], pair[1]))
    return sorted(found, key=lambda a: (a.after.preset.name, len(a.after.variant.split(","))))


class Order(NamedTuple):
    """Two methods, the second above the first in the paper."""

    lower: "PresetResult"
    higher: "PresetResult"
    neighbours: bool
    """Whether they are adjacent in the paper's order."""
    paper: float
    """The paper's difference."""
    ours: Difference

    @property
    def verdict(self) -> str:
        """Whether ours are in the paper's order."""
        return {1: "as in the paper", -1: "**the other way round**", 0: "inconclusive"}[
            self.ours.sign
        ]


def orders(results: Sequence["PresetResult"]) -> dict[str, list[Order]]:
    """For each group, all pairs of methods with several full runs on common seeds."""
    groups: dict[str, list[PresetResult]] = {}
    for result in results:
        whole = result.variant == "as-run" and not result.mark
        if whole and result.preset.paper and len(result.runs) > 1:
            groups.setdefault(result.preset.group, []).append(result)
    found = {}
    for group, members in groups.items():
        ranked = sorted(members, key=_of_paper)
        pairs = []
        for (i, lower), (k, higher) in itertools.combinations(enumerate(ranked), 2):
            ours = Difference.of(by_seed(lower, GOSSIPED), by_seed(higher, GOSSIPED))
            if ours and ours.half is not None:
                apart = _of_paper(higher)[0] - _of_paper(lower)[0]
                pairs.append(Order(lower, higher, k - i == 1, apart, ours))
        if pairs:
            found[group] = pairs
    return found


def corrected(pairs: Sequence[Order]) -> tuple[int, int]:
    """How many pairs of a group remain in the paper's order, and the other way round, if the number
    of tests is taken into account."""
    members = {r.preset.method: r for pair in pairs for r in (pair.lower, pair.higher)}
    found = significant({method: by_seed(r, GOSSIPED) for method, r in members.items()})
    right = {(pair.higher.preset.method, pair.lower.preset.method) for pair in pairs}
    kept = sum((claim.winner, claim.loser) in right for claim in found)
    return kept, len(found) - kept


def _of_paper(result: "PresetResult") -> tuple[float, int]:
    assert result.preset.paper is not None
    return result.preset.paper.accuracy, list(METHODS).index(result.preset.method)
