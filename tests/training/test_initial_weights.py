"""Starting from weights: what fits is used, what does not is listed."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import parley
from parley.cluster import handshake
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.files import anchored
from parley.models import text
from parley.store.enclosed import enclosed
from parley.training import problem as problems
from parley.training.initial_weights import start_from

QUICK: dict[str, Any] = {"agents": 3, "epochs": 1, "fraction": 0.2, "progress": False}


def start(**options: Any) -> dict[str, torch.Tensor]:
    """The parameters that a run would begin with."""
    experiment = Experiment.of(agents=3, fraction=0.2, **options)
    task = problems.task_of(experiment, problems.problem(experiment, [0]))
    return task.parameters(task.start())


def test_a_run_starts_from_another_runs_average(tmp_path: Path) -> None:
    first = parley.train(**QUICK, out=tmp_path / "first")
    expected = dict(first.model().named_parameters())
    for source in (tmp_path / "first", tmp_path / "first" / "model.safetensors"):
        for name, value in start(init=str(source)).items():
            assert torch.equal(value, expected[name])
    second = parley.train(**QUICK, init=str(tmp_path / "first"), out=tmp_path / "second")
    assert second.records[0]["loss"] < first.records[0]["loss"]
    # It is still the same experiment when it is named from elsewhere.
    again = parley.train(**QUICK, init=f"{tmp_path}/./first", out=tmp_path / "second", resume=True)
    assert torch.equal(again.x_ND, second.x_ND)


def test_what_does_not_fit_is_listed_and_starts_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    save_file({**other.state_dict(), "extra": torch.zeros(1)}, tmp_path / "w.safetensors")
    with caplog.at_level(logging.WARNING, logger="parley"):
        found = start(init=str(tmp_path / "w.safetensors"))
    fresh = start()
    assert torch.equal(found["1.weight"], other[1].weight)
    assert torch.equal(found["3.weight"], fresh["3.weight"])
    said = caplog.text
    assert "2 of the model's 4 tensors" in said
    assert "3.weight has shape [3, 64] there and [10, 64] here" in said
    assert "extra is only there" in said


def test_frozen_parameters_and_statistics_come_along(tmp_path: Path) -> None:
    made = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    made[0].requires_grad_(False)
    weights = {name: torch.rand_like(v.float()) for name, v in made.state_dict().items()}
    weights["1.num_batches_tracked"] = torch.tensor(7)
    save_file(weights, tmp_path / "w.safetensors")
    start_from(made, str(tmp_path / "w.safetensors"))
    for name, value in made.state_dict().items():
        assert torch.equal(value, weights[name])
    assert not made[0].weight.requires_grad


def test_names_of_transformers_fit_parleys_models_of_text(tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Linear(2, 2)

    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "model.safetensors")
    made = Wrapped()
    start_from(made, f"hf:{tmp_path}")
    with_prefix = {f"network.{n}": v for n, v in parley_file(tmp_path).items()}
    assert all(torch.equal(v, with_prefix[n]) for n, v in made.state_dict().items())


def parley_file(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


class Tied(nn.Module):
    """A language model whose first and last weights are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_tied_weights_are_there_under_one_of_their_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    save_file({name: torch.ones(5, 3)}, tmp_path / "w.safetensors")
    model = Tied()
    with caplog.at_level(logging.INFO, logger="parley"):
        start_from(model, str(tmp_path / "w.safetensors"))
    assert (
        torch.equal(model.head.weight, torch.ones(5, 3)) and model.embed.weight is model.head.weight
    )
    assert "init: all 1 tensors are from" in caplog.text


def test_an_encoder_without_a_head_fits_a_classifier(tmp_path: Path) -> None:
    """As most models on the hub are stored."""
    pytest.importorskip("transformers")
    source, model = (text.bert_mini((8,), 2, vocabulary=20) for _ in range(2))
    encoder = source.network.bert.state_dict()
    save_file({n: v.contiguous() for n, v in encoder.items()}, tmp_path / "model.safetensors")
    start_from(model, f"hf:{tmp_path}")
    for name, value in model.network.bert.state_dict().items():
        assert torch.equal(value, encoder[name])


def test_what_is_no_source_of_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("nothing")
    (tmp_path / "empty").mkdir()
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    for source, why in (
        ("nowhere/w.safetensors", "it does not exist"),
        ("empty", "model.safetensors is not there"),
        ("text.safetensors", "text.safetensors: "),
        ("other.safetensors", "no tensor in it has the name and shape"),
    ):
        with pytest.raises(BadValue, match=f"init: .*{why}"):
            start(init=str(tmp_path / source))


def test_paths_belong_to_their_file_and_hosts_may_differ_in_them(tmp_path: Path) -> None:
    assert anchored({"init": "w.safetensors"}, Path("there")) == {"init": "there/w.safetensors"}
    assert anchored({"init": "hf:owner/name"}, Path("there")) == {}
    graph = parley.ring(3)
    here, there, none = (
        Experiment.of(agents=3, **options)
        for options in ({"init": "a.safetensors"}, {"init": "b.safetensors"}, {})
    )
    assert handshake.plan(here, graph, "1") == handshake.plan(there, graph, "1")
    assert handshake.plan(here, graph, "1") != handshake.plan(none, graph, "1")
    assert Path(enclosed(here, graph).experiment.init).is_absolute()
