"""A GPU gives what the CPU gives, for every algorithm; skipped where there is none."""

import pytest
import torch

import parley
from parley.algorithms import Algorithm
from parley.wire.codec import ScaledSign
from tests.algorithms.test_algorithms import CASES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("algorithm", CASES, ids=lambda a: a.name)
@pytest.mark.parametrize("model", ["mlp", "cnn5"])
def test_training_on_a_gpu_ends_where_the_cpu_does(algorithm: Algorithm, model: str) -> None:
    options = {"model": model, "algorithm": algorithm, "agents": 4, "epochs": 1, "batch": 64}
    options |= {"dtype": "float64", "gossip_rounds": 3, "progress": False}
    cpu = parley.train(**options, device="cpu")
    gpu = parley.train(**options, device="cuda")
    assert gpu.x_ND.device.type == "cuda"
    torch.testing.assert_close(gpu.x_ND.cpu(), cpu.x_ND, rtol=1e-6, atol=1e-8)
    assert gpu.summary["bytes_models"] == cpu.summary["bytes_models"]
    assert gpu.summary["accuracy_own"] == pytest.approx(cpu.summary["accuracy_own"], abs=5e-3)


def test_messages_are_the_same_bytes() -> None:
    codec, values = ScaledSign((5, 40)), torch.randn(3, 45, dtype=torch.float64)
    wire = codec.encode(values.cuda())
    torch.testing.assert_close(
        codec.decode(wire, torch.float64).cpu(), codec.round_trip(values), rtol=1e-12, atol=0
    )


def test_a_run_is_resumed_on_the_other_device(tmp_path) -> None:
    options = {"algorithm": "compngc", "agents": 3, "dtype": "float64", "progress": False}
    parley.train(**options, epochs=2, out=tmp_path / "run", device="cuda")
    resumed = parley.train(**options, epochs=2, out=tmp_path / "run", device="cpu", resume=True)
    assert resumed.summary["epochs"] == 2
