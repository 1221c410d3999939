"""The cell of the NGC paper's tables that a run corresponds to, if any."""

from dataclasses import dataclass

from parley.errors import BadValue
from parley.experiment import VARIANTS, Experiment
from parley.reproduce.preset import Preset, Reduction
from parley.reproduce.presets import presets

MEASURING = {"evaluate_every", "bias_norms", "gossip_rounds"}
"""Fields that affect what is recorded, not what is trained."""


@dataclass(frozen=True)
class Cell:
    """What the paper reports for an experiment."""

    preset: Preset
    variant: str
    reduction: Reduction

    @property
    def accuracy(self) -> float:
        """In percent, after gossip, mean over three seeds."""
        return self.preset.paper.accuracy if self.preset.paper else float("nan")

    @property
    def std(self) -> float:
        """Over three seeds, in percent."""
        return self.preset.paper.std if self.preset.paper else float("nan")

    @property
    def remark(self) -> str:
        """How the run differs from the paper's."""
        parts = ["as printed"] if self.variant == "as-printed" else []
        if self.reduction:
            parts.append(f"reduced: {self.reduction.words(self.preset.epochs)}")
        return ", ".join(parts)


def find_cell(experiment: Experiment) -> Cell | None:
    """The cell with exactly this experiment, in full or reduced (fewer epochs, less data).

    >>> found = find_cell(presets()["cifar10/cnn5/ring/5/ngc"].experiment(seed=3))
    >>> found.preset.name, found.variant, found.remark
    ('cifar10/cnn5/ring/5/ngc', 'as-run', '')
    >>> find_cell(Experiment.of(data="digits")) is None
    True
    """
    for preset in presets().values():
        alike = (preset.data, preset.model, preset.agents) == (
            experiment.data,
            experiment.model,
            experiment.agents,
        )
        if preset.paper is None or not alike:
            continue
        reduction = preset.reduced(experiment.epochs, experiment.fraction)
        for variant in VARIANTS[::-1]:  # as run first: the tables' figures come from it
            try:
                expected = preset.experiment(variant, reduction, seed=experiment.seed)
            except BadValue:
                continue  # longer than the paper's
            if not set(expected.same_as(experiment)) - MEASURING:
                return Cell(preset, variant, reduction)
    return None
