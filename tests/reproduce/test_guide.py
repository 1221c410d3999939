"""Which algorithm should I use: every method in the same settings, tuned alike."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parley.cli import reproduce as cli
from parley.errors import BadValue
from parley.reproduce import guide
from parley.reproduce.guide import Budget, Setting
from parley.sweep import compare
from parley.sweep.compare import parse_algorithms

SMALL = Setting("ring", "A small ring", 4, "ring", "dirichlet:0.5", "digits", "logistic")
LITTLE = Budget(trials=2, trial_epochs=1, epochs=2, seeds=2, fraction=0.2)
METHODS = "dpsgd,ngc,relaysgd"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("guide")
    done = list(guide.run([SMALL], METHODS, LITTLE, 1, out))
    assert [(outcome.label, outcome.refusal, outcome.diverged) for _, outcome in done] == [
        ("dpsgd", "", False),
        ("ngc", "", False),
        ("relaysgd", "", False),
    ]
    return out


def test_every_seed_runs_at_the_rate_that_won(results: Path) -> None:
    found = guide.read(results / "ring.jsonl")
    assert set(found) == {"D-PSGD", "NGC", "RelaySGD"}
    for of in found.values():
        assert list(of.by_seed) == [0, 1]
        assert of.about["epochs"] == 2 and of.about["momentum"] == "0.9"
        assert 0.003 <= of.about["lr"] <= 0.3
    assert found["RelaySGD"].about["topology"] == "spanning-tree:ring"


def test_what_is_finished_is_not_run_again(results: Path) -> None:
    runs = {path: path.stat().st_mtime_ns for path in results.rglob("records.jsonl")}
    assert len(runs) == 3 * (2 + 2)
    before = (results / "ring.jsonl").read_text()
    list(guide.run([SMALL], METHODS, LITTLE, 1, results))
    assert {path: path.stat().st_mtime_ns for path in results.rglob("records.jsonl")} == runs
    assert (results / "ring.jsonl").read_text() == before


def test_the_table_is_made_from_the_records(results: Path) -> None:
    found = guide.read(results / "ring.jsonl")
    means = [
        statistics.fmean(
            100 * records[-1]["accuracy_mean_model"] for records in of.by_seed.values()
        )
        for of in found.values()
    ]
    assert means == sorted(means, reverse=True), "best first"
    shown = guide.table(found)
    assert [row[0] for row in shown.rows] == list(found)
    assert shown.rows[0][1].startswith(f"{means[0]:.1f} ± ")
    assert "| NGC |" in guide.markdown(results)


def test_the_page_and_the_picture_go_where_they_are_asked_for(
    results: Path, tmp_path: Path
) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "guide.png"
    asked = ["guide", "--report", "--out", str(results), "--markdown", str(page)]
    done = CliRunner().invoke(cli.app, [*asked, "--picture", str(picture)])
    assert done.exit_code == 0, done.output
    assert guide.markdown(results).strip() in page.read_text()
    assert picture.stat().st_size > 10_000


def test_a_seed_that_diverges_before_its_first_record_is_counted(
    results: Path, tmp_path: Path
) -> None:
    [method] = parse_algorithms("dpsgd")
    asked = guide.experiment(SMALL, method, LITTLE)
    asked = asked.replace(model="mlp", lr=1e6, evaluate_every=2)
    jobs = compare.jobs([asked], 2, tmp_path / "runs", names=["D-PSGD"])
    jobs = [replace(job, may_diverge=True) for job in jobs]
    compare.compare(jobs, 1, tmp_path / "runs", resume=True)
    lost = [line for job in jobs for line in guide._lines(method, job)]
    assert [(line["seed"], line["diverged"], "epoch" in line) for line in lost] == [
        (0, True, False),
        (1, True, False),
    ]
    kept = [json.loads(line) for line in (results / "ring.jsonl").read_text().splitlines()]
    kept = [line for line in kept if (line["label"], line["seed"]) != ("D-PSGD", 1)]
    (tmp_path / "ring.jsonl").write_text("\n".join(map(json.dumps, [*kept, lost[1]])))
    found = guide.read(tmp_path / "ring.jsonl")
    assert {label: of.seeds for label, of in found.items()} == {
        "D-PSGD": "1 of 2", "NGC": "2", "RelaySGD": "2",
    }  # fmt: skip
    page = guide.markdown(tmp_path)
    assert "Diverged at the settings that won: D-PSGD (1 of 2 seeds)." in page
    assert "2 epochs, 2 seeds." in page


def test_a_method_that_diverges_in_every_trial_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide.tune, "winners", lambda trials: {})
    [(_, outcome)] = guide.run([SMALL], "dpsgd", LITTLE, 1, tmp_path)
    assert outcome.diverged
    assert guide.read(tmp_path / "ring.jsonl") == {}
    assert guide._lost(tmp_path / "ring.jsonl") == "Diverged in every trial: D-PSGD.\n"


def test_a_method_that_the_graph_does_not_suit_is_left_out_with_the_reason(tmp_path: Path) -> None:
    changing = Setting("changing", "", 4, "one-peer-exponential", "iid", "digits", "logistic")
    [cga] = parse_algorithms("cga")
    outcome = guide.run_method(changing, cga, LITTLE, 1, tmp_path)
    assert outcome.refusal.startswith("weights: ") and "symmetric" in outcome.refusal
    assert not list(tmp_path.iterdir())


def test_all_methods_have_the_same_momentum_and_a_range_of_rates_that_suits_them() -> None:
    settings = [guide.SETTINGS["ring"]]
    for method in parse_algorithms(guide.METHODS):
        made = guide.experiment(settings[0], method, LITTLE)
        options = made.algorithm.settings()
        assert options.get("momentum", guide.MOMENTUM) == guide.MOMENTUM, method
        kind = "adaptive" if "beta1" in options else "momentum" if "momentum" in options else "sgd"
        assert guide.rates(made) == guide.RATES[kind]


def test_bad_input(tmp_path: Path) -> None:
    run = CliRunner()
    done = run.invoke(cli.app, ["guide", "rong", "--out", str(tmp_path)])
    assert isinstance(done.exception, BadValue)
    assert "'rong' is not valid" in str(done.exception) and "ring" in str(done.exception)
    done = run.invoke(cli.app, ["guide", "--report", "--out", str(tmp_path)])
    assert "a folder with results of parley reproduce guide" in str(done.exception)
