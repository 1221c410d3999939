"""A language model: three authors who write about different things, letter by letter."""

import random

import torch
from matplotlib.figure import SubFigure
from torch import Tensor, nn
from torch.nn import functional

SITES = ("gardener", "sailor", "cook")
PHRASES = (
    (
        ("The roses", "The beans", "Two old pear trees", "My tulips"),
        ("need water", "stand in bloom", "came up early", "suffer from the frost"),
        ("near the wall", "this week", "in the shade", "after the rain"),
    ),
    (
        ("The wind", "A heavy swell", "The current", "The fog"),
        ("turned north", "held us back", "drove the ship east", "kept all hands on deck"),
        ("at dawn", "off the cape", "until the watch changed", "through the night"),
    ),
    (
        ("Butter", "A pinch of salt", "The dough", "Half a lemon"),
        ("goes into the pan", "must rest", "is folded in", "makes the sauce smooth"),
        ("for an hour", "with the onions", "before serving", "over a low flame"),
    ),
)
"""How each author's sentences begin, continue and end."""
TOKENS = 128
"""Letters are ASCII codes."""
LENGTH = 32
OPTIONS = {
    "task": "language-model",
    "metrics": "perplexity,accuracy",
    "algorithm": "ngc+adamw",
    "lr": 0.005,
    "batch": 16,
    "epochs": 6,
    "evaluate_every": 2,
}


def text(agent: int, sentences: int, seed: int) -> str:
    """What an author writes."""
    draws = random.Random(f"{agent} {seed}")
    written = (" ".join(draws.choice(part) for part in PHRASES[agent]) for _ in range(sentences))
    return ". ".join(written) + ". "


def pairs(written: str) -> tuple[Tensor, Tensor]:
    """Pieces of a text, and for each letter in them the next one."""
    codes = torch.tensor(list(written.encode("ascii")))
    pieces = codes.unfold(0, LENGTH + 1, LENGTH)
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def site(agent: int) -> dict[str, tuple[Tensor, Tensor]]:
    """An author's text, and another one to test on."""
    return {"train": pairs(text(agent, 120, seed=0)), "test": pairs(text(agent, 40, seed=1))}


class Letters(nn.Module):
    """Scores of the next letter at every position, from the 15 letters before it."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**n) for n in range(4))
        self.scores = nn.Linear(width, TOKENS)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.embed(letters).transpose(1, 2)
        for number, layer in enumerate(self.layers):
            # Padding on the left only: no position sees what comes after it.
            x = x + torch.relu(layer(functional.pad(x, (2**number, 0))))
        return self.scores(x.transpose(1, 2))


def network() -> nn.Module:
    """A small convolutional network; any module that returns [letters, codes] works."""
    return Letters()


@torch.no_grad()
def continued(model: nn.Module, start: str, letters: int = 60) -> str:
    """What the model writes after this start: always the likeliest letter."""
    written = start
    for _ in range(letters):
        last = torch.tensor([list(written.encode("ascii"))[-LENGTH:]])
        written += chr(int(model(last)[0, -1].argmax()))
    return written


def show(figure: SubFigure, alone: list[nn.Module], together: nn.Module) -> None:
    """How each model continues the beginning of each author's sentences."""
    axes = figure.subplots()
    axes.axis("off")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    line = 1.0
    names = [*(f"{name} alone" for name in SITES), "together"]
    for agent, author in enumerate(SITES):
        start = f"{PHRASES[agent][0][0]} "
        axes.text(0, line, f"{start}…   ({author})", weight="bold", fontsize=10, va="top")
        for name, model in zip(names, [*alone, together], strict=True):
            line -= 0.07
            said = "".join(c if c.isprintable() else "·" for c in continued(model, start))
            colour = "#0b6e99" if model is together else "#5b6570"
            shown = {"family": "monospace", "fontsize": 9, "va": "top", "color": colour}
            axes.text(0.02, line, f"{name:<16} {said}", **shown)
        line -= 0.085
