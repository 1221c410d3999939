"""Files that somebody has written or damaged: experiments, graphs, partitions, networks, runs."""

import json
import random
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from parley import graphs
from parley.dash.runs import Runs
from parley.data import partition as partitions
from parley.experiment import Experiment, read_file
from parley.results.group import group_seeds
from parley.results.page import page
from parley.results.read import read_all
from parley.store.folder import RunFolder
from parley.sweep import tune
from parley.training.record import latest_by_epoch, parse_lines
from parley.wire import clock
from tests.fuzz import damage

RUNS = Path(__file__).parents[1] / "digests" / "folders"


def experiments(source: random.Random, folder: Path) -> None:
    """experiment.toml, as bytes and as tables."""
    content = (RUNS / "finished" / "experiment.toml").read_bytes()
    path = folder / "experiment.toml"
    path.write_bytes(_toml(source, content))
    Experiment.of(**read_file(path))


def tuned(source: random.Random, folder: Path) -> None:
    """What parley tune has left."""
    path = folder / "tuned.toml"
    path.write_bytes(_toml(source, (RUNS / "tuned.toml").read_bytes()))
    found = tune.read(path)
    for partition in found:
        for name in found[partition]:
            experiment = Experiment.of(algorithm="ngc", partition="skew:1")
            tune.tuned(experiment, {"skew:1": found[partition]}, name)


def topologies(source: random.Random, folder: Path) -> None:
    """Files of edges, and schedules of several rounds."""
    lines = source.choice(
        [
            "0 1\n1 2\n2 0\n",
            "# four\n0 -> 1 0.5\n1 -> 2 0.5\n2 -> 3 0.5\n3 -> 0 0.5\n0 0 0.5\n",
            "round 0\n0 1\nround 1\n1 2\nround 2\n2 0\n",
        ]
    )
    path = folder / "graph.txt"
    path.write_bytes(damage.bytes_of(source, lines.encode()))
    kind = source.choice(["file", "schedule", "spanning-tree:file"])
    weights = source.choice(["auto", "uniform", "metropolis", "sinkhorn", "push"])
    made = graphs.parse(f"{kind}:{path}", weights=weights)
    assert np.isfinite(made.mixing.data).all()


def partition_files(source: random.Random, folder: Path) -> None:
    """Lists of sample numbers, one for each agent."""
    entries: Any = [list(range(i, 30, 3)) for i in range(3)]
    path = folder / "partition.json"
    if source.random() < 0.5:
        path.write_bytes(damage.bytes_of(source, json.dumps(entries).encode()))
    else:
        path.write_text(json.dumps(damage.value_of(source, entries), default=str))
    spec = f"file:{path}"
    partitions.folders(spec)
    dealt = partitions.partition(spec, np.arange(30) % 3, graphs.ring(3), 0)
    assert len(dealt.indices) == 3


def links(source: random.Random, folder: Path) -> None:
    """Files of simulated networks."""
    content = b'delay = 0.02\nbandwidth = "10M"\ndrop = 0.1\n[edges."0-1"]\ndelay = 0.2\n'
    path = folder / "links.toml"
    path.write_bytes(_toml(source, content))
    timed = clock.parse(f"file:{path}", graphs.ring(3), 0)
    timed.send([(0, 1)], 1000, 0)
    assert np.isfinite(timed.seconds())


def records(source: random.Random, folder: Path) -> None:
    """Lines of records.jsonl: for resuming, for people."""
    lines = (RUNS / "finished" / "records.jsonl").read_bytes()
    content = _records(source, lines)
    (folder / "records.jsonl").write_bytes(content)
    found = parse_lines(content.splitlines())
    latest_by_epoch(found.records)
    RunFolder(folder).records()


def folders(source: random.Random, folder: Path) -> None:
    """A run's folder with damaged files, beside a whole one: report and dashboard show both."""
    shutil.copytree(RUNS / "finished", folder / "whole")
    damaged = folder / "damaged"
    kind = source.choice(["finished", "unfinished"])
    shutil.copytree(RUNS / kind, damaged, ignore=shutil.ignore_patterns("checkpoint"))
    for path in source.sample(sorted(damaged.iterdir()), k=source.randint(1, 3)):
        content = path.read_bytes()
        if source.random() < 0.2:
            damage.replaced(source, path)
        elif path.suffix == ".toml":
            path.write_bytes(_toml(source, content))
        elif path.suffix == ".jsonl":
            path.write_bytes(_records(source, content))
        elif source.random() < 0.5:
            path.write_bytes(damage.bytes_of(source, content))
        else:
            path.write_text(json.dumps(damage.value_of(source, json.loads(content)), default=str))
    runs = Runs(folder)
    listed = runs.listing()
    assert {row["id"] for row in listed["runs"]} == {"damaged", "whole"}
    _json(listed)
    for run in ("damaged", "whole"):
        _json(runs.about(run))
        _json(runs.series(run))
    assert len(runs.series("whole")["x"]) == 2
    text = page(group_seeds(read_all([folder])))
    assert str(folder / "whole") in text


def _json(told: object) -> None:
    """As the server sends it: a browser's JSON knows neither NaN nor infinity."""
    json.dumps(told, allow_nan=False, ensure_ascii=False).encode()


def _records(source: random.Random, lines: bytes) -> bytes:
    if source.random() < 0.5:
        return damage.bytes_of(source, lines)
    found = [json.loads(line) for line in lines.splitlines()]
    return b"".join(
        json.dumps(damage.value_of(source, line), default=str).encode() + b"\n" for line in found
    )


def _toml(source: random.Random, content: bytes) -> bytes:
    if source.random() < 0.5:
        return damage.bytes_of(source, content)
    table = damage.value_of(source, tomllib.loads(content.decode()))
    try:
        return tomli_w.dumps(table).encode()
    except (TypeError, ValueError, AttributeError):  # no TOML can say it
        return damage.bytes_of(source, content)


TARGETS = {
    "experiments": experiments,
    "tuned": tuned,
    "topologies": topologies,
    "partitions": partition_files,
    "links": links,
    "records": records,
    "folders": folders,
}
