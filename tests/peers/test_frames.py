"""Tables of three hospitals in one process, on hosts and among peers: the same models to the bit.

Their classes come in different orders, and nobody but the second hospital has all of them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import parley
from parley.errors import BadValue
from parley.files import parse_json
from parley.store.folder import CARD, MODEL
from tests.cluster.test_launch import as_ranks
from tests.peers.groups import NAMES, write_group
from tests.peers.test_join import records
from tests.processes import Command, process

CLASSES = ["healthy", "ill", "unclear"]
SEEN = {0: ["ill", "healthy"], 1: ["unclear", "ill", "healthy"], 2: ["unclear"]}
ADMITTED = 1_700_000_000.0
"""Seconds since 1970: single precision would round them to two minutes."""
TABLE = {"target": "outcome", "drop": "name,days,rested"}
OPTIONS: dict[str, Any] = {"algorithm": "ngc", "alpha": 0.5, "model": "mlp", "engine": "loop"}
OPTIONS |= {"epochs": 2, "batch": 8}
LABELS = {"labels": ", ".join(CLASSES)}


def ward(agent: int, rows: int = 0, shift: int = 0) -> pandas.DataFrame:
    """The patients of a hospital, whose ages and times of admission depend on the outcome."""
    rows, drawn = rows or 20 + 8 * agent, np.random.default_rng([agent, shift])
    outcome = [SEEN[agent][row % len(SEEN[agent])] for row in range(rows)]
    number = np.array([CLASSES.index(one) for one in outcome])
    return pandas.DataFrame(
        {
            "name": [f"patient {row}" for row in range(rows)],
            "age": 50 + 10 * number + drawn.normal(size=rows),
            "admitted": ADMITTED + 20 * number + drawn.normal(size=rows),
            "smoker": drawn.integers(0, 2, rows).astype(bool),
            "days": number + drawn.normal(size=rows),
            "rested": drawn.integers(0, 2, rows),
            "outcome": pandas.Series(outcome, dtype="category" if agent else "str"),
        }
    )


def both(agent: int) -> dict[str, pandas.DataFrame]:
    """A host's function."""
    return {"train": ward(agent), "test": ward(agent, 7, shift=1)}


TASKS: dict[str, dict[str, Any]] = {
    "classification": {"metrics": "f1,accuracy", "data_options": TABLE | LABELS},
    "held out": {"validation": 0.25, "data_options": TABLE | LABELS},
    "regression": {
        "task": "regression",
        "data_options": {"target": "days,rested", "drop": "name,outcome"},
    },
    "multilabel": {
        "task": "multilabel",
        "data_options": {"target": "smoker,rested", "drop": "name,outcome,days"},
    },
}


def take_part(folder: Path, name: str, agent: int, classes: list[str] | None) -> None:
    parley.join(
        folder / "peers.toml", name, data={agent: ward(agent)},
        test={agent: ward(agent, 7, shift=1)}, classes=classes,
        keys=folder, out=folder / name, progress=False,
    )  # fmt: skip


def same_as_alone(folder: Path, options: dict[str, Any], runs: list[Path]) -> dict[str, Any]:
    """Checks what every run has written; gives the description of their model."""
    sets = [[ward(n) for n in range(3)], [ward(n, 7, shift=1) for n in range(3)]]
    parley.train(data=sets[0], test=sets[1], out=folder / "alone", progress=False, **options)
    models = load_file(folder / "alone" / MODEL)
    for run in runs:
        found = load_file(run / MODEL)
        assert all(torch.equal(found[name], value) for name, value in models.items())
        assert (run / CARD).read_text() == (folder / "alone" / CARD).read_text()
        assert records(run) == records(folder / "alone")
    card: dict[str, Any] = parse_json((folder / "alone" / CARD).read_text())
    return card


@pytest.mark.parametrize("task", TASKS)
def test_frames_among_peers(tmp_path: Path, task: str) -> None:
    """Classes are those that the experiment or the programs list, targets the columns' names."""
    options = {**OPTIONS, **TASKS[task]}
    given = CLASSES if task == "classification" else None
    shared = {**options, "data_options": TABLE} if given else options
    write_group(tmp_path, [[0], [1], [2]], {**shared, "patience": 120.0})
    started = [process(take_part, tmp_path, name, n, given) for n, name in enumerate(NAMES[:3])]
    for one in started:
        one.join(300)
        assert one.exitcode == 0
    card = same_as_alone(tmp_path, options, [tmp_path / name for name in NAMES[:3]])
    targets = options["data_options"]["target"].split(",")
    assert card["labels"] == (CLASSES if "labels" in options["data_options"] else targets)
    if task == "classification":
        [admitted] = [c for c in card["input"]["table"]["columns"] if c["name"] == "admitted"]
        values = pandas.concat([ward(n) for n in range(3)])["admitted"]
        assert admitted["mean"] - ADMITTED == pytest.approx(values.mean() - ADMITTED, rel=1e-6)
        assert admitted["std"] == pytest.approx(values.std(ddof=0), rel=1e-6)
        ward(1, 6).to_csv(tmp_path / "new.csv", index=False)
        answers = parley.load(tmp_path / "ward-c").predict(tmp_path / "new.csv")
        assert [answer.label for answer in answers] == SEEN[1] * 2


def test_frames_on_hosts(tmp_path: Path) -> None:
    options = {**OPTIONS, **TASKS["classification"]}
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps({**options, "agents": 3, "data": "own"}))
    hosts = [
        Command(
            tmp_path / "said", "train", file, "--agents-here", rank, "--out", tmp_path / f"{rank}",
            "--data-here", f"{rank}={__name__}:both", environment=environment,
        )
        for rank, environment in enumerate(as_ranks(3))
    ]  # fmt: skip
    for host in hosts:
        assert host.wait() == 0, host.err
    card = same_as_alone(tmp_path, options, [tmp_path / f"{rank}" for rank in range(3)])
    assert card["labels"] == CLASSES


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"classes": None}, {}, r"classes: missing \(your own data need them"),
    ({"classes": "ill"}, {}, r"classes: 'ill' .*it is text"),
    ({"classes": 3}, {}, r"it has the class healthy\); valid: the classes 0, 1, 2"),
    ({"classes": ["ill", "unclear", "dead"]}, {}, "it has the class healthy"),
    ({"classes": CLASSES[::-1]}, LABELS, r"data_options.labels in the experiment has others"),
    (
        {"classes": 2},
        {"target": "days", "drop": "name,outcome"},
        r"classes: 2 .*target columns days\); valid: none",
    ),
    ({"data": {1: ward(1).assign(age="old")}}, {}, r"'agent 1' .*column age is text"),
    ({"data": {1: ward(1).drop(columns="age")}}, {}, r"column age of test of agent 1 is not in"),
    ({"test": {1: (torch.zeros(1, 3), torch.zeros(1).long())}}, {}, "'test of agent 1' .*a tuple"),
]


@pytest.mark.parametrize(("given", "table", "words"), WRONG)
def test_frames_that_are_refused_before_anybody_is_waited_for(
    tmp_path: Path, given: dict[str, Any], table: dict[str, str], words: str
) -> None:
    task = "regression" if "target" in table else "classification"
    write_group(tmp_path, [[0], [1]], {**OPTIONS, "task": task, "data_options": TABLE | table})
    options = {"data": {1: ward(1)}, "test": {1: ward(1, 7)}, "classes": CLASSES, **given}
    with pytest.raises(BadValue, match=words):
        parley.join(tmp_path / "peers.toml", "ward-b", keys=tmp_path, progress=False, **options)
