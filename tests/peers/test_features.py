"""What experiments can do, among peers: running statistics, local steps, tasks, own code and data.

The models are those of one process, to the last bit.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import parley
from parley import user_code
from parley.store import checkpoint
from tests.own_module import own_module
from tests.peers.groups import NAMES, write_group
from tests.peers.test_join import SMALL, records, same_as_alone, start
from tests.processes import process

NORMED = """
from torch import nn
def net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)
    )
"""


@pytest.mark.parametrize(("buffers", "metrics"), [("local", "f1,accuracy"), ("mixed", "accuracy")])
def test_a_model_of_one_s_own_with_running_statistics_and_local_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffers: str, metrics: str
) -> None:
    """Its module is imported because every peer's own command allows it."""
    agents = [[0], [1, 3], [2]]
    with own_module(tmp_path, monkeypatch, NORMED) as name:
        options = {**SMALL, "algorithm": "dpsgd", "local_steps": 2, "model": f"{name}:net"}
        options |= {"buffers": buffers, "metrics": metrics}
        write_group(tmp_path, agents, options)
        peers = [start(tmp_path, peer, "--allow-code", name) for peer in NAMES[:3]]
        for peer in peers:
            assert peer.wait() == 0, peer.err
        user_code.allow([name])
        whole = same_as_alone(tmp_path, agents).models_NE
        for peer_name, hosted in zip(NAMES, agents, strict=False):
            found = checkpoint.models(tmp_path / peer_name, hosted)
            assert found is not None and found.b_AS is not None and found.b_AS.numel()
            behind = whole[list(hosted), found.state.shape[1] :]
            assert torch.equal(found.b_AS, behind)
        last = records(tmp_path / "ward-a")[-1]
        assert all(f"{metric}_mean_model" in last for metric in metrics.split(","))


def lines_of(agent: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of a straight line, others for each agent."""
    made = torch.Generator().manual_seed(agent)
    inputs = torch.randn(count, 3, generator=made)
    return inputs, inputs @ torch.tensor([[1.0], [-2.0], [0.5]])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


OPTIONS: dict[str, Any] = {"algorithm": "ngc", "alpha": 0.5, "epochs": 2, "batch": 8}
OPTIONS |= {"task": "regression", "metrics": "rmse,mae", "engine": "loop", "patience": 120.0}


def take_part(folder: Path, name: str, agent: int) -> None:
    """A peer's own program: its own model, data and test set."""
    result = parley.join(
        folder / "peers.toml", name, model=net, data={agent: lines_of(agent, 24)},
        test={agent: lines_of(10 + agent, 9)}, keys=folder, out=folder / name, progress=False,
    )  # fmt: skip
    torch.save(result.x_ND, folder / f"{name}.pt")


def test_programs_with_their_own_model_data_and_test_sets(tmp_path: Path) -> None:
    """Every agent is measured on a test set of its own; every peer gets all models."""
    write_group(tmp_path, [[0], [1], [2]], OPTIONS)
    peers = [process(take_part, tmp_path, name, n) for n, name in enumerate(NAMES[:3])]
    for peer in peers:
        peer.join(300)
        assert peer.exitcode == 0
    data, tests = ([lines_of(start + n, count) for n in range(3)]
                   for start, count in ((0, 24), (10, 9)))  # fmt: skip
    whole = parley.train(net, data, test=tests, progress=False, out=tmp_path / "alone", **OPTIONS)
    last = records(tmp_path / "alone")
    for name in NAMES[:3]:
        assert torch.equal(torch.load(tmp_path / f"{name}.pt", weights_only=True), whole.x_ND)
        # Each peer measures on its own samples, and sums of floats depend on which are together.
        for found, expected in zip(records(tmp_path / name), last, strict=True):
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                assert found[key] == pytest.approx(value, rel=1e-6), key
        assert records(tmp_path / name) == records(tmp_path / "ward-a")
