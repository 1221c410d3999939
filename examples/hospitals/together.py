"""The three hospitals from Python: their own network and their own folders of scans.

    python examples/hospitals/together.py
    python examples/hospitals/together.py --picture hospitals.png

Trains every hospital alone, and then all of them together, in one process.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets, disable_progress_bars, load_dataset
from matplotlib.figure import Figure
from PIL import Image

import parley

sys.path.insert(0, str(Path(__file__).parent))

from networks import resnet
from scans import HOSPITALS, LABELS, write

SIDE = 16
OPTIONS = {
    "task": "binary",
    "metrics": "auroc,accuracy",
    "data_options": {"resize": SIDE},
    "topology": "full",
    "algorithm": "ngc+adamw",
    "lr": 0.005,
    "epochs": 6,
    "batch": 16,
    "progress": False,
}


def opened(homes: list[Path], split: str) -> list[Dataset]:
    """A part of every hospital's scans."""
    disable_progress_bars()
    return [load_dataset("imagefolder", data_dir=home / "scans", split=split) for home in homes]


def train(homes: list[Path], **changes: Any) -> parley.Result:
    """All hospitals together, each with its own test set."""
    model = partial(resnet, input_shape=(1, SIDE, SIDE))
    data, test = opened(homes, "train"), opened(homes, "test")
    return parley.train(model, data, test=test, **{**OPTIONS, **changes})


def train_alone(homes: list[Path], agent: int, **changes: Any) -> parley.Result:
    """One hospital, tested on the test sets of all."""
    model = partial(resnet, input_shape=(1, SIDE, SIDE))
    data, test = opened(homes[agent : agent + 1], "train"), opened(homes, "test")
    return parley.train(model, data, test=concatenate_datasets(test), **{**OPTIONS, **changes})


def numbers(together: parley.Result, alone: list[parley.Result]) -> dict[str, Any]:
    """AUROC on everybody's test scans, and on each hospital's own."""
    last = together.records[-1]
    return {
        "hospitals": [hospital.name for hospital in HOSPITALS],
        "train_samples": [sum(hospital.train) for hospital in HOSPITALS],
        "test_samples": [int(count) for count in last["test_samples_agents"]],
        "auroc_alone": [result.records[-1]["auroc_mean_model"] for result in alone],
        "auroc_together": last["auroc_mean_model"],
        "auroc_together_at_home": last["auroc_personal_mean_model_agents"],
        "auroc_own_at_home": last["auroc_personal_agents"],
        "megabytes_sent": (last["bytes_models"] + last["bytes_cross_gradients"]) / 1e6,
    }


def draw(homes: list[Path], found: dict[str, Any], path: Path) -> None:
    """Some scans of each hospital, and how well the models find the ill."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(4, 5))
    for row, home in zip(left.subplots(len(homes), 4), homes, strict=True):
        files = [
            home / "scans" / "train" / label / f"00{n}.png" for label in LABELS for n in (0, 1)
        ]
        for axes, file in zip(row, files, strict=True):
            with Image.open(file) as scan:
                axes.imshow(scan, cmap="gray", vmin=40, vmax=220)
                axes.set_title(f"{file.parent.name}, {scan.width} × {scan.height}", fontsize=7)
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(home.name)
    axes = right.subplots()
    names = [*(f"{name} alone" for name in found["hospitals"]), "together"]
    values = [*found["auroc_alone"], found["auroc_together"]]
    axes.barh(names, values, color=["#9aa5b1"] * len(homes) + ["#0b6e99"])
    axes.bar_label(axes.containers[0], fmt="%.3f", padding=3)
    axes.invert_yaxis()
    axes.axvline(0.5, color="#5b6570", ls=":")
    axes.set(xlim=(0, 1.12), xlabel="AUROC on the test scans of all hospitals (0.5: guessing)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def run(picture: Path | None = None) -> dict[str, Any]:
    """Every hospital alone, and all together."""
    with tempfile.TemporaryDirectory() as folder:
        homes = write(Path(folder))
        alone = [train_alone(homes, agent) for agent in range(len(homes))]
        found = numbers(train(homes), alone)
        if picture:
            draw(homes, found, picture)
        return found


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="where to write the picture")
    found = run(parser.parse_args().picture)
    for name, value in zip(found["hospitals"], found["auroc_alone"], strict=True):
        print(f"{name + ' alone:':<14} AUROC {value:.3f}")
    print(f"{'together:':<14} AUROC {found['auroc_together']:.3f}")


if __name__ == "__main__":
    main()
