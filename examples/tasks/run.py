"""Trains one of the examples in this folder: every site alone, then all of them together.

    python examples/tasks/run.py segmentation
    python examples/tasks/run.py segmentation --picture segmentation.png

Each example is a module with the same parts: `SITES`, their names; `OPTIONS` of `parley.train`;
`site(agent)`, a site's data; `network()`, the model; and `show(figure, alone, together)`, which
draws what the models answer.
"""

import argparse
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import parley

NAMES = ("regression", "segmentation", "multilabel", "language_model", "adapters")
DOTS = 120
"""Dots per inch of a picture."""


@dataclass(frozen=True)
class Outcome:
    """What came of the runs."""

    together: parley.Result
    alone: list[parley.Result]
    """One for each site."""
    measure: str
    """The metric that decides."""

    @property
    def numbers(self) -> dict[str, Any]:
        """The metric on everybody's test data, and what was sent."""
        of, sent = f"{self.measure}_mean_model", self.together.summary
        return {
            "metric": self.measure,
            "alone": [result.records[-1][of] for result in self.alone],
            "together": self.together.records[-1][of],
            "test_samples": self.together.records[-1]["test_samples"],
            "parameters": sum(p.numel() for p in self.together.model().parameters()),
            "parameters_sent": self.together.task.size,
            "megabytes_sent": (sent["bytes_models"] + sent["bytes_cross_gradients"]) / 1e6,
        }


def example(name: str) -> ModuleType:
    """The module of an example."""
    if str(Path(__file__).parent) not in sys.path:
        sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module(name)


def train(name: str, **changes: Any) -> Outcome:
    """Every site alone, and all of them together. All are tested on the test data of all."""
    module = example(name)
    data = [module.site(agent) for agent in range(len(module.SITES))]
    options = {**module.OPTIONS, "progress": False, **changes}
    everything = tuple(torch.cat(parts) for parts in zip(*(d["test"] for d in data), strict=True))
    one_process = {"model": module.network, "topology": "full", **options}
    alone = [parley.train(data=[d["train"]], test=everything, **one_process) for d in data]
    tests = [d["test"] for d in data]
    together = parley.train(data=[d["train"] for d in data], test=tests, **one_process)
    return Outcome(together, alone, together.experiment.measures[0].name)


def draw(name: str, outcome: Outcome, path: Path) -> None:
    """The metric of each model, and what the models answer."""
    module = example(name)
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 3))
    bars(left.subplots(), module.SITES, outcome)
    models = [result.model() for result in outcome.alone]
    module.show(right, models, outcome.together.model())
    figure.savefig(path, dpi=DOTS)


def bars(axes: Axes, sites: tuple[str, ...], outcome: Outcome) -> None:
    """The metric on everybody's test data."""
    numbers = outcome.numbers
    names = [*(f"{site} alone" for site in sites), "together"]
    values = [*numbers["alone"], numbers["together"]]
    axes.barh(names, values, color=["#9aa5b1"] * len(sites) + ["#0b6e99"])
    axes.bar_label(axes.containers[0], fmt="%.2f", padding=3)  # type: ignore[arg-type]
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, 1.25 * max(values))
    better = "higher" if outcome.together.experiment.measures[0].higher else "lower"
    axes.set_title(f"{outcome.measure} on all test data\n({better} is better)", fontsize="medium")


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("example", choices=NAMES)
    parser.add_argument("--epochs", type=int, help="instead of the example's own number")
    parser.add_argument("--picture", type=Path, help="where to write the picture")
    given = parser.parse_args()
    outcome = train(given.example, **({"epochs": given.epochs} if given.epochs else {}))
    numbers = outcome.numbers
    for site, value in zip(example(given.example).SITES, numbers["alone"], strict=True):
        print(f"{site + ' alone:':<24} {numbers['metric']} {value:.3f}")
    print(f"{'together:':<24} {numbers['metric']} {numbers['together']:.3f}")
    print(f"each site sent {numbers['megabytes_sent']:.2f} MB, and no samples")
    if given.picture:
        draw(given.example, outcome, given.picture)


if __name__ == "__main__":
    main()
