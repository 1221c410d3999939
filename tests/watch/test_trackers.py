"""Trackers receive what the records say, by the real packages, read back from their own files."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import parley
from parley import BadValue
from parley.experiment import Experiment
from parley.files import parse_json
from parley.training.events import EpochDone
from parley.watch import trackers
from parley.watch.trackers import scalars

NAMES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run told to all three, stopped after its first epoch and resumed."""
    for package in NAMES.values():
        pytest.importorskip(
            package, reason=f"{package} is not installed: parley-learning[trackers]"
        )
    out = tmp_path_factory.mktemp("logged") / "run"
    options = {"agents": 3, "epochs": 3, "out": out, "progress": False}

    def stop(event: object) -> None:
        if isinstance(event, EpochDone) and event.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parley.train(**options, watch=stop, log="tensorboard")
    # In a process of its own: W&B keeps a service beside the process that uses it.
    call = (
        f"import parley; parley.train(agents=3, epochs=3, out={str(out)!r}, resume=True, "
        "progress=False, log=['tensorboard', 'wandb', 'mlflow'])"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "MLFLOW"))}
    environment |= {"WANDB_CACHE_DIR": str(out.parent), "WANDB_CONFIG_DIR": str(out.parent)}
    done = subprocess.run(
        [sys.executable, "-c", call], env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert "fails" not in done.stderr, done.stderr
    return out


@pytest.fixture(scope="module")
def told(logged: Path) -> list[dict[str, float]]:
    lines = (logged / "records.jsonl").read_text().splitlines()
    assert len(lines) == 3
    return [scalars(parse_json(line)) for line in lines]


def test_tensorboard(logged: Path, told: list[dict[str, float]]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(logged / "tensorboard")).Reload()
    assert set(found.Tags()["scalars"]) == set(told[0])
    for name in ("loss", "accuracy_mean_model", "bytes_models", "accuracy_agents/2"):
        points = [(e.step, e.value) for e in found.Scalars(name)]
        # Once each, though the first record was told twice.
        assert points == [(r["step"], pytest.approx(r[name], rel=1e-6)) for r in told]


def wandb_records(text: bytes) -> Iterator[bytes]:
    """What an offline file holds: LevelDB's log format, blocks of 32 KiB, behind seven bytes."""
    at, whole = 7, b""
    assert text[:4] == b":W&B"
    while at + 7 <= len(text):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of the block
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", text[at : at + 7])
        whole += text[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_wandb_offline(logged: Path, told: list[dict[str, float]]) -> None:
    from wandb.proto import wandb_internal_pb2

    [path] = logged.glob("wandb/offline-run-*/run-*.wandb")
    history, config, exit_codes = [], {}, []
    for data in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = record.history.item
            history.append(
                {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            )
        for item in record.run.config.update:
            config[item.key or "/".join(item.nested_key)] = item.value_json
        if record.HasField("exit"):
            exit_codes.append(record.exit.exit_code)
    assert config["agents"] == "3" and config["algorithm.name"] == '"ngc"'
    assert exit_codes == [0] and len(history) == 3
    for row, record in zip(history, told, strict=True):
        assert {k: row[k] for k in record} == pytest.approx(record)


def test_mlflow_local_folder(
    logged: Path, told: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient((logged / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("parley")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "NGC digits seed 0"
    assert run.data.params["algorithm.alpha"] == "1.0"
    for name in ("loss", "accuracy_after_gossip", "distance_agents/1"):
        points = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
        assert points == [(r["step"], pytest.approx(r[name])) for r in told]


def test_a_tracker_that_fails_does_not_end_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(trackers.Tracker):
        package = "json"

        def __init__(self, experiment: Experiment, name: str, folder: Path) -> None: ...

        def log(self, metrics: dict[str, float], step: int) -> None:
            raise OSError("disk\nfull")

        def close(self, complete: bool) -> None:
            raise OSError("still full")

    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", Broken)
    result = parley.train(
        agents=3, epochs=2, out=tmp_path / "run", progress=False, log="tensorboard"
    )
    assert len(result.records) == 2
    assert caplog.text.count("tensorboard failed (disk full); the run continues") == 1
    assert "disk full" not in capsys.readouterr().err  # a program with logging is told there alone


def test_bad_names_and_missing_packages_are_told_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadValue, match="did you mean 'wandb'"):
        parley.train(log="wandbb", out=tmp_path / "run")
    with pytest.raises(
        BadValue, match="log: 'tensorboard' is not valid; valid: only together with"
    ):
        parley.train(log="tensorboard")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(BadValue, match=r"mlflow is not installed\); valid: pip install"):
        parley.train(log="mlflow", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
