"""Tables with named columns, from files and from pandas."""

import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch

import parley
from parley.cli.main import main
from parley.data import Samples, cut_each, load, own
from parley.data.tables import Form, Told, opened, read
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.files import parse_json
from parley.training.problem import problem

ROWS = 12
AGES = [20.0 + 3 * n for n in range(ROWS)]
WARDS = ["north", "south", "west"]


def frame(rows: int = ROWS, shift: int = 0) -> pandas.DataFrame:
    """Patients: two columns of numbers, one of yes and no, one of text, two to predict."""
    return pandas.DataFrame(
        {
            "name": [f"patient {n + shift}" for n in range(rows)],
            "age": [AGES[(n + shift) % ROWS] for n in range(rows)],
            "visits": [(n + shift) % 4 for n in range(rows)],
            "smoker": [(n + shift) % 3 == 0 for n in range(rows)],
            "ward": [WARDS[(n + shift) % 3] for n in range(rows)],
            "days": [0.5 * ((n + shift) % 7) for n in range(rows)],
            "outcome": ["ill" if (n + shift) % 2 else "healthy" for n in range(rows)],
        }
    )


def write(folder: Path, end: str = "csv", **parts: pandas.DataFrame) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        path = folder / f"{name}.{end}"
        part.to_csv(path, index=False) if end == "csv" else part.to_parquet(path)
    return folder


OPTIONS = {"target": "outcome", "drop": "name,days"}


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_columns_become_inputs(tmp_path: Path, end: str) -> None:
    folder = write(tmp_path / "hospital", end, train=frame(), test=frame(3, shift=1))
    given = {"data": str(folder), "data_options": OPTIONS, "agents": 1, "model": "mlp"}
    made = problem(Experiment.of(**given, algorithm="dpsgd", partition="iid"))
    assert made.class_names == ("healthy", "ill") and made.test.targets.tolist() == [1, 0, 1]
    [samples], order = made.samples, np.argsort(made.samples[0].inputs[:, 0].numpy())
    assert samples.targets[order].tolist() == [0, 1] * 6
    inputs = samples.inputs.numpy()[order]
    assert inputs.dtype == np.float32 and inputs.shape == (ROWS, 6)  # 3 numbers and 3 wards
    for column, values in enumerate((AGES, [n % 4 for n in range(ROWS)])):
        expected = (np.array(values) - np.mean(values)) / np.std(values)
        np.testing.assert_allclose(inputs[:, column], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(inputs[:, 3:], np.eye(3)[[n % 3 for n in range(ROWS)]])
    # Test rows are standardised by the training rows.
    np.testing.assert_allclose(made.test.inputs[0].numpy(), inputs[1], rtol=1e-6)
    form = made.preparation.table
    assert form is not None and [c.name for c in form.columns] == [
        "age",
        "visits",
        "smoker",
        "ward",
    ]
    assert form.columns[3].values == ("north", "south", "west")


def test_rows_that_are_held_out_do_not_count_in_what_is_standardised(tmp_path: Path) -> None:
    """Neither those of a file nor those of frames."""
    common = {"data_options": OPTIONS, "validation": 0.5, "fraction": 0.8, "algorithm": "dpsgd"}
    folder = write(tmp_path / "hospital", all=frame())
    named = {"data": str(folder / "all.csv"), "agents": 2, "model": "mlp", "partition": "iid"}
    made = problem(Experiment.of(**named, **common))
    rows = torch.cat([samples.inputs for samples in made.samples]).double()
    sites, out = [frame(8), frame(9, shift=3)], tmp_path / "run"
    parley.train("logistic", data=sites, epochs=1, progress=False, out=out, **common)
    kept, _ = cut_each(
        [Samples(torch.tensor(f["age"]), torch.tensor(f["outcome"] == "ill")) for f in sites],
        [], 0.8, 0.5, 0,
    )  # fmt: skip
    ages = torch.cat([samples.inputs for samples in kept])
    card = parse_json((tmp_path / "run" / "model.json").read_text())
    assert card["input"]["table"]["columns"][0]["mean"] == pytest.approx(ages.mean().item())
    torch.testing.assert_close(rows[:, :3].mean(0), torch.zeros(3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows[:, :3].std(0, correction=0), torch.ones(3).double())


def test_labels_name_all_classes(tmp_path: Path) -> None:
    """Of frames as of hosts' own tables; a class that they leave out is refused."""
    options: dict[str, Any] = {"algorithm": "dpsgd", "epochs": 1, "progress": False}
    options |= {"data": [frame(6), frame(9)], "out": tmp_path / "run"}
    labels = OPTIONS | {"labels": "unclear, ill, healthy"}
    result = parley.train("logistic", data_options=labels, **options)
    card = parse_json((tmp_path / "run" / "model.json").read_text())
    assert card["labels"] == ["unclear", "ill", "healthy"]
    assert result.model()(torch.zeros(1, 6)).shape == (1, 3)
    with pytest.raises(BadValue, match=r"data.target: 'outcome' .*it has the class healthy\)"):
        parley.train("logistic", data_options=OPTIONS | {"labels": "ill, unclear"}, **options)
    with pytest.raises(BadValue, match=r"data.labels: 'ill, ill' .*all different"):
        parley.train("logistic", data_options=OPTIONS | {"labels": "ill, ill"}, **options)
    days = {"target": "days", "drop": "name,outcome", "labels": "a, b"}
    with pytest.raises(BadValue, match=r"data.labels: 'a, b' .*the target columns days are what"):
        parley.train("logistic", data_options=days, task="regression", **options)
    with pytest.raises(BadValue, match=r"data.labels: 'a, b' .*none, unless data = \"own\""):
        parley.train("logistic", data="digits", data_options={"labels": "a, b"}, progress=False)


def test_targets_of_each_task(tmp_path: Path) -> None:
    table = {"rows": opened(frame(), "rows")}
    told = Told.of("visits", "name,ward,days,outcome")
    [(_, targets)], names, _ = read(table, told, "classification")
    assert names == ("0", "1", "2", "3") and targets.tolist() == [n % 4 for n in range(ROWS)]
    told = Told.of("days, age", "name,ward,outcome")
    [(inputs, targets)], names, _ = read(table, told, "regression")
    assert names == ("days", "age") and targets.shape == (ROWS, 2) and inputs.shape == (ROWS, 2)
    assert targets[:, 1].tolist() == AGES
    _, names, _ = read(table, Told.of("smoker", "name"), "binary")
    assert names == ("False", "True")
    many = pandas.DataFrame({"x": range(11), "y": range(11)})
    _, names, _ = read({"rows": opened(many, "rows")}, Told.of("y", ""), "classification")
    assert names[2:4] == ("2", "3") and names[-1] == "10"  # by size, not by spelling


def gap(column: str, value: Any) -> pandas.DataFrame:
    made = frame().astype({column: object})
    made.loc[4, column] = value
    return made


WRONG: list[tuple[pandas.DataFrame, dict[str, str], str, str]] = [
    (gap("age", None), OPTIONS, "classification",
     r"row 5, column age: it is empty.*; valid: a value in every cell.*drop=age leaves"),
    (gap("ward", None), OPTIONS, "classification", r"row 5, column ward: it is empty"),
    (gap("outcome", None), OPTIONS, "classification",
     r"row 5, column outcome: it is empty\); valid: a value in every cell$"),
    (frame(0), OPTIONS, "classification", "it is empty"),
    (frame().assign(bed=1), OPTIONS, "classification",
     r"column bed of .*train.csv is not in .*test.csv\).*drop=bed leaves the column out"),
    (frame().drop(columns="age"), OPTIONS, "classification", "column age of .*test.csv is not in"),
    (frame().assign(ward=1), OPTIONS, "classification",
     r"column ward is text, but not in .*train.csv\)"),
    (frame(), {"target": "outcom"}, "classification",
     r"data.target: 'outcom' is not valid; valid: columns of .*: name, age, visits"),
    (frame(), {"target": "days", "drop": "nmae"}, "regression", "data.drop: 'nmae'"),
    (frame(), {"target": "days"}, "classification", r"it has fractions\).*or --task regression"),
    (frame(), {"target": "outcome", "drop": "name"}, "regression",
     r"column outcome has the type text\); valid: numbers or yes/no$"),
    (frame(), {"target": "days,age"}, "classification", "data.target: 'days,age'.*multilabel"),
    (frame(), {"target": "days"}, "segmentation", "task: 'segmentation' is not valid"),
    (frame(), OPTIONS | {"resize": "8"}, "classification", "data.resize"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "options", "task", "words"), WRONG)
def test_what_is_refused(
    tmp_path: Path, table: pandas.DataFrame, options: dict[str, Any], task: str, words: str
) -> None:
    folder = write(tmp_path / "hospital", train=table, test=frame(3))
    with pytest.raises(BadValue, match=words):
        load(str(folder), options=options, task=task)


def test_other_things_that_are_refused(tmp_path: Path) -> None:
    names = pandas.DataFrame({"name": [f"n{n}" for n in range(101)], "y": [0, 1] * 50 + [1]})
    folder = write(tmp_path / "names", train=names, test=names)
    with pytest.raises(BadValue, match=r"text with 101 different values\).*drop=name leaves"):
        load(str(folder), options={"target": "y"})
    dated = frame().assign(when=pandas.Timestamp("2020-01-01"))
    folder = write(tmp_path / "dated", "parquet", train=dated, test=dated)
    with pytest.raises(BadValue, match=r"column when has the type timestamp.*drop=when"):
        load(str(folder), options={"target": "outcome", "drop": "name"})
    odd = write(tmp_path / "odd", all=gap("age", "?")) / "all.csv"
    with pytest.raises(BadValue, match=r"row 5, column age: it is '\?', and most others are numb"):
        load(str(odd), options=OPTIONS)
    one = write(tmp_path / "one", all=frame()) / "all.csv"
    with pytest.raises(BadValue, match=r"data.target: '' is not valid .*columns name, age"):
        load(str(one))
    with pytest.raises(BadValue, match=r"it has no test rows.*--validation 0.2"):
        load(str(one), options=OPTIONS)
    with pytest.raises(BadValue, match=r"data.drop: 'name' .*none without data.target"):
        load(str(one), options={"drop": "name"})
    for text, words in (
        ("a,b\n1,2\n3\n", "row 2 has 1 cells"),
        ("a,a,b\n1,2,3\n", "two columns a"),
    ):
        one.write_text(text)
        with pytest.raises(BadValue, match=rf"{words}.*a table with a header and one row"):
            load(str(one), options={"target": "b"})
    twice = pandas.concat([frame(), frame()[["age"]]], axis=1)
    for site, words in ((twice, "two columns age"), (gap("age", "old"), "column age")):
        with pytest.raises(BadValue, match=rf"'agent 1' is not valid \([^(]*{words}"):
            sites = {"data": [frame(), site], "data_options": OPTIONS}
            parley.train("mlp", algorithm="dpsgd", progress=False, **sites)
    with pytest.raises(BadValue, match=r"data: 'length' is not valid .*is a table"):
        load(str(folder), options={"target": "outcome", "length": 9})


def test_a_value_that_was_never_seen(tmp_path: Path) -> None:
    form = read({"rows": opened(frame(), "rows")}, Told.of("days", "name,outcome"), "regression")[2]
    elsewhere = opened(frame().assign(ward="east"), "new.csv")
    with pytest.raises(BadValue, match=r"row 1, column ward: it is 'east'.*north, south"):
        form.inputs(elsewhere, "new.csv")
    with pytest.raises(BadValue, match=r"it has no column age"):
        form.inputs(opened(frame().drop(columns="age"), "new.csv"), "new.csv")
    empty = opened(gap("age", None), "new.csv")
    with pytest.raises(BadValue, match=r"row 5, column age: .*; valid: a value in every cell$"):
        form.inputs(empty, "new.csv")
    assert isinstance(form, Form)


def test_agents_with_tables_of_their_own(tmp_path: Path) -> None:
    """Numbers stay as they are until all agents have said what theirs are like, and classes are
    matched by name."""
    for name, part in (("a", frame(4)), ("b", frame(6, shift=2))):
        numbers = part.drop(columns=["ward"])
        write(tmp_path / name, train=numbers, test=numbers)
    places = {0: tmp_path / "a", 1: tmp_path / "b"}
    found = own.load(places, options=OPTIONS)
    assert found.class_names == ("healthy", "ill")
    assert found.samples[1].inputs[:, 0].tolist() == AGES[2:8]
    other = {0: tmp_path / "a", 1: write(tmp_path / "c", train=numbers[numbers.columns[::-1]])}
    with pytest.raises(
        BadValue, match=r"'agent 1'.*it has smoker, visits, age\).*age, visits, smok"
    ):
        own.load(other, options=OPTIONS)
    single = {0: tmp_path / "a" / "train.csv", 1: tmp_path / "b"}
    assert len(own.load(single, options=OPTIONS).tests[0]) == 0
    write(tmp_path / "a", train=frame(), test=frame())
    with pytest.raises(BadValue, match=r"column ward.*other agents' tables are not known"):
        own.load(places, options=OPTIONS)
    with pytest.raises(BadValue, match="cannot be prepared like a common one"):
        own.load(places, class_names=["healthy", "ill"], like="table.csv", options=OPTIONS)


def wards(agent: int) -> dict[str, Any]:
    """A host's function: the first agent knows only one class."""
    rows = frame(6, shift=agent).drop(columns="ward")
    rows = rows[rows.outcome == "ill"] if agent == 0 else rows
    return {"train": rows, "test": rows[rows.outcome == "ill"], "labels": ["healthy", "ill"]}


def test_hosts_standardise_their_tables_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They agree on means and deviations over all rows; frames have the same classes everywhere."""
    places = dict.fromkeys(range(3), f"{__name__}:wards")
    found = own.load(places, options=OPTIONS)
    assert found.class_names == ("healthy", "ill")
    assert [set(part.targets.tolist()) for part in found.samples] == [{1}, {0, 1}, {0, 1}]
    assert all(part.targets.eq(1).all() for part in found.tests)
    for name, options in (("run", OPTIONS), ("raw", OPTIONS | {"standardise": False})):
        words = ["train", "--data=own", "--agents=3", "--epochs=1", "--model=logistic"]
        words += [f"--out={tmp_path / name}", "--algorithm=dpsgd", "--lr=0.01"]
        words += [f"--data-option={key}={str(value).lower()}" for key, value in options.items()]
        words += [f"--data-here={agent}={place}" for agent, place in places.items()]
        monkeypatch.setattr(sys, "argv", ["parley", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    together = pandas.concat([wards(agent)["train"] for agent in range(3)])
    card = parse_json((tmp_path / "run" / "model.json").read_text())
    for column in card["input"]["table"]["columns"]:
        values = together[column["name"]].astype(float)
        assert column["mean"] == pytest.approx(values.mean(), rel=1e-6)
        assert column["std"] == pytest.approx(values.std(ddof=0), rel=1e-6)
    card = parse_json((tmp_path / "raw" / "model.json").read_text())
    assert {(c["mean"], c["std"]) for c in card["input"]["table"]["columns"]} == {(0.0, 1.0)}
    losses = [
        parse_json((tmp_path / name / "records.jsonl").read_text())["loss"]
        for name in ("run", "raw")
    ]
    assert losses[0] < losses[1]  # ages around 40 are no inputs for a linear layer


def test_a_run_that_is_resumed_keeps_its_preparation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever rows there are by then: the models expect what they were trained on."""
    words = ["train", "--data=own", "--agents=2", "--model=logistic", f"--out={tmp_path / 'run'}"]
    words += ["--algorithm=dpsgd", "--data-option=target=outcome", "--data-option=drop=name,days"]
    words += [f"--data-here={agent}={tmp_path / str(agent)}" for agent in range(2)]
    forms = []
    for shift, more in ((0, ["--epochs=1"]), (100, ["--epochs=2", "--resume"])):
        for agent in range(2):
            rows = frame(6, shift=agent).drop(columns="ward")
            rows["age"] += shift
            write(tmp_path / str(agent), train=rows, test=rows)
        monkeypatch.setattr(sys, "argv", ["parley", *words, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        forms.append(parse_json((tmp_path / "run" / "model.json").read_text())["input"]["table"])
    assert forms[0] == forms[1] and 20 < forms[0]["columns"][0]["mean"] < 60
    write(tmp_path / "1", train=rows.drop(columns="age"), test=rows.drop(columns="age"))
    write(tmp_path / "0", train=rows.drop(columns="age"), test=rows.drop(columns="age"))
    monkeypatch.setattr(sys, "argv", ["parley", *words, "--epochs=3", "--resume"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code


def test_a_common_table_with_other_rows_does_not_continue_a_run(tmp_path: Path) -> None:
    given: dict[str, Any] = {"data_options": OPTIONS, "agents": 2, "partition": "iid"}
    given |= {"algorithm": "dpsgd", "progress": False, "out": tmp_path / "run"}
    folder = write(tmp_path / "table", train=frame(), test=frame(3))
    parley.train("logistic", str(folder), epochs=1, **given)
    parley.train("logistic", str(folder), epochs=2, resume=True, **given)
    write(folder, train=frame().assign(age=AGES[::-1]), test=frame(3))
    parley.train("logistic", str(folder), epochs=3, resume=True, **given)  # the same mean
    write(folder, train=frame().assign(age=30.0), test=frame(3))
    with pytest.raises(BadValue, match=r"others than at the start\); valid: the rows .*--init"):
        parley.train("logistic", str(folder), epochs=4, resume=True, **given)


def test_frames_from_python(tmp_path: Path) -> None:
    """All frames are standardised together, whoever has them, and the run can be used on others."""
    sites = [frame(6), frame(9, shift=6), datasets.Dataset.from_pandas(frame(4, shift=2))]
    options: dict[str, Any] = {"data_options": {"target": "days", "drop": "name,outcome"}}
    options |= {"task": "regression", "algorithm": "dpsgd", "epochs": 2, "progress": False}
    result = parley.train(
        "logistic", data=sites, test=[frame(3), None, frame(2, 1)], out=tmp_path / "run", **options
    )
    card = parse_json((tmp_path / "run" / "model.json").read_text())
    [age, *_] = card["input"]["table"]["columns"]
    together = pandas.concat([frame(6), frame(9, shift=6), frame(4, shift=2)])
    assert age["mean"] == pytest.approx(together["age"].mean()) and card["labels"] == ["days"]
    new = frame(2, shift=5)
    new.to_csv(tmp_path / "new.csv", index=False)
    new.to_parquet(tmp_path / "new.parquet")
    answers = parley.load(tmp_path / "run").predict(tmp_path / "new.csv", tmp_path / "new.parquet")
    assert [answer.input.rpartition("/")[2] for answer in answers][:2] == [
        "new.csv[0]",
        "new.csv[1]",
    ]
    values = [answer.numbers["days"] for answer in answers]
    assert values[:2] == pytest.approx(values[2:])
    prepared = parley.load(tmp_path / "run").model()
    assert prepared(torch.zeros(1, 6)).shape == (1, 1) and result.summary["rmse_mean_model"] > 0
    with pytest.raises(BadValue, match=r"data.target: '' is not valid .*it is a table"):
        parley.train("logistic", data=sites[:2], algorithm="dpsgd", progress=False)
