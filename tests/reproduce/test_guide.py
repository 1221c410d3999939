"""Which algorithm should I use: every method in the same settings, tuned alike."""

import io
import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from parley.cli import reproduce as cli
from parley.errors import BadValue
from parley.reproduce import claims, collect, page, tuned
from parley.reproduce.campaign import Order, Shard
from parley.reproduce.cells import key_of, parsed, select, with_methods
from parley.reproduce.collect import Result
from parley.reproduce.study import Setting, Study, named
from parley.reproduce.tuned import Outcome, Task
from parley.sweep import compare

GUIDE = named("guide")
OPTIONS = {"data": "digits", "model": "logistic", "agents": 4}
ABOUT = "Digits, 4 agents"
SMALL = {
    "ring": Setting(title="A small ring", about=ABOUT, options={
        **OPTIONS, "topology": "ring", "partition": "dirichlet:0.5",
    }),
    "changing": Setting(options={
        **OPTIONS, "topology": "one-peer-exponential", "partition": "iid",
    }),
}  # fmt: skip
LITTLE = Order(trials=2, trial_epochs=1, epochs=2, seeds=2, fraction=0.2)
METHODS = "dpsgd,ngc,relaysgd"


def small(methods: str = METHODS) -> Study:
    """The guide on digits, with some methods."""
    return with_methods(GUIDE.model_copy(update={"settings": SMALL}), methods)[0]


def run(methods: str, order: Order, out: Path, setting: str = "ring") -> list[Outcome]:
    chosen, names = with_methods(small(methods), methods)
    return [o for _, o in tuned.run(select(chosen, setting, None, names), order, 1, out)]


def read(path: Path) -> dict[str, Result]:
    return {r.label: r for r in collect.read_results(small(), path.stem, path)}


def markdown(out: Path) -> str:
    return page.markdown(collect.collect(small(), out), {})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("guide")
    done = run(METHODS, LITTLE, out)
    assert [(outcome.label, outcome.refusal, outcome.diverged) for outcome in done] == [
        ("dpsgd", "", False),
        ("ngc", "", False),
        ("relaysgd", "", False),
    ]
    return out


def test_every_seed_runs_at_the_rate_that_won(results: Path) -> None:
    found = read(results / "ring.jsonl")
    assert set(found) == {"D-PSGD", "NGC", "RelaySGD"}
    for of in found.values():
        assert list(of.runs) == [0, 1]
        assert of.about["epochs"] == 2 and of.about["momentum"] == "0.9"
        assert 0.003 <= of.about["lr"] <= 0.3
    assert found["RelaySGD"].about["topology"] == "spanning-tree:ring"


def test_what_is_finished_is_not_run_again(results: Path) -> None:
    runs = {path: path.stat().st_mtime_ns for path in results.rglob("records.jsonl")}
    assert len(runs) == 3 * (2 + 2)
    before = (results / "ring.jsonl").read_text()
    run(METHODS, LITTLE, results)
    assert {path: path.stat().st_mtime_ns for path in results.rglob("records.jsonl")} == runs
    assert (results / "ring.jsonl").read_text() == before


def test_more_seeds_need_only_the_records(results: Path, tmp_path: Path) -> None:
    """At the settings that won, without trials and without the seeds that are recorded."""
    for path in results.glob("*.jsonl"):
        shutil.copy(path, tmp_path)
    run(METHODS, replace(LITTLE, seeds=3), tmp_path)
    ran = {path.parent.name for path in tmp_path.rglob("records.jsonl")}
    assert ran == {"seed-2"} and not list(tmp_path.rglob("trial-*"))
    before = read(results / "ring.jsonl")
    for label, of in read(tmp_path / "ring.jsonl").items():
        assert [of.runs[seed] for seed in (0, 1)] == list(before[label].runs.values())
        new = of.runs[2][0]
        assert [new[name] for name in tuned.TUNED] == [
            before[label].about[name] for name in tuned.TUNED
        ]
    trials = "ring-trials.jsonl"
    assert (tmp_path / trials).read_text() == (results / trials).read_text()


def test_other_methods_are_added_and_those_that_are_not_named_stay(
    results: Path, tmp_path: Path
) -> None:
    out = tmp_path / "more"
    shutil.copytree(results, out)
    before = (out / "ring.jsonl").read_text()
    run("dpsgd:momentum=0", LITTLE, out)
    assert (out / "ring.jsonl").read_text().startswith(before)
    found = read(out / "ring.jsonl")
    assert set(found) == {"D-PSGD", "NGC", "RelaySGD", "D-PSGD momentum=0"}
    assert found["D-PSGD momentum=0"].about["momentum"] == "none"
    trials = [json.loads(line) for line in (out / "ring-trials.jsonl").read_text().splitlines()]
    assert [(t["label"], t["trial"]) for t in trials] == [
        (label, trial)
        for label in ("D-PSGD", "NGC", "RelaySGD", "D-PSGD momentum=0")
        for trial in (0, 1)
    ]
    for label, of in found.items():  # the best trial's rate is the one that was run
        best = max((t for t in trials if t["label"] == label), key=lambda t: t["accuracy_held_out"])
        assert of.about["lr"] == best["lr"]


def test_an_averaging_rate_that_is_given_is_not_tuned(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "more"
    shutil.copytree(results, out)
    run("choco,choco:gamma=0.1", LITTLE, out)
    found = read(out / "ring.jsonl")
    assert found["CHOCO-SGD γ=0.1"].about["gamma"] == 0.1
    trials = [json.loads(line) for line in (out / "ring-trials.jsonl").read_text().splitlines()]
    tuned = {label: {t.get("gamma") for t in trials if t["label"] == label} for label in found}
    assert tuned["CHOCO-SGD γ=0.1"] == {None}
    assert len(tuned["CHOCO-SGD"]) == 2 and None not in tuned["CHOCO-SGD"]


def test_a_rate_that_won_at_the_edge_of_those_tried_is_told(tmp_path: Path) -> None:
    won = {"low": (0.9, 0.5, 0.1), "inside": (0.1, 0.9, 0.5), "high": (0.1, 0.5, 0.9)}
    lines = [
        {"label": label, "lr": lr, "diverged": False, "accuracy_held_out": accuracy}
        for label, accuracies in won.items()
        for lr, accuracy in zip((0.01, 0.1, 1.0), accuracies, strict=True)
    ]
    lines += [{"label": "lost", "lr": lr, "diverged": True} for lr in (0.01, 0.1)]
    whole = [{"method": line["label"], "seed": 0, **line} for line in lines]
    (tmp_path / "ring-trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in whole))
    assert collect._at_the_edge(tmp_path / "ring-trials.jsonl") == [
        "The lowest rate that was tried won for low: a lower one may be better still.",
        "The highest rate that was tried won for high: a higher one may be better still.",
    ]


@pytest.mark.parametrize(
    ("methods", "budget", "said"),
    [
        ("dpsgd,nosuch", LITTLE, "algorithm: 'nosuch' is not valid"),
        ("dpsgd,dpsgd", LITTLE, "methods: 'dpsgd' is not valid .D-PSGD is given twice"),
        ("ngc:alpha=0,ngc:alpha=0.0", LITTLE, "NGC α=0.* is given twice"),
        ("dpsgd,ngc:lr=0.05", LITTLE, "methods: 'ngc:lr=0.05' is not valid .ngc has lr, which is"),
        ("dpsgd:epochs=3", LITTLE, "dpsgd has epochs, which is tuned or the same for all"),
        ("dpsgd", replace(LITTLE, fraction=0), "fraction: 0"),
        ("dpsgd", replace(LITTLE, test_fraction=2), "test_fraction: 2"),
        ("qgm", replace(LITTLE, epochs=3), "ring.jsonl has runs with epochs 2"),
        ("qgm", replace(LITTLE, trials=3), "ring.jsonl has runs with trials 2"),
        ("qgm", replace(LITTLE, trial_epochs=2), "ring.jsonl has runs with trial_epochs 1"),
        ("qgm", replace(LITTLE, test_fraction=0.5), "has runs with test_fraction 1.0"),
        ("ngc", replace(LITTLE, seeds=1), "has runs with seed 1 of NGC"),
    ],
)
def test_bad_input_is_refused_before_anything_runs_and_changes_nothing(
    results: Path, tmp_path: Path, methods: str, budget: Order, said: str
) -> None:
    shutil.copy(results / "ring.jsonl", tmp_path)
    with pytest.raises(BadValue, match=said):
        run(methods, budget, tmp_path)
    [kept] = tmp_path.iterdir()
    assert kept.read_text() == (results / "ring.jsonl").read_text()


def test_damaged_records_are_named_and_left_alone(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "ring.jsonl"
    path.write_text((results / "ring.jsonl").read_text()[:-20])
    lines = len((results / "ring.jsonl").read_text().splitlines())
    with pytest.raises(BadValue, match=f"ring.jsonl is damaged in line {lines}"):
        run("dpsgd", LITTLE, tmp_path)


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("[1]", ""),
        ('{"method": "dpsgd"}', ": it lacks label, seed, diverged, lr"),
        ('{"method": "dpsgd", "label": "D-PSGD", "seed": 0, "diverged": false}', ": it lacks lr"),
        (
            '{"method": "dpsgd", "label": "D-PSGD", "seed": "0", "lr": 0.1, "diverged": true}',
            ": its seed is not a number",
        ),
        ("\udcff", ""),
    ],
)
def test_a_report_names_the_line_that_it_cannot_use(line: str, how: str, tmp_path: Path) -> None:
    (tmp_path / "ring.jsonl").write_text(line + "\n", errors="surrogateescape")
    with pytest.raises(BadValue, match=f"ring.jsonl is damaged in line 1{how}"):
        markdown(tmp_path)
    with pytest.raises(BadValue, match="is damaged in line 1"):
        run("dpsgd", LITTLE, tmp_path)


def test_records_that_do_not_say_how_long_trials_were_are_not_mixed_with_others(
    results: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in (results / "ring.jsonl").read_text().splitlines()]
    for line in lines:
        del line["trial_epochs"]
    (tmp_path / "ring.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(BadValue, match="has runs with trial_epochs 5"):
        run("qgm", LITTLE, tmp_path)


def test_names_and_figures_fit_a_terminal_of_80_columns(results: Path) -> None:
    screen = Console(width=80, file=io.StringIO())
    [(_, _, settings)] = collect.collect(small(), results).sections()
    shown = page.table_of(small(), settings, named=False)
    screen.print(shown.terminal(80))
    assert isinstance(screen.file, io.StringIO)
    lines = screen.file.getvalue().splitlines()
    for label, *cells in shown.rows:
        assert label in " ".join(lines)
        [line] = [line for line in lines if line.split()[:2] == [label, cells[0].split()[0]]]
        assert all(cell in line for cell in cells[:6])


def test_the_table_is_made_from_the_records(results: Path) -> None:
    [(_, _, [(_, members)])] = collect.collect(small(), results).sections()
    means = [
        statistics.fmean(100 * records[-1]["accuracy_mean_model"] for records in of.runs.values())
        for of in members
    ]
    assert means == sorted(means, reverse=True), "best first"
    shown = page.table_of(small(), [("ring", members)], named=False)
    assert [row[0] for row in shown.rows] == [of.label for of in members]
    first = list(members[0].by_seed("accuracy_mean_model").values())
    assert shown.rows[0][1] == f"{means[0]:.1f} ± {12.706 * statistics.stdev(first) / 2**0.5:.1f}"
    assert "| NGC |" in markdown(results) and "significant" in markdown(results)
    assert not claims.better(members), "two seeds are too few"


def test_shards_together_are_the_whole(results: Path, tmp_path: Path) -> None:
    """Each runs its methods and leaves the records to the command that collects them."""
    for number in (1, 2):
        run(METHODS, replace(LITTLE, shard=Shard(number, 2)), tmp_path)
        ran = {path.name for path in (tmp_path / "ring").iterdir()}
        assert ran == ({"dpsgd", "relaysgd"} if number == 1 else {"dpsgd", "ngc", "relaysgd"})
    assert not list(tmp_path.glob("*.jsonl"))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")}
    run(METHODS, LITTLE, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")} == times
    timed = {"seconds", "seconds_network", "commit"}
    there, here = (
        [
            {k: v for k, v in json.loads(line).items() if k not in timed}
            for line in (folder / "ring.jsonl").read_text().splitlines()
        ]
        for folder in (results, tmp_path)
    )
    assert there == here


def test_the_page_and_the_picture_go_where_they_are_asked_for(
    results: Path, tmp_path: Path
) -> None:
    document, picture = tmp_path / "page.md", tmp_path / "guide.png"
    asked = ["guide", "--report", "--out", str(results), "--markdown", str(document)]
    done = CliRunner().invoke(cli.app, [*asked, "--picture", str(picture)])
    assert done.exit_code == 0, done.output
    assert "![guide](guide.png)" in document.read_text()
    assert "| NGC |" in document.read_text()
    assert picture.stat().st_size > 10_000
    done = CliRunner().invoke(cli.app, [*asked, "--picture", str(tmp_path / "guide.xyz")])
    assert done.exit_code and "picture" in str(done.output or done.exception)
    done = CliRunner().invoke(cli.app, [*asked[:-1], str(tmp_path / "none" / "page.md")])
    assert done.exit_code and "markdown" in str(done.output or done.exception)
    assert not (tmp_path / "none").exists()


def test_a_seed_that_diverges_before_its_first_record_is_counted(
    results: Path, tmp_path: Path
) -> None:
    [cell] = select(small("dpsgd"), "ring", None, ["dpsgd"])
    task = Task(cell, LITTLE, tmp_path)
    asked = task.asked.replace(model="mlp", lr=1e6, evaluate_every=2)
    jobs = compare.jobs([asked], 2, tmp_path / "runs", names=["D-PSGD"])
    jobs = [replace(job, may_diverge=True) for job in jobs]
    compare.compare(jobs, 1, tmp_path / "runs", resume=True)
    about = {"method": task.key, "label": "D-PSGD"}
    lost = [line for job in jobs for line in tuned.run_lines(about, job)]
    assert [(line["seed"], line["diverged"], "epoch" in line) for line in lost] == [
        (0, True, False),
        (1, True, False),
    ]
    kept = [json.loads(line) for line in (results / "ring.jsonl").read_text().splitlines()]
    kept = [line for line in kept if (line["label"], line["seed"]) != ("D-PSGD", 1)]
    (tmp_path / "ring.jsonl").write_text("\n".join(map(json.dumps, [*kept, lost[1]])))
    found = read(tmp_path / "ring.jsonl")
    assert {label: (len(of.runs), of.lost) for label, of in found.items()} == {
        "D-PSGD": (1, 1), "NGC": (2, 0), "RelaySGD": (2, 0),
    }  # fmt: skip
    page = markdown(tmp_path)
    assert "| 1 of 2 |" in page
    assert "Diverged at the settings that won: D-PSGD (1 of 2 seeds)." in page
    assert "2 epochs, 2 seeds; trials of 1 epoch." in page


def test_a_method_that_diverges_in_every_trial_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned.tune, "winners", lambda trials: {})
    [outcome] = run("dpsgd", LITTLE, tmp_path)
    assert outcome.diverged
    assert read(tmp_path / "ring.jsonl") == {}
    assert collect._diverged(tmp_path / "ring.jsonl") == ["Diverged in every trial: D-PSGD."]


def test_a_method_that_the_graph_does_not_suit_is_left_out_with_the_reason(tmp_path: Path) -> None:
    [outcome] = run("cga", LITTLE, tmp_path, "changing")
    assert outcome.refusal.startswith("weights: ") and "symmetric" in outcome.refusal
    assert not list(tmp_path.iterdir())


def test_methods_have_the_same_momentum_unless_asked_and_a_range_of_rates_that_suits_them() -> None:
    assert GUIDE.tune
    for cell in select(GUIDE, "ring"):
        made = Task(cell, LITTLE, Path()).asked
        options, given = made.algorithm.settings(), parsed(cell.method).settings
        asked = float(given.get("momentum", 0.9))
        assert options.get("momentum", asked) == asked, cell
        kind = "adaptive" if "beta1" in options else "momentum" if "momentum" in options else "sgd"
        kind = kind if asked else "sgd"
        assert tuned.rates(GUIDE.tune, made) == GUIDE.tune.rates[kind]  # type: ignore[index]
        assert key_of(parsed(key_of(parsed(cell.method)))) == key_of(parsed(cell.method))


def test_bad_input(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["guide", "rong", "--out", str(tmp_path)])
    assert isinstance(done.exception, BadValue)
    assert "'rong' is not valid" in str(done.exception) and "ring" in str(done.exception)
    done = CliRunner().invoke(cli.app, ["guide", "--report", "--out", str(tmp_path)])
    assert "a folder with results of parley reproduce guide" in str(done.exception)
