"""What the kernels compute is what the model's code does, or it is left to torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parley.compute import choose, kernels, layers
from parley.compute.agreement import Agreement
from parley.compute.compiled import FusedEngine, supports
from parley.compute.engine import LoopEngine
from parley.compute.reader import Traced
from parley.compute.task import Task
from parley.compute.trial import tried
from parley.errors import BadValue
from tests.compute.test_beside import Counting, Keeping
from tests.compute.test_fused import make_batch
from tests.compute.test_operations import Written


def declined(task: Task, why: str = "") -> str:
    """Why a model is left to torch: what was read, or what the kernels make of it."""
    batch = make_batch((3,), (9, 4), classes=3)
    if not (why or kernels.available()):
        pytest.skip("no compiled kernels on this machine")
    return why or Agreement(task, batch).difference(FusedEngine(task))


def reason(forward: object, **parts: nn.Module) -> str:
    """Why a model with these parts is left to torch."""
    task = Task(Written(forward, a=nn.Linear(3, 3), **parts))  # type: ignore[arg-type]
    return declined(task, supports(task, (3,)))


@pytest.mark.parametrize("inplace", [nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True)])
def test_a_value_that_changes_in_place_before_it_is_read_again(inplace: nn.Module) -> None:
    def skip(x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
        x = a(x)
        y = b(x)
        out: Tensor = x + y
        return out

    assert reason(skip, b=inplace) == "the loss"
    assert not reason(skip, b=nn.ReLU())


def test_what_is_only_changed_in_place() -> None:
    def only_changed(x: Tensor, a: nn.Module) -> Tensor:
        x = a(x)
        x.view(-1, 3).mul_(0.5)
        return x

    assert reason(only_changed) == "the loss"
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

    assert reason(by_another_name) == "the loss"
    assert declined(Task(Softened())) == "what the model predicts"


def test_a_norm_that_is_never_called_keeps_its_statistics() -> None:
    assert reason(lambda x, a, b: a(x), b=nn.BatchNorm1d(3)) == "what norms see"


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


class Reversed(torch.autograd.Function):
    """A gradient that no trace shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *passed: Tensor) -> Tensor:
        return -passed[0]


def without_gradients(x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
    with torch.no_grad():
        x = a(x)
    out: Tensor = b(x)
    return out


def in_bf16(x: Tensor, a: nn.Module) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        x = a(x)
    return x.float()


def never_dropped(x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
    out: Tensor = b.eval()(a(x))
    return out


def sometimes(draw: Callable[[], float]) -> Callable[..., Tensor]:
    def forward(x: Tensor, a: nn.Module) -> Tensor:
        out: Tensor = a(x) if a.training and draw() < 2 else x
        return out

    return forward


UNSEEN: dict[str, tuple[Callable[..., Tensor], dict[str, nn.Module], str]] = {
    "no gradients": (
        without_gradients,
        {"b": nn.Linear(3, 3)},
        "the gradient of parts.a.weight",
    ),
    "own gradient": (
        lambda x, a: Reversed.apply(a(x)),
        {},
        "the gradient of parts.a.weight",
    ),
    "autocast": (in_bf16, {}, "is not an operation that the kernels know"),
    "dropout that is off": (
        never_dropped,
        {"b": nn.Dropout(0.5)},
        "layer parts.b (Dropout) is switched off while the model is trained",
    ),
    "torch's random numbers": (sometimes(lambda: torch.rand(1).item()), {}, "draws random numbers"),
    "alpha": (lambda x, a: torch.sub(a(x), 2.0, alpha=3), {}, "the model: sub() has alpha=3"),
    "rounding": (
        lambda x, a: torch.div(a(x), 0.3, rounding_mode="floor") + x,
        {},
        "the model: div() has rounding_mode='floor'",
    ),
    "number of samples": (
        lambda x, a: a(x) * (1.0 / x.shape[0]),
        {},
        "the loss",
    ),
    "branch by size": (
        lambda x, a: a(x) if x.shape[0] > 8 else x,
        {},
        "the model (Written) cannot be traced: its code branches on the values or the size",
    ),
    "taken apart": (
        lambda x, a: torch.stack(list(a(x))),
        {},
        "its code goes through a tensor, or takes it apart",
    ),
    "squeezed": (
        lambda x, a: a(x).squeeze(),
        {},
        "the model: squeeze() would drop the axis of samples",
    ),
    "squeezed samples": (
        lambda x, a: a(x).squeeze(0),
        {},
        "the model: squeeze() would drop the axis of samples",
    ),
    "stretched": (
        lambda x, a: (a(x) - x.view(-1, 3, 1, 1)).mean((2, 3)),
        {},
        "the model: sub() has operands of 2 and 4 axes",
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_trace_shows_is_left_to_torch(name: str) -> None:
    forward, parts, words = UNSEEN[name]
    assert words in reason(forward, **parts)


def test_hooks_of_backward_passes() -> None:
    linear = nn.Linear(3, 3)
    assert not reason(lambda x, a, b: b(a(x)), b=linear)
    handle = linear.register_full_backward_hook(lambda *_: None)
    assert reason(lambda x, a, b: b(a(x)), b=linear) == "layer parts.b (Linear) has hooks"
    handle.remove()
    linear.register_full_backward_pre_hook(lambda *_: None)
    assert reason(lambda x, a, b: b(a(x)), b=linear) == "layer parts.b (Linear) has hooks"


def test_a_layer_that_was_read_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layers.LAYERS, nn.Tanh, layers.LAYERS[nn.Sigmoid])
    assert declined(Task(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))) == "the loss"


def test_a_model_is_left_with_what_it_had() -> None:
    model = Counting(lambda m: m.made.append(1))
    made = model.made
    assert supports(Task(model), (3,)) == ""
    assert model.made is made
    assert made == []


def test_what_a_model_keeps_is_not_changed_and_can_be_copied() -> None:
    task, batch = Task(Keeping()), make_batch((3,), (5,))
    kept = task.model.kept
    assert supports(task, (3,)) == ""
    assert task.model.kept is kept
    LoopEngine(task).gradients(task.start()[None], batch, [0], [0])
    answers = task.module(task.start())(batch.inputs[0])
    torch.testing.assert_close(answers, task.predict(task.start(), batch.inputs[0]))


class Same(torch.autograd.Function):
    """Leaves no trace at all, and turns around what comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, *passed: Tensor) -> Tensor:
        return -passed[0]


def test_a_wrong_gradient_far_from_the_answer_is_found() -> None:
    """There it is a small part of the whole."""
    torch.manual_seed(0)
    apply = Same.apply
    rest = [each for _ in range(5) for each in (nn.Linear(8, 8), nn.ReLU())]
    parts = {"b": nn.Linear(3, 8), "c": nn.Sequential(*rest), "d": nn.Linear(8, 3)}
    assert reason(lambda x, a, b, c, d: d(c(apply(b(a(x))))), **parts) == (
        "the gradient of parts.a.weight"
    )


@pytest.mark.parametrize("seed", range(3))
def test_rounding_that_batchnorm_amplifies_is_no_difference(seed: int) -> None:
    """In float32 the first digit of a gradient here may be wrong, whoever computes it."""
    torch.manual_seed(seed)
    layers = [
        each for _ in range(20) for each in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())
    ]
    task = Task(nn.Sequential(*layers, nn.Linear(16, 10)))
    assert supports(task, (16,)) == ""
    if kernels.available():
        assert Agreement(task, make_batch((16,), (9, 4))).difference(FusedEngine(task)) == ""


def test_what_autograd_cannot_do() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Linear(3, 10))
    task, batch = Task(model), make_batch((3,), (5,))
    with pytest.raises(
        BadValue, match="autograd cannot compute its gradient: one of the variables"
    ):
        task = tried(task, "sigmoid", batch.inputs[0], batch.targets[0], 10)


def test_it_can_be_asked_without_gradients() -> None:
    with torch.inference_mode():
        assert supports(Task(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 10))), (3,)) == ""


class Branching(nn.Module):
    """What only autograd can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out if out.sum() > 0 else -out


def test_an_engine_that_cannot_is_refused_with_the_layer() -> None:
    task, batch = Task(nn.Sequential(nn.Identity(), Branching())), make_batch((3,), (5,))
    for name in ("vmap", "fused"):
        with pytest.raises(BadValue, match=r"layer 1 \(Branching\).*valid: loop, auto"):
            choose.check(name, task, batch)
    choose.check("loop", task, batch)
