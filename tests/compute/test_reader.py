"""What the kernels compute is what the model's code does, or it is left to torch."""

import torch
from torch import Tensor, nn

from parley.compute.compiled import FusedEngine, supports
from parley.compute.engine import LoopEngine
from parley.compute.reader import Traced
from parley.compute.task import Task
from tests.compute.test_fused import make_batch
from tests.compute.test_operations import Written


def reason(forward: object, **parts: nn.Module) -> str:
    """Why a model with these parts is left to torch."""
    return supports(Task(Written(forward, a=nn.Linear(3, 3), **parts)), (3,))  # type: ignore[arg-type]


def test_a_value_that_changes_in_place_before_it_is_read_again() -> None:
    def skip(x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
        x = a(x)
        y = b(x)
        out: Tensor = x + y
        return out

    changed = "the model: add() reads a value that layer parts.b ({}) changes in place"
    assert reason(skip, b=nn.ReLU(inplace=True)) == changed.format("ReLU")
    assert reason(skip, b=nn.Dropout(0.5, inplace=True)) == changed.format("Dropout")
    assert not reason(skip, b=nn.ReLU())

    def only_changed(x: Tensor, a: nn.Module) -> Tensor:
        x = a(x)
        x.view(-1, 3).mul_(0.5)
        return x

    assert reason(only_changed).startswith("the model's answer reads a value that the model: mul_")
    assert not reason(lambda x, a: torch.relu_(a(x)) + x)  # nobody reads what was there before


def test_code_that_does_not_do_what_its_trace_does() -> None:
    def by_another_name(x: Tensor, a: nn.Module) -> Tensor:
        kept = x = a(x)
        x += 1  # torch.fx takes this for x = x + 1
        out: Tensor = kept * x
        return out

    class Softened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.linear(x)
            return scores if self.training else scores.softmax(1)

    other = "the model's code does not do what its trace does"
    assert reason(by_another_name).startswith(other)
    assert supports(Task(Softened()), (3,)).startswith(other)


def test_a_norm_that_is_never_called_keeps_its_statistics() -> None:
    assert "layer parts.b (BatchNorm1d) is never called" in reason(
        lambda x, a, b: a(x), b=nn.BatchNorm1d(3)
    )


def test_a_pool_passes_before_its_relu_unless_somebody_else_sees_that() -> None:
    def operations(model: nn.Module) -> list[str]:
        return [step.operation for step in Traced(model).read((1, 6, 6)).steps]

    end = nn.Flatten(), nn.Linear(9, 10)
    pooled = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *end)
    assert operations(pooled)[1:3] == ["max_pool", "activation"]
    softer = nn.Sequential(nn.ReLU(), nn.GELU(), nn.MaxPool2d(2), *end)
    assert operations(softer)[:3] == ["activation", "activation", "max_pool"]

    def seen_twice(x: Tensor, a: nn.Module) -> Tensor:
        x = a(x).relu()
        y: Tensor = nn.functional.max_pool2d(x, 2) + nn.functional.avg_pool2d(x, 2)
        return y.flatten(1)

    branched = nn.Sequential(Written(seen_twice, a=nn.Conv2d(1, 1, 1)), nn.Linear(9, 10))
    assert operations(branched)[1:3] == ["activation", "max_pool"]

    # Windows of equal values, of negative ones only, and of zeros.
    task, batch = Task(pooled), make_batch((1, 6, 6), (9,))
    batch = batch._replace(inputs=batch.inputs.round())
    x_PD = (task.start()[None] * 8).round() / 8  # sums of these are exact
    _, expected = LoopEngine(task).gradients(x_PD, batch, [0], [0])
    _, found = FusedEngine(task).gradients(x_PD, batch, [0], [0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
