"""What the kernels compute is what the model's code does, or it is left to torch."""

import torch
from torch import Tensor, nn

from parley.compute.compiled import supports
from parley.compute.task import Task
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
