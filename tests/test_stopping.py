"""Runs that end early, and runs that go on after their end."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parley
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment
from parley.stopping import ACCURACY, LOWER, SPENT, names_of, parse_stop
from parley.store import checkpoint, journal
from parley.training.record import Record

TINY: dict[str, Any] = {
    "agents": 3, "model": "logistic", "fraction": 0.1, "test_fraction": 0.1, "gossip_rounds": 1,
    "engine": "loop", "progress": False, "algorithm": "dpsgd",
}  # fmt: skip
TIMES = {"seconds", "gradients_per_second", "peak_memory_mb"}


def lasting(records: list[Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


async def sleeping(record: Any) -> bool:
    return True


class TestConditions:
    def test_metrics_are_fields_of_records(self) -> None:
        aliases, metrics = names_of(ACCURACY)
        recorded = set(Record.__annotations__) | {"bytes", "megabytes"}
        assert {*aliases.values(), *metrics, *LOWER, *SPENT} <= recorded
        assert aliases == {"accuracy": "accuracy_mean_model"} and all(metrics.values())

    def test_patience_counts_from_the_best(self) -> None:
        stop = parse_stop("accuracy:patience=2")
        seen = [{"accuracy_mean_model": a} for a in (0.1, 0.5, 0.5, 0.4)]
        assert [bool(stop.reason(seen[: n + 1])) for n in range(4)] == [False, False, False, True]

    @pytest.mark.parametrize(
        "spec, words",
        [
            ("accuracy>0.9", "valid: conditions such as"),
            ("acuracy>=0.9", "did you mean 'accuracy'"),
            ("loss:patience=0", "patience on a loss"),
            ("seconds:patience=3", "patience on a loss"),
            ("loss<=x", r"loss<=x' is not valid \(x is not a finite number\)"),
            ("accuracy>=nan", "nan is not a finite number"),
            ("seconds>=inf", "inf is not a finite number"),
            ("loss:patience=inf", "inf is not a finite number"),
            ("loss:patience=1.5", "patience on a loss"),
            ("seconds<=600", r"seconds only grow.*valid: seconds>= and a number above 0"),
            ("megabytes>=0", "a budget is a lower bound above 0"),
            ("accuracy>=90", r"accuracy is never above 1\); valid: from 0 to 1"),
            ("accuracy>=0", r"never below 0, so every record would meet it\); valid: between 0"),
            ("accuracy_own<=1", r"accuracy is never above 1, so every record would meet it"),
            ("accuracy_own<=-0.5", r"accuracy is never below 0\); valid: from 0 to 1"),
            ("rmse<=3", "valid: accuracy, accuracy_after_gossip"),
            ("seconds_network>=5", r"no network is simulated\); valid: seconds, or seconds_netw"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, spec: str, words: str) -> None:
        with pytest.raises(BadValue, match=rf"stop_when: .*{words}"):
            Experiment.of(algorithm="dpsgd", stop_when=spec)

    def test_metrics_of_other_tasks(self) -> None:
        """Errors get smaller and have no end, shares lie between 0 and 1."""
        fitting = Experiment.of(task="regression", stop_when="rmse<=3, mae:patience=2, mae>=1e6")
        stop = parse_stop(fitting.stop_when, fitting.measures)
        assert [condition.metric for condition in stop.conditions] == [
            "rmse_mean_model", "mae_mean_model", "mae_mean_model",
        ]  # fmt: skip
        assert not any(condition.higher for condition in stop.conditions)
        with pytest.raises(BadValue, match=r"RMSE is never below 0\); valid: from 0 to inf"):
            Experiment.of(task="regression", stop_when="rmse<=-1")
        with pytest.raises(BadValue, match="stop_when: 'accuracy' is not valid; valid: bytes"):
            Experiment.of(task="regression", stop_when="accuracy>=0.9")

    def test_a_budget_of_simulated_time(self) -> None:
        early = parley.train(
            **TINY, epochs=4, links="delay=1", stop_when="seconds_network>=0.5", workers=1
        )
        assert early.summary["epochs"] == 1


class TestStopping:
    def test_a_condition_ends_the_run_as_the_last_epoch_would(self, tmp_path: Path) -> None:
        whole = parley.train(**TINY, epochs=6, out=tmp_path / "whole")
        reached = whole.records[2]["loss"]
        early = parley.train(
            **TINY, epochs=6, stop_when=f"loss<={reached}, seconds>=1e9", out=tmp_path / "early"
        )
        assert lasting(early.records) == lasting(whole.records[:3])
        assert early.summary["epochs"] == 3
        assert early.summary["stopped"] == f"loss<={reached}"
        assert "stopped" not in whole.summary
        assert checkpoint.epochs_present(tmp_path / "early")[-1] == 3
        # Resuming changes nothing while the condition stands.
        again = parley.train(
            **TINY, epochs=6, stop_when=f"loss<={reached}, seconds>=1e9", out=tmp_path / "early",
            resume=True,
        )  # fmt: skip
        assert again.summary == early.summary
        # Without it the run goes on, and is the run that never stopped.
        longer = parley.train(**TINY, epochs=6, out=tmp_path / "early", resume=True)
        assert lasting(longer.records) == lasting(whole.records)
        assert torch.equal(longer.x_ND, whole.x_ND)

    def test_a_budget_of_bytes(self) -> None:
        whole = parley.train(**TINY, epochs=4)
        each = whole.records[0]["bytes_models"]
        early = parley.train(**TINY, epochs=4, stop_when=f"bytes>={1.5 * each}")
        assert len(early.records) == 2

    def test_callbacks(self) -> None:
        seen: list[Any] = []

        def on_epoch(epoch: int) -> bool:
            seen.append(epoch)
            return epoch == 3

        result = parley.train(
            **TINY, epochs=9, evaluate_every=2, on_epoch=on_epoch, on_record=seen.append
        )
        records = [r["epoch"] for r in result.records]
        assert records == [2, 3]
        assert [s if isinstance(s, int) else s["epoch"] for s in seen] == [1, 2, 2, 3, 3]
        assert result.summary["stopped"] == "on_epoch returned True"

    @pytest.mark.parametrize("true", [np.bool_(True), np.array(True), torch.tensor(True)])
    def test_comparisons_of_numpy_and_torch_stop_too(self, true: Any) -> None:
        result = parley.train(**TINY, epochs=3, on_record=lambda record: true)
        assert [r["epoch"] for r in result.records] == [1]
        assert result.summary["stopped"] == "on_record returned True"

    def test_other_answers_do_not(self) -> None:
        answers = iter([np.bool_(False), 1, "yes", np.array([True, True])])
        result = parley.train(**TINY, epochs=4, on_epoch=lambda epoch: next(answers))
        assert len(result.records) == 4 and "stopped" not in result.summary

    @pytest.mark.parametrize(
        "field, given, words",
        [
            ("on_epoch", 3, r"3 is not valid \(it cannot be called\); valid: .* of \(epoch\)"),
            ("on_record", "print", r"'print' .* valid: a function of \(record\)"),
            ("on_epoch", lambda: True, r"too many positional arguments\); valid: .*\(epoch\)"),
            ("on_record", lambda record, more: True, r"missing a required argument: 'more'\)"),
            ("on_record", sleeping, r"an async function would never run\)"),
            ("lr_decay", lambda epoch: 1.0, r"valid: a function of \(epoch, epochs\)"),
        ],
    )
    def test_what_cannot_be_called_is_refused_at_once(
        self, field: str, given: Any, words: str, tmp_path: Path
    ) -> None:
        with pytest.raises(BadValue, match=rf"^{field}: .*{words}"):
            parley.train(**TINY, epochs=2, out=tmp_path / "run", **{field: given})
        assert not (tmp_path / "run").exists()

    def test_functions_that_tell_nothing_about_their_arguments(self) -> None:
        """Many of those written in C have no signature."""
        seen: dict[int, int] = {}
        parley.train(**TINY, epochs=2, on_epoch=seen.setdefault, on_record=max)
        assert set(seen) == {1, 2}

    def test_all_workers_hear_of_it(self) -> None:
        result = parley.train(**TINY, epochs=5, workers=2, on_record=lambda r: r["epoch"] == 2)
        assert [r["epoch"] for r in result.records] == [1, 2]


class TestExtending:
    @pytest.mark.parametrize("every", [1, 2])
    def test_equals_the_run_that_was_longer_from_the_start(
        self, tmp_path: Path, every: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        options: dict[str, Any] = {**TINY, "evaluate_every": every, "lr_decay": "exponential:0.9"}
        whole = parley.train(**options, epochs=6)
        parley.train(**options, epochs=3, out=tmp_path)
        with caplog.at_level(logging.WARNING):
            longer = parley.train(**options, epochs=6, out=tmp_path, resume=True)
        assert not caplog.records
        assert lasting(longer.records) == lasting(whole.records)
        assert torch.equal(longer.x_ND, whole.x_ND)
        assert parley.load(tmp_path).experiment.epochs == 6
        assert parley.load(tmp_path).summary["epochs"] == 6  # type: ignore[index]

    def test_a_schedule_that_knows_the_end_is_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        parley.train(**TINY, epochs=2, lr_decay="cosine", out=tmp_path)
        with caplog.at_level(logging.WARNING):
            parley.train(**TINY, epochs=4, lr_decay="cosine", out=tmp_path, resume=True)
        assert "lr_decay cosine depends on the number of epochs" in caplog.text
        assert "differ from a new run of 4 epochs" in caplog.text

    def test_a_run_cannot_be_shortened(self, tmp_path: Path) -> None:
        parley.train(**TINY, epochs=3, out=tmp_path)
        with pytest.raises(BadValue, match=r"epochs: 2 .*has trained 3 epochs already.*at least 3"):
            parley.train(**TINY, epochs=2, out=tmp_path, resume=True)
        with pytest.raises(ParleyError, match="already holds this experiment"):
            parley.train(**TINY, epochs=4, out=tmp_path)
        with pytest.raises(ParleyError, match="differ in lr"):
            parley.train(**TINY, epochs=4, lr=0.5, out=tmp_path, resume=True)

    def test_epochs_without_a_record_count_as_trained(self, tmp_path: Path) -> None:
        """Three have a record, the fourth only a checkpoint: the folder stays as it is."""
        options: dict[str, Any] = {**TINY, "evaluate_every": 3, "out": tmp_path}

        def failing(epoch: int) -> None:
            if epoch == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            parley.train(**options, epochs=9, on_epoch=failing)
        for epochs in (3, 4):
            with pytest.raises(BadValue, match=r"trained 4 epochs already, the last.*at least 5"):
                parley.train(**options, epochs=epochs, resume=True)
        assert parley.load(tmp_path).experiment.epochs == 9
        shorter = parley.train(**options, epochs=5, resume=True)
        assert [record["epoch"] for record in shorter.records] == [3, 5]


class TestCheckpoints:
    def test_every_few_epochs_and_at_the_end(self, tmp_path: Path) -> None:
        parley.train(**TINY, epochs=7, checkpoint_every=3, keep=5, out=tmp_path)
        assert checkpoint.epochs_present(tmp_path) == [3, 6, 7]
        parley.train(**TINY, epochs=9, checkpoint_every=1, keep=1, out=tmp_path, resume=True)
        assert checkpoint.epochs_present(tmp_path) == [9]

    def test_stopped_between_checkpoints(self, tmp_path: Path) -> None:
        """It goes back to the last checkpoint, and makes the later epochs again."""
        whole = parley.train(**TINY, epochs=6)

        def failing(record: Any) -> None:
            if record["epoch"] == 5:
                raise KeyboardInterrupt

        options: dict[str, Any] = {**TINY, "epochs": 6, "checkpoint_every": 3, "out": tmp_path}
        with pytest.raises(KeyboardInterrupt):
            parley.train(**options, on_record=failing)
        assert checkpoint.epochs_present(tmp_path) == [3]
        rest = parley.train(**options, resume=True)
        assert lasting(rest.records) == lasting(whole.records)

    def test_large_ones_are_said_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(journal, "LARGE", 1000)
        with caplog.at_level(logging.WARNING):
            parley.train(**TINY, epochs=2, out=tmp_path)
        assert caplog.text.count("checkpoints are large: 0.0 GB each, and 2 are kept") == 1


@pytest.mark.parametrize(
    "spec", ["loss:patience=inf", "loss:patience=nan", "accuracy>=nan", "seconds>=inf"]
)
def test_numbers_that_are_not_finite_are_refused(spec: str) -> None:
    with pytest.raises(BadValue, match=r"^stop_when: .* is not a finite number"):
        parse_stop(spec)
