"""What a model's code keeps beside its tensors, because of which it would not repeat itself."""

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parley.compute.task import Task
from parley.compute.trial import tried
from parley.errors import BadValue
from tests.compute.test_fused import make_batch
from tests.compute.test_operations import Written


def refused(model: nn.Module) -> str:
    """Why no engine takes a model."""
    batch = make_batch((3,), (5,))
    with pytest.raises(BadValue) as error:
        tried(Task(model), "m", batch.inputs[0], batch.targets[0], 10)
    assert error.value.field == "model"
    return str(error.value)


class Keeping(nn.Module):
    """A model with something of its own beside its layers."""

    def __init__(self, own: Any = None, skips: Callable[[Any], bool] | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.last = nn.Linear(3, 10)
        self.random, self.skips, self.calls, self.kept = own, skips, 0, torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if self.skips is not None and self.skips(self.random):
            x = x + self.layers(x)
        self.kept = self.layers(x)
        out: Tensor = self.last(self.kept)
        return out


@pytest.mark.parametrize(
    ("own", "skips"),
    [
        (np.random.default_rng(3), lambda g: g.random() < 2),
        (np.random.RandomState(3), lambda g: g.random_sample() < 2),
        (random.Random(3), lambda g: g.random() < 2),
        (torch.Generator(), lambda g: float(torch.rand(1, generator=g)) < 2),
    ],
    ids=["numpy", "old numpy", "python", "torch"],
)
def test_random_numbers_of_the_models_own(own: Any, skips: Callable[[Any], bool]) -> None:
    task = Task(Keeping(own, skips))
    assert not task.random  # its attribute of that name is not meant for us
    assert "draws random numbers from a generator that is not torch's own: its attribute" in (
        refused(Keeping(own, skips))
    )


def test_a_model_that_counts() -> None:
    class Calls(Keeping):
        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    why = "the model (Calls) changes its attribute 'calls' whenever it is called"
    assert why in refused(Calls())
    hooked = Keeping()
    calls = [0]
    hooked.last.register_forward_hook(lambda *_: calls.append(1))
    assert "layer last (Linear) changes 'calls', which is not its own" in refused(hooked)


RANDOM, DEFAULT, COUNT = random.Random(3), np.random.default_rng(0), [0]


def around() -> Callable[[Tensor, Any, Any], Tensor]:
    calls = deque([0])

    def forward(x: Tensor, a: Any, b: Any) -> Tensor:
        calls.append(1)
        return b(a(x))

    return forward


def with_global_generator(x: Tensor, a: Any, b: Any) -> Tensor:
    return b(a(x)) if RANDOM.random() < 2 else b(x)


def with_global_list(x: Tensor, a: Any, b: Any) -> Tensor:
    COUNT[0] += 1
    return b(a(x))


class Counting(Keeping):
    """Counts in something else than a number of its own."""

    number = 0

    def __init__(self, count: Callable[["Counting"], Any]) -> None:
        super().__init__()
        self.kept_sum = torch.zeros(())
        self.made, self.named, self.numbers = [], {"calls": 0}, itertools.count()
        self.generators = [np.random.default_rng(0)]
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        self.count(self)
        return super().forward(x)


def count_on_the_class(model: Counting) -> None:
    Counting.number += 1


def with_default(x: Tensor, a: Any, b: Any, own: Any = DEFAULT) -> Tensor:
    return b(a(x)) if own.random() < 2 else b(x)


def with_another_function(x: Tensor, a: Any, b: Any) -> Tensor:
    return with_global_generator(x, a, b)


class Drawing:
    """A helper that is no layer."""

    def __init__(self) -> None:
        self.inside = [random.Random(3)]

    def __call__(self, *_: Any) -> bool:
        return self.inside[0].random() < 2


class Slotted:
    """A helper without a dictionary."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: Any) -> bool:
        self.calls += 1
        return self.calls > 0


def drawn() -> Iterator[float]:
    own = random.Random(3)
    while True:
        yield own.random()


def next_of(values: Iterator[float]) -> Callable[[Any], bool]:
    return lambda _: next(values) < 2


KEPT_BESIDE = {
    "a slot": (lambda: Keeping(None, Slotted()), "changes its attribute 'skips'"),
    "a cycle": (lambda: Keeping(None, next_of(itertools.cycle([0, 1]))), "changes 'values'"),
    "a generator function": (
        lambda: Keeping(None, next_of(drawn())),
        "draws random numbers from a generator",
    ),
    "Python's generator": (
        lambda: Keeping(None, lambda _: random.random() < 2),
        "draws random numbers from Python's global generator",
    ),
    "NumPy's generator": (
        lambda: Keeping(None, lambda _: np.random.rand() < 2),
        "draws random numbers from NumPy's global generator",
    ),
    "a generator in an object": (
        lambda: Keeping(None, Drawing()),
        "draws random numbers from a generator",
    ),
    "a generator's method": (
        lambda: Keeping(None, partial(lambda draw, _: draw() < 2, random.Random(3).random)),
        "draws random numbers from a generator",
    ),
    "a default": (
        lambda: Written(with_default, a=nn.Linear(3, 3), b=nn.Linear(3, 10)),
        "draws random numbers from a generator",
    ),
    "a function of a function": (
        lambda: Written(with_another_function, a=nn.Linear(3, 3), b=nn.Linear(3, 10)),
        "draws random numbers from a generator",
    ),
    "a tensor": (
        lambda: Counting(lambda m: setattr(m, "kept_sum", m.kept_sum + 1)),
        "changes its attribute 'kept_sum'",
    ),
    "a list": (lambda: Counting(lambda m: m.made.append(1)), "changes its attribute 'made'"),
    "a dictionary": (
        lambda: Counting(lambda m: m.named.update(calls=m.named["calls"] + 1)),
        "changes its attribute 'named'",
    ),
    "a counter": (lambda: Counting(lambda m: next(m.numbers)), "changes its attribute 'numbers'"),
    "a generator in a list": (
        lambda: Counting(lambda m: m.generators[0].random()),
        "draws random numbers from a generator",
    ),
    "what was not there": (
        lambda: Counting(lambda m: setattr(m, "late", getattr(m, "late", 0) + 1)),
        "changes its attribute 'late'",
    ),
    "its class": (lambda: Counting(count_on_the_class), "changes its attribute 'number'"),
    "a global generator": (
        lambda: Written(with_global_generator, a=nn.Linear(3, 3), b=nn.Linear(3, 10)),
        "draws random numbers from a generator",
    ),
    "a global list": (
        lambda: Written(with_global_list, a=nn.Linear(3, 3), b=nn.Linear(3, 10)),
        "changes 'COUNT', which is not its own",
    ),
    "a variable around it": (
        lambda: Written(around(), a=nn.Linear(3, 3), b=nn.Linear(3, 10)),
        "changes 'calls', which is not its own",
    ),
}


@pytest.mark.parametrize("name", KEPT_BESIDE)
def test_what_a_model_keeps_beside_its_tensors(name: str) -> None:
    make, words = KEPT_BESIDE[name]
    assert words in refused(make())


def test_a_model_may_note_something_down_once() -> None:
    class Noting(Keeping):
        seen = False

        def forward(self, x: Tensor) -> Tensor:
            self.seen = True
            return super().forward(x)

    batch = make_batch((3,), (5,))
    tried(Task(Noting()), "noting", batch.inputs[0], batch.targets[0], 10)


def test_a_state_that_nothing_shows_is_seen_in_the_gradient() -> None:
    class Recurrent(Keeping):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.kept.sum() / 2 + x.repeat(1, 10).exp()  # too large to be looked at
            out: Tensor = self.last(self.layers(x)) * self.kept.mean()
            return out

    assert "another one when it is computed again" in refused(Recurrent())
