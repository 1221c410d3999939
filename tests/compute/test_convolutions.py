"""Every way to compute a convolution against autograd, and Winograd's against the direct one."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from parley.compute.compiled import FusedEngine, supports
from parley.compute.kernels.interface import Method
from parley.compute.reader import Traced
from parley.compute.task import Task
from tests.compute.test_fused import (
    _built,
    assert_close_gradients,
    assert_same_gradients,
    make_batch,
    stages,
)

__all__ = ["_built"]


class Row(NamedTuple):
    """A convolution between two others, so that the gradient by its input is wanted too."""

    shape: tuple[int, int, int]
    method: int
    arguments: tuple[int, ...]
    options: dict[str, Any] = {}  # noqa: RUF012

    def task(self) -> Task:
        torch.manual_seed(0)
        first = nn.Conv2d(self.shape[0], self.arguments[0], 1)
        return stages(first, nn.Conv2d(*self.arguments, **self.options), shape=self.shape)


ROWS = {
    "3 x 3": Row((3, 16, 16), Method.WINOGRAD, (32, 48, 3), {"padding": 1}),
    "3 x 3, few channels": Row((3, 12, 12), Method.WINOGRAD, (6, 40, 3)),
    "5 x 5": Row((2, 14, 14), Method.WINOGRAD, (6, 16, 5)),
    "5 x 5, tiles of 4 x 4": Row((2, 12, 16), Method.WINOGRAD, (6, 16, 5)),
    "5 x 5, padding": Row((2, 9, 7), Method.WINOGRAD, (20, 17, 5), {"padding": 2, "bias": False}),
    "5 x 5, large padding": Row((2, 8, 12), Method.WINOGRAD, (32, 40, 5), {"padding": 4}),
    "3 x 3 of 2 x 2 pixels": Row((3, 2, 2), Method.WINOGRAD, (37, 45, 3), {"padding": 1}),
    "3 x 3 of 2 x 2 pixels to 4 x 4": Row((3, 2, 2), Method.DIRECT, (9, 17, 3), {"padding": 2}),
    "from one channel": Row((3, 13, 11), Method.DIRECT, (1, 6, 5), {"padding": 2}),
    "3 x 3, stride": Row((3, 16, 16), Method.WINOGRAD, (16, 32, 3), {"padding": 1, "stride": 2}),
    "3 x 3, stride, odd sizes": Row((3, 31, 33), Method.WINOGRAD, (24, 40, 3), {"stride": 2}),
    "3 x 3, stride, large padding": Row(
        (2, 29, 28), Method.WINOGRAD, (48, 63, 3), {"padding": 2, "stride": 2, "bias": False}
    ),
    "stride": Row((3, 13, 11), Method.DIRECT, (16, 32, 3), {"padding": 1, "stride": 3}),
}


@pytest.mark.parametrize("name", ROWS)
def test_convolutions(name: str) -> None:
    row = ROWS[name]
    task = row.task()
    assert Traced(task.model).read(row.shape).steps[1].options.method == row.method
    assert_same_gradients(task, make_batch(row.shape, (6, 19, 37)))


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name].method == Method.WINOGRAD])
def test_winograd_is_close_to_the_direct_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, batch = ROWS[name], make_batch(ROWS[name].shape, (40,))

    def gradient() -> Tensor:
        task = row.task()
        return FusedEngine(task).gradients(task.start()[None], batch, [0], [0])[1]

    by_tiles = gradient()
    monkeypatch.setenv("PARLEY_WINOGRAD", "off")
    assert Traced(row.task().model).read(row.shape).steps[1].options.method == Method.DIRECT
    directly = gradient()
    assert float((by_tiles - directly).norm() / directly.norm()) < 1e-5


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Any convolution of many or few channels."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 12)), draw(st.integers(1, 12)))
    kernel, few = draw(st.sampled_from([1, 2, 3, 5])), st.sampled_from([1, 4, 6, 8, 16, 17])
    options = {
        "padding": draw(st.integers(0, kernel)),
        "stride": draw(st.sampled_from([1, 1, 2, 3])),
        "dilation": draw(st.sampled_from([1, 1, 2])),
    }
    return Row(shape, Method.DIRECT, (draw(few), draw(few), kernel), options)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows(), st.lists(st.integers(1, 40), min_size=1, max_size=2))
def test_random_convolutions(row: Row, sizes: list[int]) -> None:
    try:
        task = row.task()
    except RuntimeError:  # a kernel larger than the map
        return
    assert supports(task, row.shape) == ""
    assert_close_gradients(task, make_batch(row.shape, sizes))


FIRST = {
    "5 x 5 of one channel": Row((1, 28, 28), Method.BY_ROWS, (1, 6, 5), {"padding": 2}),
    "5 x 5 of three channels": Row((3, 12, 14), Method.BY_ROWS, (3, 7, 5), {"bias": False}),
    "3 x 3 of three channels": Row((3, 16, 16), Method.BY_ROWS, (3, 16, 3), {"padding": 1}),
    "a row that ends within a tile": Row((2, 9, 11), Method.BY_ROWS, (2, 9, 5), {"padding": 1}),
    "more padding than map": Row((1, 2, 13), Method.BY_ROWS, (1, 5, 5), {"padding": 4}),
    "an odd number of rows and columns": Row((1, 7, 15), Method.BY_ROWS, (1, 4, 3), {"padding": 1}),
    "too few outputs": Row((1, 8, 8), Method.DIRECT, (1, 3, 3), {"padding": 1}),
    "few columns": Row((1, 9, 5), Method.DIRECT, (1, 8, 3), {"padding": 1}),
}


def first_layers(row: Row, pool: nn.Module | None) -> Task:
    torch.manual_seed(0)
    layers = [nn.Conv2d(*row.arguments, **row.options), nn.ReLU()]
    return stages(*layers, *([pool] if pool else []), shape=row.shape)


@pytest.mark.parametrize("pool", [None, nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.AvgPool2d(2)])
@pytest.mark.parametrize("name", FIRST)
def test_first_convolutions(name: str, pool: nn.Module | None) -> None:
    row = FIRST[name]
    if pool and row.shape[1] < 3 and row.options["padding"] < 2:
        return
    task = first_layers(row, pool)
    step = Traced(task.model).read(row.shape).steps[0]
    assert step.options.method == row.method
    within = (
        row.method == Method.BY_ROWS and isinstance(pool, nn.MaxPool2d) and pool.kernel_size == 2
    )
    assert step.options.pooled == within
    assert_same_gradients(task, make_batch(row.shape, (6, 19, 37)))


@pytest.mark.parametrize("name", [name for name in FIRST if FIRST[name].method == Method.BY_ROWS])
def test_filtering_along_rows_is_close_to_the_direct_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, batch = FIRST[name], make_batch(FIRST[name].shape, (40,))

    def gradient() -> Tensor:
        task = Task(nn.Sequential(*first_layers(row, None).model[:1], nn.Tanh(), nn.Flatten()))
        return FusedEngine(task).gradients(task.start()[None], batch, [0], [0])[1]

    by_rows = gradient()
    monkeypatch.setenv("PARLEY_WINOGRAD", "off")
    directly = gradient()
    assert not by_rows.equal(directly)
    assert float((by_rows - directly).norm() / directly.norm()) < 1e-5


def test_a_pool_within_a_convolution_answers_as_one_behind_it() -> None:
    """A model in use, and one whose convolution is read by others than the pool."""
    row = FIRST["5 x 5 of one channel"]
    task = first_layers(row, nn.MaxPool2d(2))
    inputs = make_batch(row.shape, (40,)).inputs[0]
    answers = FusedEngine(task).predict(task.start(), inputs)
    with torch.no_grad():
        torch.testing.assert_close(answers, task.model(inputs), rtol=1e-5, atol=1e-5)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pool = nn.Conv2d(1, 6, 5, padding=2), nn.MaxPool2d(2)
            self.last = nn.Linear(6 * 14 * 14 * 2, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            both = self.pool(x), nn.functional.avg_pool2d(x, 2)
            return self.last(torch.cat(both, 1).flatten(1))

    torch.manual_seed(0)
    task = Task(Twice())
    [first, *_] = Traced(task.model).read(row.shape).steps
    assert (first.options.method, first.options.pooled) == (Method.BY_ROWS, 0)
    assert_same_gradients(task, make_batch(row.shape, (6, 37)))


def test_nothing_that_is_not_a_number_is_lost_in_a_pool() -> None:
    row = FIRST["5 x 5 of one channel"]
    task, batch = first_layers(row, nn.MaxPool2d(2)), make_batch(row.shape, (5,))
    batch.inputs[0, 3, 0, 14, 14] = float("nan")
    loss_P, _ = FusedEngine(task).gradients(task.start()[None], batch, [0], [0])
    assert bool(loss_P.isnan().all())


@st.composite
def first_rows(draw: st.DrawFn) -> Row:
    """A first convolution, of any size."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 14)), draw(st.integers(3, 21)))
    kernel = draw(st.sampled_from([3, 5]))
    options = {"padding": draw(st.integers(0, kernel - 1)), "bias": draw(st.booleans())}
    return Row(shape, Method.BY_ROWS, (shape[0], draw(st.integers(4, 9)), kernel), options)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(first_rows(), st.booleans(), st.lists(st.integers(1, 40), min_size=1, max_size=2))
def test_random_first_convolutions(row: Row, pooled: bool, sizes: list[int]) -> None:
    try:
        task = first_layers(row, nn.MaxPool2d(2) if pooled else None)
    except RuntimeError:  # a kernel or a window larger than the map
        return
    assert_close_gradients(task, make_batch(row.shape, sizes))
