"""Several labels: three post offices that read pairs of digits, each of which knows only some."""

from functools import cache

import numpy as np
import torch
from matplotlib.figure import SubFigure
from sklearn.datasets import load_digits
from torch import Tensor, nn

SITES = ("0 to 4", "3 to 7", "6 to 9")
DIGITS = (range(5), range(3, 8), range(6, 10))
"""The digits in the pictures of each office."""
OPTIONS = {
    "task": "multilabel",
    "metrics": "f1,exact_match",
    "algorithm": "ngc+adamw",
    "lr": 0.005,
    "epochs": 16,
    "evaluate_every": 4,
}


@cache
def digits() -> tuple[Tensor, Tensor]:
    """The 1,797 scanned digits that come with scikit-learn, 8 x 8 pixels each."""
    found = load_digits()
    return torch.tensor(found.images / 16, dtype=torch.float32), torch.tensor(found.target)


def site(agent: int) -> dict[str, object]:
    """An office's pictures of two digits side by side, and a row of ten labels for each."""
    images, numbers = digits()
    known = torch.isin(numbers, torch.tensor(DIGITS[agent])).nonzero()[:, 0]
    draws = torch.Generator().manual_seed(agent)

    def pairs(of: Tensor, samples: int) -> tuple[Tensor, Tensor]:
        left, right = of[torch.randint(len(of), (2, samples), generator=draws)]
        labels = torch.zeros(samples, 10)
        labels[torch.arange(samples), numbers[left]] = 1
        labels[torch.arange(samples), numbers[right]] = 1
        return torch.cat([images[left], images[right]], 2)[:, None], labels

    held_out = known[::5]
    rest = known[torch.isin(known, held_out, invert=True)]
    names = [str(number) for number in range(10)]
    return {"train": pairs(rest, 400), "test": pairs(held_out, 100), "labels": names}


def network() -> nn.Module:
    """A logit for each label."""
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 10))


def show(figure: SubFigure, alone: list[nn.Module], together: nn.Module) -> None:
    """How sure each model is of each label, for two test pictures of each site."""
    pictures, columns = figure.subfigures(1, 2, width_ratios=(1, 3))
    chosen = torch.cat([site(agent)["test"][0][:2] for agent in range(len(SITES))])  # type: ignore[index]
    truth = torch.cat([site(agent)["test"][1][:2] for agent in range(len(SITES))])  # type: ignore[index]
    for axes, picture in zip(pictures.subplots(len(chosen)), chosen, strict=True):
        axes.imshow(picture[0].numpy(), cmap="gray_r")
        axes.axis("off")
    models = [*alone, together]
    for axes, model, name in zip(
        columns.subplots(1, len(models), sharey=True),
        models,
        [*(f"{site} alone" for site in SITES), "together"],
        strict=True,
    ):
        sure = model(chosen).detach().sigmoid().numpy()
        axes.imshow(sure, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        row, label = np.nonzero(truth.numpy())
        axes.plot(label, row, "o", mfc="none", color="#cc3311", ms=9)
        axes.set_title(name, fontsize="small")
        axes.set(xticks=range(10), yticks=[])
    columns.supxlabel("label (red circle: present)", fontsize="small")
