"""Every operation of the compiled kernels against autograd: one row for each."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from parley.compute import layers
from parley.compute.compiled import FusedEngine, supports
from parley.compute.engine import LoopEngine
from parley.compute.kernels import interface
from parley.compute.operations import OPERATIONS
from parley.compute.reader import Traced
from parley.compute.task import Task
from parley.compute.trial import tried
from parley.models import EvoNorm
from parley.models.blocks import Residual
from tests.compute.test_fused import (
    _built,
    assert_close_gradients,
    assert_same_gradients,
    make_batch,
    moved,
    stages,
    task_of,
)

__all__ = ["_built"]

SHAPE = (4, 9, 11)


class Written(nn.Module):
    """A model in the words of its author: layers, and a function that uses them."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.written = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.written(x, **self.parts)


def written(forward: Callable[..., Tensor], **parts: nn.Module) -> Callable[[], Task]:
    """A convolution, then this, then a linear layer."""

    def make() -> Task:
        torch.manual_seed(0)
        return stages(nn.Conv2d(4, 6, 3, padding=1), Written(forward, **parts), shape=SHAPE)

    return make


def layer(*made: Any) -> Callable[[], Task]:
    def make() -> Task:
        torch.manual_seed(0)
        return stages(nn.Conv2d(4, 6, 3, padding=1), *made, shape=SHAPE)

    return make


def conv(*arguments: Any, **options: Any) -> Callable[[], Task]:
    """Between two others, so that the gradient by its input is wanted too."""

    def make() -> Task:
        torch.manual_seed(0)
        first = nn.Conv2d(4, arguments[0], 1)
        return stages(first, nn.Conv2d(*arguments, **options), nn.ReLU(), shape=SHAPE)

    return make


ROWS: dict[str, Callable[[], Task]] = {
    "convolution": conv(5, 7, 3),
    "convolution, stride": conv(5, 7, 3, stride=2, padding=1),
    "convolution, strides": conv(5, 7, (3, 2), stride=(3, 2), padding=(2, 1)),
    "convolution, dilation": conv(5, 7, 3, dilation=2, padding=2),
    "convolution, all": conv(6, 4, 3, stride=2, dilation=2, padding=3, groups=2, bias=False),
    "convolution, groups": conv(6, 9, 3, padding=1, groups=3),
    "convolution, many channels": conv(40, 70, 3, stride=2, padding=1),
    "convolution, large padding": conv(3, 4, 2, padding=3),
    "convolution, 7 x 7": conv(3, 8, 7, stride=2, padding=3),
    "convolution, tall": conv(3, 8, (5, 1), padding=(2, 0)),
    "convolution, as many rows as before": conv(5, 7, (3, 5), padding="same", dilation=(2, 1)),
    "convolution, no padding by name": conv(5, 7, 3, padding="valid"),
    "pointwise": conv(13, 21, 1),
    "pointwise, stride": conv(13, 21, 1, stride=2, bias=False),
    "depthwise": conv(6, 6, 3, padding=1, groups=6),
    "depthwise, stride": conv(6, 6, 3, stride=2, padding=1, groups=6, bias=False),
    "depthwise, 5 x 5": conv(6, 6, 5, padding=2, groups=6),
    "depthwise, dilation": conv(6, 6, 3, padding=2, dilation=2, groups=6),
    "depthwise, no padding": conv(6, 6, (2, 3), groups=6),
    "depthwise, multiplier": conv(6, 12, 3, padding=1, groups=6),
    "Winograd": conv(16, 24, 3, padding=1),
    "Winograd, no padding": conv(9, 17, 3, bias=False),
    "Winograd, padding 2": conv(16, 16, 3, padding=2),
    "linear": lambda: task_of("mlp", (1, 5, 7)),
    "EvoNorm": layer(EvoNorm(6, 3), nn.Conv2d(6, 3, 1)),
    "EvoNorm S0": layer(EvoNorm(6, 2, "s0"), nn.Conv2d(6, 3, 1)),
    "GroupNorm": layer(nn.GroupNorm(2, 6), nn.Conv2d(6, 3, 1)),
    "GroupNorm, not affine": layer(nn.GroupNorm(3, 6, affine=False), nn.Conv2d(6, 3, 1)),
    "LayerNorm": layer(nn.LayerNorm((6, 9, 11)), nn.Conv2d(6, 3, 1)),
    "LayerNorm of features": layer(nn.Flatten(), nn.Linear(594, 13), nn.LayerNorm(13)),
    "BatchNorm": layer(nn.BatchNorm2d(6), nn.Conv2d(6, 3, 1)),
    "BatchNorm, not affine": layer(nn.BatchNorm2d(6, affine=False), nn.Conv2d(6, 3, 1)),
    "BatchNorm of features": layer(nn.Flatten(), nn.Linear(594, 13), nn.BatchNorm1d(13)),
    "BatchNorm twice read": written(lambda x, a: functional.gelu(a(x)) + x, a=nn.BatchNorm2d(6)),
    "ReLU": layer(nn.ReLU()),
    "ReLU6": layer(nn.ReLU6()),
    "LeakyReLU": layer(nn.LeakyReLU(0.2)),
    "ELU": layer(nn.ELU(0.7)),
    "GELU": layer(nn.GELU()),
    "GELU tanh": layer(nn.GELU("tanh")),
    "SiLU": layer(nn.SiLU()),
    "Tanh": layer(nn.Tanh()),
    "Sigmoid": layer(nn.Sigmoid()),
    "Hardswish": layer(nn.Hardswish()),
    "Hardsigmoid": layer(nn.Hardsigmoid()),
    "max-pool": layer(nn.MaxPool2d(3, stride=2, padding=1)),
    "max-pool, ceiling": layer(nn.MaxPool2d(2, ceil_mode=True)),
    "max-pool, dilation": layer(nn.MaxPool2d(2, stride=1, dilation=3)),
    "max-pool 2 x 2": layer(nn.MaxPool2d(2)),
    "max-pool of the input": lambda: stages(nn.MaxPool2d(2), nn.Conv2d(4, 3, 1), shape=SHAPE),
    "mean pool": layer(nn.AvgPool2d(3, stride=2, padding=1)),
    "mean pool, no padding counted": layer(nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "mean pool, ceiling": layer(nn.AvgPool2d(2, ceil_mode=True)),
    "mean pool, divisor": layer(nn.AvgPool2d(2, divisor_override=3)),
    "adaptive mean pool": layer(nn.AdaptiveAvgPool2d((4, 3))),
    "global mean pool": layer(nn.AdaptiveAvgPool2d(1)),
    "adaptive max-pool": layer(nn.AdaptiveMaxPool2d((4, 3))),
    "mean over pixels": written(lambda x: x.mean((2, 3))),
    "mean over pixels, axes kept": written(lambda x: torch.mean(x, [-1, -2], keepdim=True)),
    "addition": written(lambda x, a: a(x) + x, a=nn.Conv2d(6, 6, 3, padding=1)),
    "addition in place": written(lambda x, a: functional.relu(a(x).add_(x)), a=nn.Conv2d(6, 6, 1)),
    "addition to itself": written(lambda x: x + x),
    "one used three times": written(
        lambda x, a: a(x) + x + functional.gelu(x), a=nn.Conv2d(6, 6, 1)
    ),
    "product": written(lambda x, a: a(x) * x, a=nn.Conv2d(6, 6, 1)),
    "gates of channels": written(
        lambda x, a: torch.sigmoid(a(functional.adaptive_avg_pool2d(x, 1))) * x,
        a=nn.Conv2d(6, 6, 1),
    ),
    "difference": written(lambda x, a: x - a(x), a=nn.Conv2d(6, 6, 3, padding=1)),
    "numbers": written(lambda x: 1 - (2 * x + 0.5) / 3),
    "concatenation": written(
        lambda x, a, b: torch.cat([a(x), x, b(x)], 1), a=nn.Conv2d(6, 2, 1), b=nn.Conv2d(6, 3, 1)
    ),
    "functions": written(
        lambda x: functional.max_pool2d(functional.leaky_relu(functional.silu(x), 0.3), 2)
    ),
    "flatten": written(lambda x, a: a(torch.flatten(x, 1)), a=nn.Linear(594, 5)),
    "view": written(lambda x, a: a(x.view(x.size(0), -1)), a=nn.Linear(594, 5)),
    "reshape to maps": written(lambda x, a: a(x.reshape(-1, 11, 6, 9)), a=nn.Conv2d(11, 3, 3)),
    "squeezed": written(lambda x, a: a(x.mean((2, 3), True).squeeze((2, 3))), a=nn.Linear(6, 5)),
    "sizes": written(lambda x: functional.avg_pool2d(x, x.shape[2:])),
    "dropout": layer(nn.Dropout(0.3), nn.Conv2d(6, 5, 3), nn.Dropout(0.5)),
    "dropout of channels": layer(nn.Dropout2d(0.4), nn.Conv2d(6, 5, 3), nn.Flatten(), nn.Dropout()),
    "dropout of nothing and of all": layer(
        nn.Dropout(0.0), Written(lambda x, a: x + a(x), a=nn.Dropout(1.0))
    ),
    "a layer used twice": written(lambda x, a: a(functional.relu(a(x))), a=nn.Conv2d(6, 6, 1)),
}


@pytest.mark.parametrize("name", ROWS)
def test_operations(name: str) -> None:
    task = ROWS[name]()
    shape = (1, 5, 7) if name == "linear" else SHAPE
    assert supports(task, shape) == ""
    assert_same_gradients(task, make_batch(shape, (6, 19)))


FROZEN = {
    "the first layer": (lambda: task_of("resnet20", (3, 16, 16)), ("0.",)),
    "all weights but the last": (lambda: task_of("lenet5", (1, 12, 12)), ("0.", "3.", "7.")),
    "biases": (ROWS["convolution"], ("bias",)),
    "the weights of a convolution": (ROWS["convolution, stride"], ("1.weight",)),
    "the weights of a pointwise one": (ROWS["pointwise"], ("1.weight",)),
    "the weights of a depthwise one": (ROWS["depthwise"], ("1.weight",)),
    "the weights of a Winograd one": (ROWS["Winograd"], ("1.weight", "1.bias")),
    "norms": (ROWS["EvoNorm S0"], ("1.gamma", "1.v")),
    "all of a norm": (ROWS["LayerNorm"], ("1.weight", "1.bias")),
    "weights of BatchNorm": (ROWS["BatchNorm"], ("1.weight",)),
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_parameters(name: str) -> None:
    make, parts = FROZEN[name]
    model, before = make().whole, make().size
    for path, parameter in model.named_parameters():
        if any(part in path for part in parts):
            nn.init.normal_(parameter.requires_grad_(False), 0.1, 0.2)
    task = Task(model)
    shape = {"the first layer": (3, 16, 16), "all weights but the last": (1, 12, 12)}
    assert task.size < before
    assert_same_gradients(task, make_batch(shape.get(name, SHAPE), (6, 19)))


def test_dropout_is_off_in_use_and_differs_between_owners() -> None:
    task = ROWS["dropout"]()
    engine, batch, x_D = FusedEngine(task, seed=4), make_batch(SHAPE, (6, 19)), task.start()
    torch.testing.assert_close(
        engine.predict(x_D, batch.inputs[0]),
        task.predict(x_D, batch.inputs[0]),
        rtol=1e-4,
        atol=1e-5,
    )
    g_PD = engine.gradients(x_D.expand(3, -1), batch, [0, 0, 0], [0, 1, 0])[1]
    assert torch.equal(g_PD[0], g_PD[2]) and not torch.allclose(g_PD[0], g_PD[1])


def test_a_norm_far_from_zero_is_as_precise_as_torch() -> None:
    """Where the mean is a thousand times the deviation, a rounded mean would show."""
    worst = []
    for seed in range(6):
        torch.manual_seed(seed)
        model = nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.GELU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
        )
        nn.init.constant_(model[0].bias, 1000)  # type: ignore[arg-type]
        exact, batch = Task(copy.deepcopy(model), dtype=torch.float64), make_batch((3, 9, 9), (33,))
        doubled = batch._replace(inputs=batch.inputs.double(), weights=batch.weights.double())
        x_PD = exact.start()[None]
        _, expected = LoopEngine(exact).gradients(x_PD, doubled, [0], [0])
        task = Task(model)
        errors = [
            float((engine(task).gradients(x_PD.float(), batch, [0], [0])[1] - expected).norm())
            for engine in (FusedEngine, LoopEngine)
        ]
        worst.append(errors)
    fused, loop = (max(errors) for errors in zip(*worst, strict=True))
    assert fused < 1.5 * loop


def test_dropout_by_functions() -> None:
    def drops(x: Tensor, a: nn.Module) -> Tensor:
        x = a(functional.dropout(x, 0.3, a.training))
        return functional.dropout2d(functional.dropout(x, 0.5, False), 0.2, training=a.training)

    task, batch = written(drops, a=nn.Conv2d(6, 5, 3))(), make_batch(SHAPE, (6, 19))
    assert not task.random  # no layer says so
    task = tried(task, "drops", batch.inputs[0, :4], batch.targets[0, :4], 5)
    assert task.random
    assert supports(task, SHAPE) == ""
    assert_same_gradients(task, batch)
    x_D, inputs = task.start(), batch.inputs[0]
    found, expected = FusedEngine(task).predict(x_D, inputs), task.predict(x_D, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def with_batchnorm() -> Task:
    torch.manual_seed(0)
    return stages(
        *(nn.Conv2d(4, 9, 3, padding=1, bias=False), nn.BatchNorm2d(9, momentum=None), nn.ReLU()),
        *(nn.Conv2d(9, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=0.3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(792, 7), nn.BatchNorm1d(7)),
        shape=SHAPE,
    )


def test_a_batch_of_any_size_is_one_chunk_for_batchnorm() -> None:
    task, batch = with_batchnorm(), make_batch(SHAPE, (2, 33, 97, 16))
    assert_same_gradients(task, batch)
    x_PD, rows = moved(task, 4), range(4)
    together = FusedEngine(task, threads=2).gradients(x_PD, batch, rows, rows)[1]
    for row, size in enumerate(batch.sizes):
        alone = batch._replace(
            inputs=batch.inputs[row, None, :size], targets=batch.targets[row, None, :size],
            sizes=(size,), agents=(row,),
        )  # fmt: skip
        g_PD = FusedEngine(task).gradients(x_PD[row, None], alone, [0], [row])[1]
        assert torch.equal(g_PD[0], together[row])
    with pytest.raises(ValueError, match="a batch of one sample"):
        FusedEngine(task).gradients(x_PD[:1], make_batch(SHAPE, (1,)), [0], [0])


def test_statistics_are_those_that_torch_follows_and_are_used_as_torch_does() -> None:
    task, batch, rows = with_batchnorm(), make_batch(SHAPE, (5, 33)), [0, 1]
    loop, fused, x_PD = LoopEngine(task), FusedEngine(task), moved(task, 2)
    b_PS = task.layout.start(x_PD).expand(2, -1) + 0.5
    expected_PS = loop.moved(x_PD, b_PS, batch, rows)
    assert (expected_PS - b_PS).abs().max() > 0.5
    found_PS = fused.moved(x_PD, b_PS, batch, rows)
    torch.testing.assert_close(found_PS, expected_PS, rtol=1e-5, atol=1e-6)
    of_batch, exactly = (engine.moments(x_PD, b_PS, batch, rows) for engine in (fused, loop))
    for moments in task.layout.moments:
        for part in moments:
            torch.testing.assert_close(of_batch[:, part], exactly[:, part], rtol=1e-5, atol=1e-6)
    models_PE = torch.cat([x_PD, expected_PS], 1)
    answers = torch.stack([task.predict(x_E, batch.inputs[1]) for x_E in models_PE])
    found = fused.predict_each(list(models_PE), batch.inputs[1])
    torch.testing.assert_close(found, answers, rtol=1e-4, atol=1e-5)
    # Without running statistics, those of the inputs, by torch.
    assert torch.equal(
        fused.predict(x_PD[0], batch.inputs[1]), loop.predict(x_PD[0], batch.inputs[1])
    )


def test_statistics_that_a_gradient_has_seen_are_not_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, batch, rows = with_batchnorm(), make_batch(SHAPE, (5, 33)), [0, 1]
    x_PD, passes = moved(task, 2), []
    b_PS = task.layout.start(x_PD).expand(2, -1)
    expected_PS = FusedEngine(task).moved(x_PD, b_PS, batch, rows)
    engine = FusedEngine(task)
    library = engine._library

    class Watched:
        def __getattr__(self, name: str) -> Any:
            passes.append(name)
            return getattr(library, name)

    monkeypatch.setattr(engine, "_library", Watched())
    engine.gradients(x_PD, batch, rows, rows)
    engine.gradients(x_PD + 1, batch, rows, [1, 0])  # neighbours' models leave no trace
    known = x_PD.clone()
    x_PD += 0.1  # a step in place
    assert torch.equal(engine.moved(known, b_PS, batch, rows), expected_PS)
    assert "parley_statistics" not in passes
    others_PS = engine.moved(x_PD, b_PS, batch, rows)
    assert "parley_statistics" in passes
    assert torch.equal(others_PS, FusedEngine(task).moved(x_PD, b_PS, batch, rows))


def test_a_norm_with_one_set_of_statistics_used_twice_is_left_to_torch() -> None:
    task = written(lambda x, a: a(functional.relu(a(x))), a=nn.BatchNorm2d(6))()
    assert "layer 1.parts.a (BatchNorm2d) is used twice" in supports(task, SHAPE)


def test_what_torch_would_broadcast_over_samples_is_left_to_torch() -> None:
    task = Task(Written(lambda x, a: a(x).flatten() * a(x), a=nn.Linear(3, 1)))
    assert "the model: mul() has operands" in supports(task, (3,))


def test_every_operation_has_a_row() -> None:
    used: set[str] = set()
    activations: set[int] = set()
    for name, make in ROWS.items():
        network = Traced(make().model).read((1, 5, 7) if name == "linear" else SHAPE)
        used |= {step.operation for step in network.steps}
        activations |= {s.options.curve for s in network.steps if s.operation == "activation"}
    assert used == {*OPERATIONS} == {*interface.OPERATIONS}
    assert activations == {*interface.Curve}


class Block(nn.Module):
    """As users write them: GroupNorm, GELU, a stride, a projection where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(4, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.again = nn.GroupNorm(4, outputs)
        self.project = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.norm(self.first(x)))
        y = self.again(self.second(y))
        return functional.gelu(y + (x if self.project is None else self.project(x)))


def own_network() -> Task:
    torch.manual_seed(0)
    blocks = [Block(8, 8, 1), Block(8, 16, 2), Block(16, 16, 1)]
    return Task(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(16, 10),
        )
    )  # fmt: skip


NETWORKS = {
    "ResNet-20": lambda: task_of("resnet20", (3, 16, 16)),
    "ResNet-20 S0": lambda: task_of("resnet20", (3, 16, 16), evonorm="s0"),
    "MobileNet-V2": lambda: task_of("mobilenetv2", (3, 16, 16)),
    "own": own_network,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_branches(name: str) -> None:
    task = NETWORKS[name]()
    assert supports(task, (3, 16, 16)) == ""
    assert_same_gradients(task, make_batch((3, 16, 16), (5,)))


def test_gelu_everywhere() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.GELU(), nn.Linear(1, 1))
    x_D = torch.tensor([1.0, 0.0, 1.0, 0.0])
    x = torch.cat([torch.linspace(-9, 9, 2001), torch.tensor([-1e6, 1e6])])
    found = FusedEngine(Task(model, nn.MSELoss(reduction="none"))).predict(x_D, x[:, None])[:, 0]
    torch.testing.assert_close(found.double(), functional.gelu(x.double()), rtol=5e-7, atol=1e-6)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, int, int]]:
    """Convolutions of random shapes, each with a norm or an activation, some with a branch."""
    channels = draw(st.integers(1, 5))
    shape = (channels, draw(st.integers(5, 13)), draw(st.integers(5, 13)))
    made: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 3))):
        kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 2))
        groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
        outputs = groups * draw(st.integers(1, 12))
        padding, dilation = draw(st.integers(0, 3)), draw(st.integers(1, 2))
        made.append(
            nn.Conv2d(
                channels, outputs, kernel, stride, padding, dilation, groups, draw(st.booleans())
            )
        )
        channels = outputs
        after: nn.Module = draw(st.sampled_from(AFTER))(channels)
        made.append(Residual(after, nn.Identity()) if draw(st.booleans()) else after)
    return nn.Sequential(
        *made, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 4)
    ), shape


AFTER: list[Callable[[int], nn.Module]] = [
    lambda channels: nn.GELU(),
    lambda channels: nn.SiLU(),
    lambda channels: nn.GroupNorm(1, channels),
    lambda channels: nn.BatchNorm2d(channels),
    lambda channels: EvoNorm(channels, channels, "s0"),
    lambda channels: nn.MaxPool2d(3, stride=1, padding=1),
    lambda channels: nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(graphs(), st.lists(st.integers(1, 20), min_size=1, max_size=2))
def test_random_graphs(made: tuple[nn.Module, tuple[int, int, int]], sizes: list[int]) -> None:
    model, shape = made
    try:
        model(torch.zeros(2, *shape))
    except RuntimeError:  # a kernel larger than what is left of the map
        return
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    task = Task(model)
    assert supports(task, shape) == ""
    if task.layout.size:  # one sample may be one value, which has no variance
        sizes = [size + 1 for size in sizes]
    assert_close_gradients(task, make_batch(shape, sizes, classes=4))


def test_the_tables_know_what_they_list() -> None:
    assert all(callable(reader) for reader in (*layers.LAYERS.values(), *layers.METHODS.values()))
