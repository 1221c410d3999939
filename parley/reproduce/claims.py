"""What can be claimed about choices, about the order of methods and about pairs, seed by seed."""

import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from parley.reproduce.cells import listed
from parley.reproduce.collect import Result, figure
from parley.results.paired import Better, Difference, significant


def columns(result: Result) -> list[str]:
    """The figures that claims are about: those compared with published ones, or else all."""
    table = result.cell.study.table
    return table.published or list(table.columns)


class Ablation(NamedTuple):
    """The effect of some choices, with everything else unchanged."""

    before: Result
    after: Result
    choices: Sequence[str]
    """As printed in `after` and as run in `before`."""
    others: Sequence[str]
    """As printed in both."""
    differences: Sequence[Difference]
    """One for each figure."""

    @property
    def words(self) -> str:
        """For example ``floor, given scale``: scale is as printed on both sides."""
        beside = f", given {listed(self.others)}" if self.others else ""
        return listed(self.choices) + beside

    @property
    def sentence(self) -> str:
        """For example ``floor as printed, where scale is as printed too``."""
        beside = f", where {listed(self.others)} is as printed too" if self.others else ""
        return f"{listed(self.choices)} as printed{beside}"

    @property
    def means(self) -> list[float]:
        """The first figure on both sides, over the seeds that both have."""
        name = columns(self.after)[0]
        sides = [side.by_seed(name) for side in (self.before, self.after)]
        seeds = sides[0].keys() & sides[1].keys()
        return [statistics.fmean(side[seed] for seed in seeds) for side in sides]


def ablations(results: Sequence[Result]) -> list[Ablation]:
    """Pairs every run with some choices as printed with the one that is entirely as run and, for
    several choices, with those in which just one of them is as run."""
    found = []
    for after in (r for r in results if r.form.choices and r.runs):
        for before in results:
            same = before.cell == after.cell and before.form[1:] == after.form[1:]
            others = before.form.choices
            usual = others or before.form.variant == before.cell.study.forms[0]
            choices = [choice for choice in after.form.choices if choice not in others]
            subset = len(choices) + len(others) == len(after.form.choices)
            if not (same and usual and choices and subset) or (others and len(choices) > 1):
                continue
            pair = [Difference.of(before.by_seed(n), after.by_seed(n)) for n in columns(after)]
            if told := [difference for difference in pair if difference]:
                found.append(Ablation(before, after, choices, others, told))
    return sorted(found, key=lambda a: (a.after.cell.name, len(a.after.form.choices)))


class Order(NamedTuple):
    """Two methods, the second above the first in what was published."""

    lower: Result
    higher: Result
    neighbours: bool
    """Whether they are adjacent in the published order."""
    paper: float
    """The published difference."""
    ours: Difference

    @property
    def verdict(self) -> str:
        """Whether ours are in the published order."""
        return {1: "as in the paper", -1: "**the other way round**", 0: "inconclusive"}[
            self.ours.sign
        ]


def orders(results: Sequence[Result]) -> dict[str, list[Order]]:
    """For each setting, all pairs of methods with several full runs on common seeds."""
    settings: dict[str, list[Result]] = {}
    for result in results:
        usual = result.form.variant == result.cell.study.forms[0]
        if usual and not result.mark and result.cell.published and len(result.runs) > 1:
            settings.setdefault(result.cell.setting, []).append(result)
    found = {}
    for setting, members in settings.items():
        ranked = sorted(members, key=_published)
        pairs = []
        for (i, lower), (k, higher) in itertools.combinations(enumerate(ranked), 2):
            name = columns(lower)[0]
            ours = Difference.of(lower.by_seed(name), higher.by_seed(name))
            if ours and ours.half is not None:
                apart = _published(higher)[0] - _published(lower)[0]
                pairs.append(Order(lower, higher, k - i == 1, apart, ours))
        if pairs:
            found[setting] = pairs
    return found


def corrected(pairs: Sequence[Order]) -> tuple[int, int]:
    """How many pairs of a setting remain in the published order, and the other way round, if the
    number of tests is taken into account."""
    found = better(list({r.label: r for pair in pairs for r in (pair.lower, pair.higher)}.values()))
    right = {(pair.higher.label, pair.lower.label) for pair in pairs}
    kept = sum((claim.winner, claim.loser) in right for claim in found)
    return kept, len(found) - kept


def better(results: Sequence[Result]) -> list[Better]:
    """Which of these are significantly better than which, by the first figure."""
    if not results:
        return []
    name = columns(results[0])[0]
    sign = 1 if figure(name).higher else -1
    return significant(
        {r.label: {seed: sign * end for seed, end in r.by_seed(name).items()} for r in results}
    )


def _published(result: Result) -> tuple[float, int]:
    assert result.cell.published is not None
    return result.cell.published[0], list(result.cell.study.methods).index(result.cell.method)
