"""Every way to compute a convolution against autograd, and Winograd's against the direct one."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from parley.compute.compiled import FusedEngine, supports
from parley.compute.operations import DIRECT, WINOGRAD
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
    "3 x 3": Row((3, 16, 16), WINOGRAD, (32, 48, 3), {"padding": 1}),
    "3 x 3, few channels": Row((3, 12, 12), WINOGRAD, (6, 40, 3)),
    "5 x 5": Row((2, 14, 14), WINOGRAD, (6, 16, 5)),
    "5 x 5, tiles of 4 x 4": Row((2, 12, 16), WINOGRAD, (6, 16, 5)),
    "5 x 5, padding": Row((2, 9, 7), WINOGRAD, (20, 17, 5), {"padding": 2, "bias": False}),
    "5 x 5, large padding": Row((2, 8, 12), WINOGRAD, (32, 40, 5), {"padding": 4}),
    "3 x 3 of 2 x 2 pixels": Row((3, 2, 2), WINOGRAD, (37, 45, 3), {"padding": 1}),
    "3 x 3 of 2 x 2 pixels to 4 x 4": Row((3, 2, 2), DIRECT, (9, 17, 3), {"padding": 2}),
    "from one channel": Row((3, 13, 11), DIRECT, (1, 6, 5), {"padding": 2}),
    "3 x 3, stride": Row((3, 16, 16), WINOGRAD, (16, 32, 3), {"padding": 1, "stride": 2}),
    "3 x 3, stride, odd sizes": Row((3, 31, 33), WINOGRAD, (24, 40, 3), {"stride": 2}),
    "3 x 3, stride, large padding": Row(
        (2, 29, 28), WINOGRAD, (48, 63, 3), {"padding": 2, "stride": 2, "bias": False}
    ),
    "stride": Row((3, 13, 11), DIRECT, (16, 32, 3), {"padding": 1, "stride": 3}),
}


@pytest.mark.parametrize("name", ROWS)
def test_convolutions(name: str) -> None:
    row = ROWS[name]
    task = row.task()
    assert Traced(task.model).read(row.shape).steps[1].options[9] == row.method
    assert_same_gradients(task, make_batch(row.shape, (6, 19, 37)))


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name].method == WINOGRAD])
def test_winograd_is_close_to_the_direct_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, batch = ROWS[name], make_batch(ROWS[name].shape, (40,))

    def gradient() -> Tensor:
        task = row.task()
        return FusedEngine(task).gradients(task.start()[None], batch, [0], [0])[1]

    by_tiles = gradient()
    monkeypatch.setenv("PARLEY_WINOGRAD", "off")
    assert Traced(row.task().model).read(row.shape).steps[1].options[9] == DIRECT
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
    return Row(shape, DIRECT, (draw(few), draw(few), kernel), options)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows(), st.lists(st.integers(1, 40), min_size=1, max_size=2))
def test_random_convolutions(row: Row, sizes: list[int]) -> None:
    try:
        task = row.task()
    except RuntimeError:  # a kernel larger than the map
        return
    assert supports(task, row.shape) == ""
    assert_close_gradients(task, make_batch(row.shape, sizes))
