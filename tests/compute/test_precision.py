"""Products in bfloat16: close to float32, everything else as before, refused where it cannot be."""

import logging

import pytest
import torch

import parley
from parley import models
from parley.compute import choose as engines
from parley.compute import kernels
from parley.compute.engine import Engine, LoopEngine, VmapEngine
from parley.compute.precision import check_device
from parley.compute.task import Task
from parley.errors import BadValue
from parley.experiment import Experiment
from tests.compute.test_engines import batch

CLOSE = 0.02
"""How far a gradient in bfloat16, with its eight binary digits, may be from one in float32,
relative to its norm: for two layers, twice what rounding every factor once would give."""


@pytest.fixture(autouse=True)
def _has_bf16(monkeypatch):
    kernels.available()  # built for the processor that this really is
    monkeypatch.setattr(kernels, "processor", lambda: "flags\t: avx2 avx512_bf16")


def tasks(name: str) -> tuple[Task, Task]:
    torch.manual_seed(1)
    model = models.build(name, (1, 8, 8), 10)
    return Task(model), Task(model, precision="bf16")


@pytest.mark.parametrize("engine", [LoopEngine, VmapEngine])
def test_a_gradient_is_close_to_the_one_in_float32_and_has_its_type(engine: type[Engine]):
    full, half = tasks("mlp")
    x_AD, data, rows = full.start() + torch.randn(3, full.size) / 10, batch(), range(3)
    loss_A, g_AD = LoopEngine(full).gradients(x_AD, data, rows, rows)
    found_A, found_AD = engine(half).gradients(x_AD, data, rows, rows)
    assert found_A.dtype == found_AD.dtype == torch.float32
    apart_A = (found_AD - g_AD).norm(dim=1) / g_AD.norm(dim=1)
    assert 1e-4 < float(apart_A.max()) < CLOSE
    torch.testing.assert_close(found_A, loss_A, rtol=CLOSE, atol=0)
    assert torch.equal(half.predict(x_AD[0], data.inputs[0]), full.predict(x_AD[0], data.inputs[0]))


def test_the_loss_is_computed_in_float32():
    seen = []

    def loss(outputs, targets):
        seen.append((outputs.dtype, torch.is_autocast_enabled("cpu")))
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    task = Task(models.build("mlp", (1, 8, 8), 10), loss, precision="bf16")
    LoopEngine(task).gradients(task.start()[None], batch(), [0], [0])
    assert seen == [(torch.float32, False)]


def test_only_engines_that_leave_products_to_torch_are_tried():
    assert engines.candidates(tasks("mlp")[1]) == ["vmap", "loop"]
    assert engines.candidates(tasks("cnn5")[1]) == ["loop"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dtype": "float64"}, r"precision: 'bf16' .*dtype float64 .*valid: full, or bf16 with"),
        ({"engine": "fused"}, r"precision: 'bf16' .*fused computes in float32 only.*auto, loop"),
        ({"engine": "stacked"}, r"precision: 'bf16' .*the engine stacked"),
    ],
)
def test_what_rules_it_out_is_said(options, why):
    with pytest.raises(BadValue, match=why):
        Experiment.of(precision="bf16", **options)


def test_a_processor_that_gains_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(kernels, "processor", lambda: "flags\t: sse2 avx2 avx512f")
    check_device("full", torch.device("cpu"))
    with pytest.raises(
        BadValue, match=r"no bfloat16 arithmetic: neither avx512_bf16 .*valid: full"
    ):
        parley.train(precision="bf16", epochs=1, progress=False)


def test_a_run_trains_float32_models_and_says_what_it_does_without(caplog, tmp_path):
    options = {"agents": 3, "epochs": 2, "fraction": 0.2, "gossip_rounds": 0, "progress": False}
    full = parley.train(**options)
    with caplog.at_level(logging.INFO, "parley"):
        half = parley.train(**options, precision="bf16", out=tmp_path / "run")
    assert half.x_ND.dtype == torch.float32 and not torch.equal(half.x_ND, full.x_ND)
    torch.testing.assert_close(half.x_ND, full.x_ND, rtol=0, atol=0.05)
    assert half.summary["bytes_models"] == full.summary["bytes_models"]
    said = [r.getMessage() for r in caplog.records if "no compiled kernels" in r.getMessage()]
    expected = "no compiled kernels, which compute in float32: --precision full is usually faster"
    assert [expected in line for line in said] == [True] * kernels.available()
    with pytest.raises(parley.ParleyError, match="precision"):
        parley.train(**options, out=tmp_path / "run", resume=True)
