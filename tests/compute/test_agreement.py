"""Whatever engine is chosen computes what the model's own code gives, or the model is refused."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import parley
from parley.cache import cache_folder
from parley.compute import choose, kernels
from parley.compute.agreement import Agreement
from parley.compute.dense import StackedEngine
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.compute.trial import tried
from parley.data import Batch
from parley.errors import BadValue
from tests.compute.test_fused import make_batch

SIZES = (16, 16, 7, 16, 3)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.available()  # built in the cache of all tests, not in this one
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path))


def dense(*others: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), *others, nn.Linear(6, 3))


class Normalised(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return functional.normalize(super().forward(input)) * 5


class Residual(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        first, *rest = self
        h = first(input)
        for layer in rest[:-1]:
            h = h + layer(h)
        out: Tensor = rest[-1](h)
        return out


def normalised() -> nn.Module:
    return Normalised(*dense())


def residual() -> nn.Module:
    return Residual(*dense())


def own_forward() -> nn.Module:
    model = dense()
    given = model.forward
    model.forward = lambda input: 2 * given(input)  # type: ignore[method-assign]
    return model


def own_forward_of_a_layer() -> nn.Module:
    model = dense()
    model[1].forward = torch.relu  # type: ignore[method-assign]
    return model


def forward_hook() -> nn.Module:
    model = dense()
    model[0].register_forward_hook(lambda layer, given, found: found * 2)
    return model


def forward_pre_hook() -> nn.Module:
    model = dense()
    model.register_forward_pre_hook(lambda layer, given: (given[0] * 2,))
    return model


def backward_hook() -> nn.Module:
    model = dense()
    model[2].register_full_backward_hook(lambda layer, of_inputs, of_outputs: (of_inputs[0] * 2,))
    return model


def backward_pre_hook() -> nn.Module:
    model = dense()
    model[2].register_full_backward_pre_hook(lambda layer, of_outputs: (of_outputs[0] * 2,))
    return model


def weight_norm() -> nn.Module:
    model = dense()
    parametrizations.weight_norm(model[0])
    return model


def weight_norm_by_a_hook() -> nn.Module:
    model = dense()
    nn.utils.weight_norm(model[0])
    return model


class Between(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.function, self.last = nn.Linear(8, 6), function, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.function(self.first(x)))
        return out


def batchnorm_by_hand(h: Tensor) -> Tensor:
    return ((h - h.mean(0)) / (h.var(0) + 1e-5).sqrt()).tanh()


def batchnorm_by_hand_net() -> nn.Module:
    return Between(batchnorm_by_hand)


def batchnorm_function() -> nn.Module:
    return Between(lambda h: functional.batch_norm(h, None, None, training=True).tanh())


def attention_over_the_batch() -> nn.Module:
    return Between(lambda h: (h @ h.T / 4).softmax(1) @ h)


def number_of_samples() -> nn.Module:
    return Between(lambda h: h.tanh() * (10 / h.size(0)))


def batchnorm() -> nn.Module:
    return dense(nn.BatchNorm1d(6), nn.Softsign())


def batchnorm_of_the_kernels() -> nn.Module:
    return dense(nn.BatchNorm1d(6), nn.ReLU())


def under_two_names() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(8, 3))


class Thrice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8)] * 3)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        out: Tensor = self.last(x)
        return out


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3))
    model[2].weight = model[0].weight
    return model


def frozen() -> nn.Module:
    model = dense()
    model[0].weight.requires_grad_(False)
    return model


def buffer_that_is_not_saved() -> nn.Module:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = dense()
            self.register_buffer("mask", torch.arange(8.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layers(x * self.mask)
            return out

    return Masked()


def of_another_layout() -> nn.Module:
    model = dense()
    model[0].weight = nn.Parameter(torch.randn(8, 6).T)
    return model


def with_an_empty_parameter() -> nn.Module:
    model = Between(torch.tanh)
    model.none = nn.Parameter(torch.empty(0))
    model.function = lambda h: h + model.none.sum()
    return model


def of_mixed_types() -> nn.Module:
    model = dense().half()
    model[0].double()
    return model


def off_when_used() -> nn.Module:
    return Between(lambda h: functional.dropout(h, 0.3))


def keeping_activations() -> nn.Module:
    class Keeping(Between):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.first(x)
            out: Tensor = self.last(self.kept.tanh())
            return out

    return Keeping(torch.tanh)


MODELS: list[Callable[[], nn.Module]] = [
    *(dense, normalised, residual, own_forward, own_forward_of_a_layer, forward_hook),
    *(forward_pre_hook, backward_hook, backward_pre_hook, weight_norm, weight_norm_by_a_hook),
    *(batchnorm_by_hand_net, batchnorm_function, attention_over_the_batch, number_of_samples),
    *(batchnorm, batchnorm_of_the_kernels, under_two_names, Thrice, tied, frozen),
    *(buffer_that_is_not_saved, of_another_layout, with_an_empty_parameter, of_mixed_types),
    *(off_when_used, keeping_activations),
]


def part(batch: Batch, rows: Sequence[int]) -> Batch:
    """What a worker has that hosts some of the agents."""
    some = [values[list(rows)] for values in batch[:3]]
    sizes, agents = ([each[row] for row in rows] for each in (batch.sizes, batch.agents))
    return Batch(some[0], some[1], some[2], tuple(sizes), tuple(agents), 0)


def fitted(model: nn.Module, dtype: torch.dtype = torch.float32) -> tuple[Task, Batch]:
    task, batch = Task(model, dtype=dtype), make_batch((8,), SIZES, classes=3)
    inputs, weights = batch.inputs.to(dtype), batch.weights.to(dtype)
    batch = batch._replace(inputs=inputs, weights=weights)
    return tried(task, "m", batch.inputs[0, :4], batch.targets[0, :4], 3), batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_auto_computes_what_the_loop_does(
    make: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    """On one worker and on three."""
    torch.manual_seed(0)
    task, batch = fitted(make(), dtype)
    x_AD = task.start() + 0.1 * torch.randn(5, task.size).to(dtype)
    expected_loss_A, expected_AD = LoopEngine(task).gradients(x_AD, batch, range(5), range(5))
    near = {"rtol": 1e-4, "atol": 1e-5 if dtype == torch.float32 else 1e-9}
    for hosted in ([[0, 1, 2, 3, 4]], [[0, 1], [2, 3], [4]]):
        name = choose.fastest(task, part(batch, hosted[0]))
        for rows in hosted:
            own = part(batch, rows)
            loss_A, g_AD = choose.build(name, task).gradients(
                x_AD[rows], own, range(len(rows)), rows
            )
            torch.testing.assert_close(loss_A, expected_loss_A[rows], **near)  # type: ignore[arg-type]
            torch.testing.assert_close(g_AD, expected_AD[rows], **near)  # type: ignore[arg-type]
    # And the model is left as a model, of which a copy can be made.
    answers = task.module(torch.cat([x_AD[0], task.layout.start(x_AD[0])]))(batch.inputs[0])
    assert answers.shape == (16, 3)


@pytest.mark.parametrize(
    "make",
    [
        *(normalised, residual, own_forward, own_forward_of_a_layer, forward_hook, tied),
        *(forward_pre_hook, backward_hook, backward_pre_hook, weight_norm, under_two_names),
    ],
    ids=lambda make: make.__name__,
)
def test_dense_layers_are_stacked_only_if_they_are_all(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(BadValue, match=r"engine: 'stacked' is not valid \(.*\); valid: loop, vmap"):
        StackedEngine(Task(make()))


class Doubling(LoopEngine):
    """An engine that is wrong in one respect."""

    def __init__(self, task: Task, what: str) -> None:
        super().__init__(task)
        self.what = what

    def gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        loss_P, g_PD = super().gradients(x_PD, batch, rows, owners)
        for p, row in enumerate(rows):
            short = self.what == "short" and batch.sizes[row] < max(batch.sizes)
            cross = self.what == "cross" and owners[p] != batch.agents[row]
            if short or cross or self.what == "slightly":
                g_PD[p] *= 1.001
        return loss_P, g_PD

    def moved(self, x_PD: Tensor, b_PS: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        return super().moved(x_PD, b_PS, batch, rows) * (2 if self.what == "moved" else 1)

    def moments(self, x_PD: Tensor, b_PS: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        return super().moments(x_PD, b_PS, batch, rows) * (2 if self.what == "moments" else 1)

    def predict(self, x_E: Tensor, inputs: Tensor) -> Tensor:
        return super().predict(x_E, inputs) * (2 if self.what == "predict" else 1)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nothing", ""),
        ("slightly", "the gradient of 0.weight"),
        ("short", "the gradient of 0.weight"),
        ("cross", "the gradient of 0.weight"),
        ("moved", "running statistics"),
        ("moments", "what norms see"),
        ("predict", "what the model predicts"),
    ],
)
def test_every_answer_of_an_engine_is_compared(what: str, said: str) -> None:
    task, batch = fitted(batchnorm())
    assert Agreement(task, batch).difference(Doubling(task, what)) == said


@pytest.mark.parametrize("name", ["fused", "stacked", "vmap"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_engines_that_are_right_are_not_declined(name: str, dtype: torch.dtype) -> None:
    if name == "fused" and (dtype == torch.float64 or not kernels.available()):
        pytest.skip("no compiled kernels for this")
    task, batch = fitted(dense(), dtype)
    choose.check(name, task, batch)


@pytest.mark.parametrize("precision", ["full", "bf16"])
def test_rounding_is_no_difference(precision: str) -> None:
    task, batch = Task(dense(), precision=precision), make_batch((8,), SIZES, classes=3)
    assert Agreement(task, batch).difference(choose.build("vmap", task)) == ""
    assert Agreement(task, batch).difference(Doubling(task, "cross")) == (
        "the gradient of 0.weight" if precision == "full" else ""
    )


def test_the_comparison_changes_nothing() -> None:
    task, batch = fitted(dense(nn.Dropout(0.5), nn.BatchNorm1d(6)))
    before = {name: value.clone() for name, value in task.whole.state_dict().items()}
    drawn, inputs = torch.get_rng_state(), batch.inputs.clone()
    choose.fastest(task, batch)
    assert torch.equal(torch.get_rng_state(), drawn) and torch.equal(batch.inputs, inputs)
    assert all(torch.equal(v, before[n]) for n, v in task.whole.state_dict().items())


def test_what_is_declined_is_said(caplog: pytest.LogCaptureFixture) -> None:
    if not kernels.available():
        pytest.skip("no compiled kernels on this machine")
    task, batch = fitted(number_of_samples())
    with caplog.at_level(logging.INFO):
        assert choose.fastest(task, batch) == "vmap"
    why = "the loss would not be what the model's own code gives"
    assert caplog.messages == [f"engine fused is not used: {why}"]
    with pytest.raises(BadValue, match=rf"engine: 'fused' .*\({why}\); valid: loop, auto"):
        choose.check("fused", task, batch)
    assert not (cache_folder() / "engines.json").exists()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex64) @ self.weight).abs()


class Rotating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.register_buffer("turn", torch.polar(torch.ones(3), torch.arange(3.0)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.real(self.layer(x) * self.turn)


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return dense()


def clamped(by: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    class Clamped(Between):
        def forward(self, x: Tensor) -> Tensor:
            by(self.first.weight)
            return super().forward(x)

    return lambda: Clamped(torch.tanh)


def never_compiled() -> nn.Module:
    compiled: nn.Module = torch.compile(dense())  # type: ignore[assignment]
    return compiled


REFUSED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "complex parameter": (Complex, "its weight is complex", "real numbers"),
    "complex buffer": (Rotating, "its turn is complex", "real numbers"),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(3)),
        "its 0.weight has no shape before the first input",
        "a model that has been called once",
    ),
    "scripted": (
        lambda: torch.jit.script(dense()),
        "is scripted",
        "the model as it was before torch.jit.script",
    ),
    "scripted layer": (
        lambda: nn.Sequential(torch.jit.script(nn.Linear(8, 3))),
        "layer 0 (RecursiveScriptModule) is scripted",
        "the model as it was before torch.jit.script",
    ),
    "compiled": (never_compiled, "OptimizedModule", "the model inside, without torch.compile"),
    "in parallel": (
        lambda: nn.DataParallel(dense()),
        "DataParallel",
        "the model inside, without torch.compile or DataParallel",
    ),
    "meta": (on_meta, "its 0.weight has no values", "a model with values"),
    "in place": (
        clamped(lambda weight: weight.data.clamp_(-100, 100)),
        "its code changes its parameters in place (clamp_)",
        "a model that only reads its parameters",
    ),
    "frozen while it computes": (
        clamped(lambda weight: weight.requires_grad_(False)),
        "autograd cannot compute its gradient",
        "a model that can be differentiated",
    ),
    "spectral norm": (
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 3))),
        "training changes its buffer '0.parametrizations.weight.0._u'",
        "running statistics",
    ),
    "a tuple": (lambda: Answering(lambda y: (y,)), "a tuple", "3 scores"),
    "a dictionary": (lambda: Answering(lambda y: {"y": y}), "a dict", "3 scores"),
}


class Answering(nn.Module):
    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.answer = nn.Linear(8, 3), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.layer(x))


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_what_no_engine_can_train_is_refused(name: str) -> None:
    make, because, remedy = REFUSED[name]
    with pytest.raises(BadValue) as error:
        fitted(make())
    said = str(error.value)
    assert error.value.field == "model"
    assert because in said and remedy in said.partition("; valid: ")[2]


def test_a_model_that_has_seen_an_input_is_no_longer_lazy() -> None:
    model = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(3))
    model(torch.zeros(1, 8))
    task, batch = fitted(model)
    assert choose.fastest(task, batch) in choose.ENGINES


def one_input_per_agent() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for agent in range(3):
        targets = torch.arange(19 + agent) % 3
        inputs = torch.randn(len(targets), 8, generator=generator) + targets[:, None]
        made.append((inputs, targets))
    return made


@pytest.mark.parametrize("make", [normalised, batchnorm_by_hand_net])
def test_a_run_is_the_same_by_auto_and_by_the_loop(make: Callable[[], nn.Module]) -> None:
    """With short batches, on one worker and on three."""

    def run(engine: str, workers: int = 1) -> parley.Result:
        return parley.train(
            *(make, one_input_per_agent(), "ring", "ngc"), epochs=2, batch=8, dtype="float64",
            engine=engine, workers=workers, progress=False,
        )  # fmt: skip

    expected = run("loop").x_ND
    for workers in (1, 3):
        found = run("auto", workers).x_ND
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
