"""Regression: three weather stations, each of which measures during a part of the day only."""

import torch
from matplotlib.figure import SubFigure
from torch import Tensor, nn

SITES = ("night", "day", "evening")
HOURS = ((0, 9), (7, 17), (15, 24))
"""When each station measures."""
OPTIONS = {
    "task": "regression",
    "metrics": "rmse,r2",
    "algorithm": "ngc+adamw",
    "lr": 0.01,
    "epochs": 60,
    "evaluate_every": 20,
}


def temperature(hour: Tensor) -> Tensor:
    """The true temperature, in tens of degrees."""
    return 1.4 - 0.7 * torch.cos((hour - 4) * torch.pi / 12) + 0.2 * torch.sin(hour * torch.pi / 4)


def site(agent: int) -> dict[str, tuple[Tensor, Tensor]]:
    """A station's measurements: pairs of the hour and the temperature, with noise."""
    draws = torch.Generator().manual_seed(agent)
    first, last = HOURS[agent]

    def measured(samples: int) -> tuple[Tensor, Tensor]:
        hour = first + (last - first) * torch.rand(samples, 1, generator=draws)
        noise = 0.1 * torch.randn(samples, 1, generator=draws)
        return hour / 12 - 1, temperature(hour) + noise

    return {"train": measured(120 + 60 * agent), "test": measured(60)}


def network() -> nn.Module:
    """A curve through the day."""
    return nn.Sequential(
        nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)
    )


def show(figure: SubFigure, alone: list[nn.Module], together: nn.Module) -> None:
    """The curve of every model, and the measurements."""
    axes = figure.subplots()
    hour = torch.linspace(0, 24, 200)[:, None]
    colours = ("#332288", "#cc6677", "#999933")
    for agent, (name, model, colour) in enumerate(zip(SITES, alone, colours, strict=True)):
        inputs, targets = site(agent)["train"]
        axes.plot(
            12 * (inputs.numpy() + 1), 10 * targets.numpy(), ".", color=colour, ms=3, alpha=0.4
        )
        curve = 10 * model(hour / 12 - 1).detach().numpy()
        axes.plot(hour.numpy(), curve, "--", color=colour, lw=1.2, label=f"{name} alone")
    curve = 10 * together(hour / 12 - 1).detach().numpy()
    axes.plot(hour.numpy(), curve, color="#0b6e99", lw=3, label="together")
    axes.set(xlabel="hour", ylabel="°C", xlim=(0, 24), ylim=(0, 34), xticks=range(0, 25, 4))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=2)
