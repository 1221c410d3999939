"""Segmentation: three surveyors, each of whom has seen only one kind of object from above."""

import torch
from matplotlib.figure import SubFigure
from torch import Tensor, nn

SITES = ("discs", "squares", "crosses")
SIDE = 16
CLASSES = ("ground", "disc", "square", "cross")
BRIGHTNESS = torch.tensor([0.35, 0.8, 0.05, 0.6])
"""Brightness of each class, before noise."""
OPTIONS = {
    "task": "segmentation",
    "metrics": "iou,accuracy",
    "algorithm": "ngc+adamw",
    "lr": 0.01,
    "batch": 16,
    "epochs": 16,
    "evaluate_every": 4,
}


def shape(kind: int, x: Tensor, y: Tensor, size: float) -> Tensor:
    """Which pixels belong to an object of this kind, at the origin."""
    if kind == 1:
        return x**2 + y**2 < size**2
    if kind == 2:
        return torch.maximum(x.abs(), y.abs()) < size
    return (torch.minimum(x.abs(), y.abs()) < size / 3) & (torch.maximum(x.abs(), y.abs()) < size)


def scene(kind: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """A grey picture with two objects of one kind, and the class of each pixel."""
    places = torch.arange(SIDE, dtype=torch.float32)
    y, x = torch.meshgrid(places, places, indexing="ij")
    classes = torch.zeros(SIDE, SIDE, dtype=torch.int64)
    for middle in (4, 11):
        across = 4 + 7 * torch.rand((), generator=draws)
        size = 2.5 + 1.5 * torch.rand((), generator=draws)
        classes[shape(kind, x - across, y - middle, float(size))] = kind
    noise = 0.12 * torch.randn(SIDE, SIDE, generator=draws)
    return (BRIGHTNESS[classes] + noise)[None], classes


def site(agent: int) -> dict[str, object]:
    """A surveyor's pictures, [1, height, width], and the class of each pixel."""
    draws = torch.Generator().manual_seed(agent)

    def seen(samples: int) -> tuple[Tensor, Tensor]:
        pictures, classes = zip(*(scene(agent + 1, draws) for _ in range(samples)), strict=True)
        return torch.stack(pictures), torch.stack(classes)

    return {"train": seen(64), "test": seen(16), "labels": list(CLASSES)}


def network() -> nn.Module:
    """A score for each class and pixel: [4, height, width]."""

    def layer(inputs: int, outputs: int, apart: int) -> nn.Module:
        conv = nn.Conv2d(inputs, outputs, 3, padding=apart, dilation=apart)
        return nn.Sequential(conv, nn.GroupNorm(4, outputs), nn.ReLU())

    layers = [layer(1, 12, 1), layer(12, 12, 2)]
    return nn.Sequential(*layers, nn.Conv2d(12, len(CLASSES), 1))


def show(figure: SubFigure, alone: list[nn.Module], together: nn.Module) -> None:
    """A test picture of each site: what is there, and what the models see."""
    models = [*alone, together]
    titles = ["picture", "truth", *(f"{name} alone" for name in SITES), "together"]
    axes = figure.subplots(len(SITES), len(titles))
    for agent, row in enumerate(axes):
        pictures, classes = site(agent)["test"]  # type: ignore[misc]
        row[0].imshow(pictures[0, 0].numpy(), cmap="gray")
        seen = [model(pictures[:1]).detach().argmax(1)[0] for model in models]
        for cell, picture in zip(row[1:], [classes[0], *seen], strict=True):
            cell.imshow(picture.numpy(), cmap="tab10", vmin=0, vmax=9, interpolation="nearest")
        for cell in row:
            cell.set(xticks=[], yticks=[])
    for cell, title in zip(axes[0], titles, strict=True):
        cell.set_title(title, fontsize="small")
