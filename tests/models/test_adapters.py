"""Low-rank adapters: only they are learned, sent and kept, and the result is an ordinary model."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import parley
from parley.compute.task import Task
from parley.errors import BadValue
from parley.models import build
from parley.models.adapters import Lora, adapted, merged, parse_lora
from parley.store import checkpoint

LORA = "r=2,alpha=4,targets=1,3"
COMMON = {"data": "digits", "agents": 3, "algorithm": "dpsgd", "partition": "iid"}
SHORT = {"fraction": 0.1, "gossip_rounds": 0, "lr": 0.2, "progress": False}


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(**options: Any) -> parley.Result:
    return parley.train(net, **{**COMMON, **SHORT, "epochs": 2, "lora": LORA, **options})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[parley.Result, Path]:
    out = tmp_path_factory.mktemp("adapters") / "run"
    return train(out=out), out


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The architecture of a tiny classifier."""
    from transformers import BertConfig

    folder = tmp_path_factory.mktemp("bert")
    BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=8,
    ).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("r=0", "lora.r: 0 is not valid; valid: a number from 1"),
        ("r=2.5", "lora.r: 2.5 is not valid; valid: a whole number"),
        ("r=nan", "lora.r"),
        ("r=4,r=8", "each once"),
        ("8", "each once"),
        ("alpha=big", "lora.alpha"),
        ("dropout=1", "lora.dropout"),
        ("targets=", "lora.targets: '' is not valid"),
        ("rang=4", "lora: 'rang' is not valid"),
    ],
)
def test_what_is_misspelled_is_refused(spec: str, why: str) -> None:
    with pytest.raises(BadValue, match=why):
        parley.Experiment.of(lora=spec)


def test_lists_go_on_after_a_comma() -> None:
    found = parse_lora("targets=q,v,r=4,train=head,dropout=0.1")
    assert found == Lora(4, 8.0, 0.1, ("q", "v"), ("head",))
    assert parse_lora("") is None


def test_the_start_is_that_of_the_model_and_merging_keeps_the_answers() -> None:
    torch.manual_seed(0)
    plain, inputs = net(), torch.randn(5, 1, 8, 8)
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    expected = plain(inputs)
    model = adapted(plain, Lora(2, 4.0, targets=("1", "3")))
    assert torch.equal(model(inputs), expected)
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(learned) == 4 and all(".lora_" in name for name in learned)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name in learned:
                value.normal_(std=0.1)
    changed = model(inputs)
    assert not torch.allclose(changed, expected)
    whole = merged(model)
    assert whole.state_dict().keys() == before.keys()
    torch.testing.assert_close(whole(inputs), changed)
    assert torch.equal(whole.state_dict()["1.bias"], before["1.bias"])


def test_only_adapters_are_sent(trained: tuple[parley.Result, Path]) -> None:
    """Per step and neighbour, the bytes of the parameters that stay at home are not sent."""
    result, _ = trained
    rank, layers = 2, [(64, 32), (32, 10)]
    size = sum(rank * (inputs + outputs) for inputs, outputs in layers)
    assert result.task.size == size
    whole = train(lora="")
    steps = -(-48 // 32) * 2  # a tenth of 1,437 among 3 agents, in batches of 32, for 2 epochs
    saved = whole.summary["bytes_models"] - result.summary["bytes_models"]
    assert saved == 4 * (whole.task.size - size) * 2 * steps


def test_the_weights_below_are_the_same_everywhere(trained: tuple[parley.Result, Path]) -> None:
    result, _ = trained
    torch.manual_seed(result.experiment.seed)
    fresh = net().state_dict()
    for agent in (None, 0, 1, 2):
        mine = result.model(agent).state_dict()
        assert torch.equal(mine["1.bias"], fresh["1.bias"])
        rank = torch.linalg.matrix_rank(mine["1.weight"] - fresh["1.weight"], rtol=1e-3)
        assert rank == 2
    assert result.records[-1]["loss"] < train(epochs=1, lr=1e-9).records[-1]["loss"]


def test_a_folder_gives_the_merged_model(trained: tuple[parley.Result, Path]) -> None:
    result, out = trained
    inputs = torch.randn(4, 1, 8, 8)
    read = parley.load(out)
    assert read.experiment.lora == LORA
    for agent in (None, 1):
        assert torch.equal(read.model(net, agent=agent)(inputs), result.model(agent)(inputs))


def test_checkpoints_are_small_and_resumed(
    trained: tuple[parley.Result, Path], tmp_path: Path
) -> None:
    result, _ = trained
    train(epochs=1, out=tmp_path / "run")
    size = checkpoint.size(tmp_path / "run", 1)
    assert size < 4 * 3 * sum(p.numel() for p in net().parameters())
    unfinished = parley.load(tmp_path / "run").model(net)
    resumed = train(epochs=2, out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.x_ND, result.x_ND)
    assert unfinished.state_dict().keys() == net().state_dict().keys()


def test_other_weights_below_are_not_resumed(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = tmp_path / "base.safetensors"
    for scale in (1.0, 2.0):
        state = {name: scale * torch.ones_like(v) for name, v in net().state_dict().items()}
        save_file(state, weights)
        if scale == 1.0:
            train(epochs=1, out=tmp_path / "run", init=str(weights))
    with pytest.raises(BadValue, match="differ from those that the run began with"):
        train(epochs=2, out=tmp_path / "run", init=str(weights), resume=True)


def test_export(trained: tuple[parley.Result, Path], tmp_path: Path) -> None:
    from parley.store import outputs
    from parley.store.inference import export

    result, out = trained
    found = outputs.found(out)
    export(found.module(None, net), found.card, "torch-export", tmp_path / "net.pt2")
    program = torch.export.load(tmp_path / "net.pt2").module()
    raw = torch.randint(17, (3, 1, 8, 8)).float()
    given = found.card.transform().normalise(raw, torch.float32)
    torch.testing.assert_close(program(raw), result.model()(given))


def test_the_head_of_a_classifier_is_trained_in_full(bert: Path) -> None:
    model = build(f"hf:{bert}", (8,), 3, fresh=True, dropout=0.0)
    learned = [n for n, p in adapted(model, Lora(2)).named_parameters() if p.requires_grad]
    assert {"network.classifier.weight", "network.classifier.bias"} < {*learned}
    others = [name for name in learned if "classifier" not in name]
    assert others and all("lora_" in n and (".query." in n or ".value." in n) for n in others)
    assert Task(adapted(build(f"hf:{bert}", (8,), 3, fresh=True), Lora(2))).random


def test_parts_that_are_trained_in_full_by_name() -> None:
    model = adapted(net(), Lora(2, targets=("1",), train=("3",)))
    learned = {n for n, p in model.named_parameters() if p.requires_grad}
    assert {"3.weight", "3.bias"} < learned and len(learned) == 4
    everything = adapted(net(), Lora(2, targets=("all-linear",), train=("3",)))
    assert {n for n, p in everything.named_parameters() if p.requires_grad} == learned


@pytest.mark.parametrize(
    ("lora", "why"),
    [
        (Lora(targets=("q_proj",)), r"lora.targets: 'q_proj'.*all-linear, or some.*: 1, 3"),
        (Lora(targets=("1", "q_proj")), r"lora.targets: 'q_proj'.*it has no such layer"),
        (Lora(), r"lora.targets: '' is not valid \(which layers"),
        (Lora(targets=("1",), train=("head",)), r"lora.train: 'head'.*no such part"),
    ],
)
def test_layers_that_are_not_there_are_refused(lora: Lora, why: str) -> None:
    with pytest.raises(BadValue, match=why):
        adapted(net(), lora)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        BadValue, match=r"peft is not installed\); valid: .*parley-learning\[lora\]"
    ):
        train()


def test_a_language_model_from_a_folder(tmp_path: Path) -> None:
    """By the task alone: hf: is then a causal language model, here with its own weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=8,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    tokens = torch.randint(40, (3, 6, 9))
    data = [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in tokens]
    options: dict[str, Any] = {"task": "language-model", "epochs": 2, "lr": 0.1, "progress": False}
    out, model = tmp_path / "run", f"hf:{tmp_path / 'llama'}"
    result = parley.train(model, data, "full", "dpsgd", lora="r=2", out=out, **options)
    assert result.task.size == 2 * 2 * (16 + 16)  # of the queries and the values
    scores = result.model()(data[0][0])
    assert scores.shape == (6, 8, 40)
    assert torch.equal(parley.load(out).model()(data[0][0]), scores)
    with pytest.raises(BadValue, match="texts of at most 8 tokens"):
        build(model, (9,), 0, head="next-token")
