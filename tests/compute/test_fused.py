"""The compiled engine answers what autograd answers, wherever it says that it can."""

import copy
import re
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from parley import models
from parley.compute import choose as engines
from parley.compute import kernels
from parley.compute.compiled import FusedEngine, supports
from parley.compute.engine import LoopEngine, Pairs, Share
from parley.compute.portions import by_target
from parley.compute.task import Loss, Task
from parley.compute.threads import Crew
from parley.data import Batch
from parley.errors import BadValue
from parley.models import EvoNorm


@pytest.fixture(scope="module", autouse=True)
def _built(cache_of_all):
    """One build for all tests of this file: the cache of a test lives as long as the session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLEY_CACHE", str(cache_of_all))
        why = kernels.reason()
        if "no C compiler" in why or "is off" in why:
            pytest.skip(why)
        assert not why  # a compiler that is there must be able to build them


def make_batch(
    shape: Sequence[int], sizes: Sequence[int] = (32,), classes: int = 10, seed: int = 0
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    agents, widest = len(sizes), max(sizes)
    inputs = torch.randn(agents, widest, *shape, generator=generator)
    targets = torch.randint(0, classes, (agents, widest), generator=generator)
    weights = torch.stack([(torch.arange(widest) < n) / n for n in sizes])
    return Batch(inputs, targets, weights, tuple(sizes), tuple(range(agents)), 0)


def task_of(name: str, shape: tuple[int, ...], **options: str) -> Task:
    torch.manual_seed(0)
    return Task(models.build(name, shape, 10, **options))


def moved(task: Task, count: int, seed: int = 1) -> Tensor:
    """Models near the start, none of them with a zero bias or a unit scale."""
    generator = torch.Generator().manual_seed(seed)
    return task.start() + 0.05 * torch.randn(count, task.size, generator=generator)


def assert_same_gradients(task: Task, batch: Batch, rows: Sequence[int] | None = None) -> None:
    """Not further from the exact gradient than rounding takes it, or than it takes autograd."""
    rows = list(range(len(batch.sizes))) if rows is None else rows
    x_PD = moved(task, len(rows))
    loss_P, g_PD = LoopEngine(task).gradients(x_PD, batch, rows, rows)
    fused_P, fused_PD = FusedEngine(task).gradients(x_PD, batch, rows, rows)
    assert fused_PD.shape == g_PD.shape
    torch.testing.assert_close(fused_P, loss_P, rtol=1e-5, atol=1e-6)
    exactly = each_double(task.loss)
    double = Task(copy.deepcopy(task.whole), exactly, torch.float64, goal=task.goal)
    targets = batch.targets.double() if batch.targets.is_floating_point() else batch.targets
    exact = batch._replace(
        inputs=batch.inputs.double(), weights=batch.weights.double(), targets=targets
    )
    _, exact_PD = LoopEngine(double).gradients(x_PD.double(), exact, rows, rows)
    for fused_D, g_D, exact_D in zip(fused_PD, g_PD, exact_PD, strict=True):
        unavoidable = float((g_D - exact_D).abs().max())
        # A processor or compiler that does not fuse products and sums rounds elsewhere.
        atol = 10 * unavoidable + 1e-5 * float(exact_D.abs().max())
        torch.testing.assert_close(fused_D.double(), exact_D, rtol=1e-4, atol=atol)


def assert_close_gradients(task: Task, batch: Batch) -> None:
    """For models drawn at random, some of which are ill-conditioned: a nearly constant map, divided
    by its deviation, makes much of rounding."""
    rows = list(range(len(batch.sizes)))
    x_PD = moved(task, len(rows))
    _, g_PD = LoopEngine(task).gradients(x_PD, batch, rows, rows)
    _, fused_PD = FusedEngine(task).gradients(x_PD, batch, rows, rows)
    assert float((fused_PD - g_PD).norm()) <= 5e-3 * float(g_PD.norm())


def each_double(loss: Loss) -> Loss:
    return copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 12, 12), (3, 13, 17), (2, 15, 12)])
def test_lenet5(shape):
    # In none of its windows do the two greatest values differ by rounding only: with some other
    # seeds a pool may rightly choose either, which changes the gradient.
    batch = make_batch(shape, (32, 7), seed=5)
    assert_same_gradients(task_of("lenet5", shape), batch, [1, 0, 0])


@pytest.mark.parametrize("form", ["hard-swish", "s0"])
@pytest.mark.parametrize(("shape", "size"), [((3, 32, 32), 8), ((1, 8, 8), 40), ((3, 11, 9), 17)])
def test_cnn5(shape, size, form):
    assert_same_gradients(task_of("cnn5", shape, evonorm=form), make_batch(shape, (size,)))


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_dense_models(name):
    assert_same_gradients(task_of(name, (1, 5, 7)), make_batch((1, 5, 7), (32, 33)))


@pytest.mark.parametrize("size", [1, 5, 16, 31, 33, 64, 97])
def test_any_batch_size(size):
    assert_same_gradients(task_of("lenet5", (1, 12, 12)), make_batch((1, 12, 12), (size,)))


def test_ragged_batches_use_their_own_samples_only():
    task = task_of("lenet5", (1, 12, 12))
    batch = make_batch((1, 12, 12), (5, 33, 1))
    batch.inputs[0, 5:] = torch.nan
    batch.inputs[2, 1:] = torch.nan
    assert_same_gradients(task, batch, [2, 0, 1, 1, 0, 2])


def stages(*layers: nn.Module, shape: tuple[int, ...] = (2, 9, 11)) -> Task:
    """These layers, and a linear one to finish."""
    torch.manual_seed(0)
    flat = nn.Sequential(*layers, nn.Flatten())
    features = flat(torch.zeros(2, *shape)).shape[1]
    return Task(nn.Sequential(*flat, nn.Linear(features, 10)))


LAYERS = {
    "no padding": lambda: stages(nn.Conv2d(2, 3, 3), nn.ReLU()),
    "padding 1": lambda: stages(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    "padding 2": lambda: stages(nn.Conv2d(2, 7, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
    "even kernel": lambda: stages(nn.Conv2d(2, 4, 4, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    "wide kernel": lambda: stages(nn.Conv2d(2, 4, (3, 7), padding=(0, 3)), nn.ReLU()),
    "kernel of 1": lambda: stages(nn.Conv2d(2, 9, 1), nn.ReLU(), nn.Conv2d(9, 3, 1)),
    "no bias": lambda: stages(nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
    "no activation": lambda: stages(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2)),
    "pool first": lambda: stages(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.ReLU()),
    "ReLU last": lambda: stages(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.ReLU()),
    "norm and bias": lambda: stages(nn.Conv2d(2, 6, 3), EvoNorm(6, groups=2), nn.MaxPool2d(2)),
    "one group": lambda: stages(nn.Conv2d(2, 3, 3), EvoNorm(3, 1, "s0"), nn.Conv2d(3, 3, 3)),
    "nested": lambda: stages(nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()), nn.Conv2d(3, 2, 3)),
    "many channels": lambda: stages(nn.Conv2d(2, 19, 3), nn.ReLU(), nn.Conv2d(19, 13, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_kinds_of_layers(name):
    task = LAYERS[name]()
    assert supports(task) == ""
    assert_same_gradients(task, make_batch((2, 9, 11), (6, 18)))


@st.composite
def sequences(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, int, int]]:
    """Random models that the kernels say they can do, with the shape of their inputs."""
    channels, height, width = draw(st.tuples(*[st.integers(1, 3)], *[st.integers(3, 12)] * 2))
    shape = (channels, height, width)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(0, 3))):
        kernel = draw(st.integers(1, min(5, height, width)))
        padding = draw(st.integers(0, kernel - 1))
        groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        outputs = groups * per_group
        bias = draw(st.booleans())
        layers.append(nn.Conv2d(channels, outputs, kernel, padding=padding, bias=bias))
        channels = outputs
        height, width = height + 2 * padding - kernel + 1, width + 2 * padding - kernel + 1
        match draw(st.sampled_from(["relu", "hard-swish", "s0", "none"])):
            case "relu":
                layers.append(nn.ReLU())
            case "hard-swish":
                layers.append(EvoNorm(channels, groups, "hard-swish"))
            case "s0":
                layers.append(EvoNorm(channels, groups, "s0"))
        if min(height, width) >= 2 and draw(st.booleans()):
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    features = channels * height * width
    for _ in range(draw(st.integers(0, 2))):
        outputs = draw(st.integers(1, 20))
        layers += [nn.Linear(features, outputs, bias=draw(st.booleans())), nn.ReLU()]
        features = outputs
    layers.append(nn.Linear(features, 4, bias=draw(st.booleans())))
    return nn.Sequential(*layers), shape


# The same examples each time: now and then rounding decides which of two nearly equal values a
# pool takes, and then two correct gradients differ.
@settings(max_examples=60, deadline=None, derandomize=True)
@given(sequences(), st.lists(st.integers(1, 20), min_size=1, max_size=2))
def test_random_sequences(made, sizes):
    model, shape = made
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    task = Task(model)
    assert supports(task) == ""
    assert_close_gradients(task, make_batch(shape, sizes, classes=4))


def test_ties_and_zeros_go_where_autograd_sends_them():
    task = stages(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    batch = make_batch((2, 9, 11), (20,))
    batch = batch._replace(inputs=batch.inputs.sign())  # many equal values in a window
    with torch.no_grad():
        weights = task.start().round()
    rows = [0]
    loss_P, g_PD = LoopEngine(task).gradients(weights[None], batch, rows, rows)
    fused_P, fused_PD = FusedEngine(task).gradients(weights[None], batch, rows, rows)
    torch.testing.assert_close(fused_P, loss_P)
    torch.testing.assert_close(fused_PD, g_PD, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["lenet5", "cnn5", "mlp"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_a_number_reaches_the_loss(name, value):
    task = task_of(name, (1, 12, 12))
    batch = make_batch((1, 12, 12), (20, 20))
    batch.inputs[1, 17, 0, 6, 6] = value
    x_PD = moved(task, 2)
    loss_P, _ = FusedEngine(task).gradients(x_PD, batch, [0, 1], [0, 1])
    expected, _ = LoopEngine(task).gradients(x_PD, batch, [0, 1], [0, 1])
    assert loss_P.isfinite().tolist() == expected.isfinite().tolist() == [True, False]
    x_PD[0, 3] = torch.nan  # and from a model, whose NaN must not stay in the workspace
    engine = FusedEngine(task)
    assert engine.gradients(x_PD, batch, [0, 0], [0, 1])[0].isfinite().tolist() == [False, True]


def test_nothing_stays_from_one_call_to_the_next():
    task = task_of("lenet5", (1, 12, 12))
    small, large = (
        make_batch((1, 12, 12), (3, 9), seed=2),
        make_batch((1, 12, 12), (70, 33), seed=3),
    )
    x_PD = moved(task, 3)
    rows = [1, 0, 1]
    engine = FusedEngine(task)
    for batch in (small, large, small, small._replace(inputs=small.inputs + 1), large):
        loss_P, g_PD = engine.gradients(x_PD, batch, rows, rows)
        fresh_P, fresh_PD = FusedEngine(task).gradients(x_PD, batch, rows, rows)
        assert loss_P.equal(fresh_P) and g_PD.equal(fresh_PD)
    kept = g_PD.clone()
    engine.gradients(x_PD * 2, small, rows, rows)
    assert g_PD.equal(kept)


def test_inputs_that_change_in_place_are_read_again():
    task = task_of("lenet5", (1, 12, 12))
    batch = make_batch((1, 12, 12), (4,))
    engine = FusedEngine(task)
    x_PD = moved(task, 1)
    before, _ = engine.gradients(x_PD, batch, [0], [0])
    batch.inputs.mul_(2)
    after, _ = engine.gradients(x_PD, batch, [0], [0])
    assert after.equal(FusedEngine(task).gradients(x_PD, batch, [0], [0])[0])
    assert not after.equal(before)


def test_views_and_repeated_rows():
    task = task_of("lenet5", (1, 12, 12))
    batch = make_batch((1, 12, 12), (4, 4))
    batch = batch._replace(inputs=batch.inputs.transpose(0, 1).contiguous().transpose(0, 1))
    engine = FusedEngine(task)
    x_D = moved(task, 1)[0]
    one, g_one = engine.gradients(x_D[None].clone(), batch, [1], [0])
    for x_PD in (x_D.expand(2, -1), x_D[:, None].expand(-1, 2).contiguous().T):
        both, g_both = engine.gradients(x_PD, batch, [1, 1], [0, 1])
        assert both.tolist() == [one.item()] * 2
        assert g_both[0].equal(g_one[0]) and g_both[1].equal(g_one[0])


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (1, 28, 28)), ("cnn5", (3, 9, 8))])
@pytest.mark.parametrize("n", [1, 32, 70])
def test_predictions(name, shape, n):
    task = task_of(name, shape)
    x_D = moved(task, 1)[0]
    inputs = torch.randn(n, *shape)
    with torch.no_grad():
        expected = task.outputs(x_D, inputs)
    logits = FusedEngine(task).predict(x_D, inputs)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_targets_outside_the_classes_are_refused():
    task = task_of("mlp", (1, 5, 7))
    batch = make_batch((1, 5, 7), (4,), classes=11)
    batch.targets[0, 0] = 10
    with pytest.raises(BadValue, match="targets from 0 to 9"):
        FusedEngine(task).gradients(moved(task, 1), batch, [0], [0])


def test_inputs_of_the_wrong_shape_are_refused():
    engine = FusedEngine(task_of("lenet5", (1, 12, 12)))
    with pytest.raises(BadValue, match=r"do not fit the model: layer 0 \(Conv2d\)"):
        engine.predict(engine.task.start(), torch.zeros(1, 2, 12, 12))
    with pytest.raises(BadValue, match=r"\[1, 3, 3\] do not fit the model: layer 3 \(Conv2d\)"):
        engine.predict(engine.task.start(), torch.zeros(1, 1, 3, 3))


class Branching(nn.Module):
    """What it does depends on its input's values."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def hooked() -> Task:
    task = stages(nn.Conv2d(2, 2, 3))
    task.model[0].register_forward_hook(lambda *_: None)
    return task


REFUSED = {
    "padding mode": (
        lambda: stages(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
        "layer 0 (Conv2d) does not pad",
    ),
    "unknown layer": (
        lambda: stages(nn.Conv2d(2, 2, 3), nn.Sequential(nn.Identity(), nn.Softplus())),
        "layer 1.1 (Softplus)",
    ),
    "control flow": (
        lambda: stages(nn.Conv2d(2, 2, 3), nn.Sequential(Branching())),
        "layer 1.0 (Branching) cannot be traced: its code branches on the values or the size of",
    ),
    "own parameter": (lambda: stages(nn.Conv2d(2, 2, 3), Scaled()), "'1.scale'"),
    "dropout of another kind": (
        lambda: stages(nn.Conv2d(2, 2, 3), nn.AlphaDropout(0.5)),
        "layer 1 (AlphaDropout)",
    ),
    "hooks": (hooked, "layer 0 (Conv2d) has hooks"),
    "loss": (lambda: Task(nn.Linear(2, 2), loss=lambda a, b: (a - b).square()), "cross-entropy"),
    "dtype": (lambda: Task(nn.Linear(2, 2), dtype=torch.float64), "float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_it_says(name):
    make, words = REFUSED[name]
    task = make()
    assert words in supports(task, (2, 9, 11))
    if words in supports(task):
        with pytest.raises(BadValue, match="fused"):
            FusedEngine(task)


def test_it_is_chosen_where_it_wins():
    assert engines.candidates(task_of("lenet5", (1, 12, 12))) == ["fused", "loop"]
    assert isinstance(engines.build("fused", task_of("mlp", (1, 5, 7))), FusedEngine)
    assert engines.candidates(stages(nn.Conv2d(2, 2, 3), nn.Softplus())) == ["loop"]


@pytest.fixture
def loaded_anew(tmp_path, monkeypatch):
    """The kernels are looked for again, in an empty cache."""
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path / "new"))
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_load", kernels._load.__wrapped__)
        yield


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"CC": "", "PATH": "/nowhere"}, "no C compiler"),
        (
            {"CC": "/nowhere/cc"},
            "'/nowhere/cc' was not found .the environment variable CC names it",
        ),
        ({"CC": "false"}, "failed with status 1"),
        ({"PARLEY_KERNELS": "off"}, "PARLEY_KERNELS is off"),
    ],
)
def test_without_a_compiler_torch_does_the_work(environment, words, monkeypatch, loaded_anew):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    task = task_of("lenet5", (1, 12, 12))
    assert engines.candidates(task) == ["loop"]
    assert not kernels.available()
    assert re.search(words, kernels.reason())
    with pytest.raises(BadValue, match=words):
        engines.build("fused", task)
    installing = "install gcc or clang" in kernels.advice()
    assert installing == (words == "no C compiler"), "nothing else is mended by that"


@pytest.mark.parametrize(
    ("value", "off"), [("off", True), ("OFF", True), ("0", True), ("no", True), ("on", False)]
)
@pytest.mark.parametrize("variable", ["PARLEY_KERNELS", "PARLEY_WINOGRAD"])
def test_what_is_switched_off(variable, value, off, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert kernels.switched_off(variable) == off
    monkeypatch.setenv(variable, "maybe")
    with pytest.raises(BadValue, match=f"{variable}: 'maybe' is not valid; valid: on, off"):
        kernels.switched_off(variable)


def test_a_broken_library_is_built_anew_and_a_whole_one_is_used_again(tmp_path, monkeypatch):
    built = Path(kernels.library()._name)
    path = tmp_path / built.name
    path.write_bytes(built.read_bytes()[:5000])
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path))
    assert kernels._open(kernels._found()).parley_lanes() == kernels.lanes()
    assert list(tmp_path.iterdir()) == [path], "nothing is left over"
    assert path.read_bytes() == built.read_bytes()
    before = path.stat().st_mtime_ns
    kernels._found()
    assert path.stat().st_mtime_ns == before


def test_a_wrong_answer_to_the_known_case_is_noticed():
    class Wrong:
        def parley_convert(self, *arguments):
            pass

        def parley_predict(self, graph, count, models, converted, n, logits, stride, workspace):
            logits[0] = 6

    with pytest.raises(Exception, match="not 7"):
        kernels._check(Wrong())


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_numbers_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr("parley.compute.compiled.WORTH_A_THREAD", 0)
    task, agents = task_of("lenet5", (1, 28, 28)), 4
    batch, x_AD = make_batch((1, 28, 28), (9, 8, 3, 9)), moved(task, agents)
    edges = [(j, i) for i in range(agents) for j in range(agents) if i != j][:-2]
    models, rows = (torch.tensor(ends) for ends in zip(*edges, strict=True))
    pairs = Pairs(models, rows, models)
    weights = torch.rand(len(edges))
    one, several = FusedEngine(task), FusedEngine(task, threads=threads)
    for targets in ([models], [rows], [models, rows]):
        shares = [Share(target, weights) for target in targets]
        found = []
        for engine in (one, several):
            sums = [x_AD.clone() for _ in shares]
            engine.accumulate(x_AD, batch, pairs, shares, sums)
            found.append(torch.stack(sums))
        assert torch.equal(*found) and not (found[0] == x_AD).all(2).any()
    everyone = range(agents)
    for both in zip(
        *(e.gradients(x_AD, batch, everyone, everyone) for e in (one, several)), strict=True
    ):
        assert torch.equal(*both)
    inputs = torch.randn(70, 1, 28, 28)
    assert torch.equal(one.predict(x_AD[0], inputs), several.predict(x_AD[0], inputs))
    each = torch.stack([one.predict(x_D, inputs) for x_D in x_AD])
    assert torch.equal(one.predict_each([*x_AD], inputs), each)
    assert torch.equal(several.predict_each([*x_AD], inputs), each)
    nothing = Pairs(models[:0], rows[:0], models[:0])
    several.accumulate(x_AD, batch, nothing, [Share(models[:0], weights[:0])], [sums[0]])
    assert torch.equal(sums[0], found[1][0])


def test_pairs_of_a_target_stay_together() -> None:
    target_P = np.array([3, 0, 1, 3, 3, 2, 0, 3])
    for parts in range(1, 6):
        found = by_target(target_P, parts)
        assert sorted(np.concatenate(found).tolist()) == list(range(8)) and len(found) <= parts
        assert all((np.diff(part) > 0).all() for part in found)
        owners = [set(target_P[part].tolist()) for part in found]
        assert sum(map(len, owners)) == len(set(target_P.tolist())), "no target in two parts"
    assert [len(part) for part in by_target(np.arange(10), 2)] == [5, 5]


def test_a_crew_waits_for_all_before_it_fails() -> None:
    done = []

    def work(thread: int, part: float) -> int:
        if not part:
            raise ValueError("nothing to do")
        time.sleep(part)
        done.append(thread)
        return thread

    crew = Crew(3)
    for parts in ([0, 0.05, 0.1], [0.05, 0, 0.1]):
        done.clear()
        with pytest.raises(ValueError, match="nothing to do"):
            crew.share(work, parts)
        assert len(done) == 2
    assert crew.share(work, [0.01, 0.02]) == [0, 1]
    with pytest.raises(ValueError, match="4 parts for 3 threads"):
        crew.share(work, [1, 1, 1, 1])
