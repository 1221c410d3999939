"""Continuing from a run means continuing with its preparation, its columns and its classes."""

import json
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

import parley
from parley.cli.main import main
from parley.data import load as load_data
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.store import outputs
from parley.training.problem import Problem, problem
from tests.data.test_tables import frame, write

QUICK: dict[str, Any] = {"algorithm": "dpsgd", "epochs": 1, "progress": False, "seed": 3}
OPTIONS = {"target": "outcome", "drop": "name,days"}


def other(rows: int = 6) -> pandas.DataFrame:
    """Older patients of two of the three wards, in columns of another order, nobody ill."""
    made = frame(4 * rows).assign(age=lambda rows: rows.age + 15)
    made = made[(made.ward != "south") & (made.outcome == "healthy")]
    return made[["ward", "outcome", "smoker", "visits", "age", "name", "days"]]


def card(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "model.json").read_text())
    return found


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("first") / "run"
    parley.train("mlp", [frame(), frame(9, 3)], out=out, data_options=OPTIONS, **QUICK)
    return out


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["parley", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def test_tables_from_python_and_from_a_file_are_prepared_as_the_run_did(
    first: Path, tmp_path: Path
) -> None:
    """With its means and deviations, values and classes, whatever there is here."""
    given = {"init": str(first), "data_options": OPTIONS, "lr": 1e-6, **QUICK}
    parley.train("mlp", [other(), other(9)], out=tmp_path / "python", **given)
    write(tmp_path / "table", train=other(), test=other(3))
    named = {"data": str(tmp_path / "table"), "agents": 2, "partition": "iid"}
    parley.train("mlp", out=tmp_path / "file", **named, **given)
    for name in ("python", "file"):
        assert card(tmp_path / name)["input"] == card(first)["input"]
        assert card(tmp_path / name)["labels"] == ["healthy", "ill"]
    made = problem(Experiment.of(**named, init=str(first), data_options=OPTIONS))
    form = outputs.found(first).card.input.table
    assert form is not None
    _, raw = outputs.found(first).expected().read([str(tmp_path / "table" / "test.csv")])
    assert torch.equal(made.test.inputs, raw) and raw[:, 0].abs().max() > 1  # older than there
    assert set(made.test.targets.tolist()) == {0}


def test_hosts_continue_with_the_means_of_the_run(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a site that lacks a class; sites say nothing about their own means."""
    base = tmp_path / "base"
    options = {**OPTIONS, "drop": "name,days,ward"}
    parley.train("mlp", [frame(), frame(9, 3)], out=base, data_options=options, **QUICK)
    rows = frame(8).drop(columns="ward")
    places = [
        write(tmp_path / "a", train=other()[rows.columns], test=rows),
        write(tmp_path / "b", train=rows.assign(age=90.0), test=rows),
    ]
    words = ["train", "--data=own", "--agents=2", "--epochs=1", "--algorithm=dpsgd"]
    words += [f"--init={base}", f"--out={tmp_path / 'run'}"]
    words += [f"--data-option={key}={value}" for key, value in OPTIONS.items()]
    command(monkeypatch, *words, *(f"--data-here={n}={place}" for n, place in enumerate(places)))
    assert card(tmp_path / "run")["input"] == card(base)["input"]
    assert card(tmp_path / "run")["labels"] == ["healthy", "ill"]


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (other().assign(height=1.8), OPTIONS, r"column height is only here.*drop=height"),
        (other().drop(columns="age"), OPTIONS, "age is only there.*its columns, age, visits"),
        (other().assign(outcome="dead"), OPTIONS, r"trained on healthy, ill, .* data have dead"),
        (other().assign(ward="east"), OPTIONS, r"column ward has the value 'east'.*north, south"),
        (
            other().assign(age="old"),
            OPTIONS,
            "age has another type here.*columns as there: numbers",
        ),
        ((torch.rand(8, 6), torch.arange(8) % 2), {}, r"trained on healthy, ill, .* have 0, 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(
    first: Path, data: Any, options: dict[str, str], words: str
) -> None:
    with pytest.raises(BadValue, match=words) as caught:
        parley.train("mlp", [data, data], init=str(first), data_options=options, **QUICK)
    assert f"or {first / 'model.safetensors'}, its weights alone" in str(caught.value)


def test_the_weights_alone_leave_the_preparation_to_the_new_run(
    first: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = [other().assign(ward="north", outcome=["ill", "healthy"] * 4)] * 2
    weights = str(first / "model.safetensors")
    with caplog.at_level("INFO", logger="parley"):
        parley.train("mlp", data, init=weights, data_options=OPTIONS, out=tmp_path / "run", **QUICK)
    assert "alone; its folder's name also continues with its preparation" in caplog.text
    assert card(tmp_path / "run")["input"] != card(first)["input"]


def test_pixels_are_normalised_as_in_the_run_and_a_class_may_be_absent(tmp_path: Path) -> None:
    parley.train(agents=2, out=tmp_path / "first", **QUICK)
    digits = load_data("digits")
    few = digits.train.targets < 7
    pair = digits.train.inputs[few][:60], digits.train.targets[few][:60]
    init = {"init": str(tmp_path / "first")}
    parley.train(data=[pair, pair], out=tmp_path / "second", **init, **QUICK)
    old, new = card(tmp_path / "first"), card(tmp_path / "second")
    assert new["input"] == old["input"] and new["input"]["mean"]
    assert new["labels"] == list("0123456789")


def test_texts_keep_the_tokenizer_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    for name, words in (("first", ["wet", "goal"]), ("second", ["goal", "race"])):
        for split in ("train", "test"):
            rows = [json.dumps({"text": f"{w} {v}", "label": w}) for w in words for v in words]
            path = tmp_path / f"{name} data" / f"{split}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(rows) + "\n")
    options = {"length": 8, "label": "label"}
    given = {"agents": 2, "partition": "iid", "model": "bert-mini"}
    first, second = tmp_path / "first", str(tmp_path / "second data")
    data = str(tmp_path / "first data")
    parley.train(data=data, out=first, data_options=options, **given, **QUICK)

    def made(**more: str) -> Problem:
        chosen = {**given, "data": second, "data_options": options | more, "init": str(first)}
        return problem(Experiment.of(**chosen))

    with pytest.raises(BadValue, match="trained on goal, wet, and the data have goal, race"):
        made()
    for path in Path(second).glob("*"):
        path.write_text(path.read_text().replace('"label": "race"', '"label": "wet"'))
    found = made()
    kept = json.loads((first / "tokenizer.json").read_text())
    assert json.loads(found.preparation.tokenizer) == kept
    assert found.class_names == ("goal", "wet")
    with pytest.raises(BadValue, match=r"the texts have another.*its tokenizer, as without"):
        made(tokenizer="train")
