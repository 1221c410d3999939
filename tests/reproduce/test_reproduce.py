"""Presets, costs, campaigns and reports."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

import parley
from parley import models
from parley.algorithms import build
from parley.charts.chart import Axis
from parley.cli import reproduce as cli
from parley.compute import kernels
from parley.data.partition import partition
from parley.errors import BadValue, ParleyError
from parley.files import parse_json
from parley.graphs import ring
from parley.reproduce import campaign, claims, collect, costs, page, pictures
from parley.reproduce.campaign import Order
from parley.reproduce.cells import Cell, Form, cells, parse_form, select
from parley.reproduce.study import named
from parley.results.curves import line_chart
from parley.results.read import find_runs
from parley.results.seeds import field_of
from parley.store import status
from parley.store.folder import ENVIRONMENT, EXPERIMENT, RECORDS, SUMMARY, RunFolder
from tests.reproduce.small import TEXT, Small, small

__all__ = ["small"]
PAPER = named("paper")
METHODS = list(PAPER.methods)[:6]


def all_presets() -> dict[str, Cell]:
    return {**cells(PAPER), **cells(named("follow-up"))}


runner = CliRunner()


def command(*arguments: str) -> Any:
    return runner.invoke(cli.app, list(arguments), catch_exceptions=True)


@pytest.fixture(autouse=True)
def nothing_timed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a new machine."""
    folder = tmp_path_factory.mktemp("speeds")
    monkeypatch.setattr(costs, "cache_folder", lambda: folder)


# What there is


def test_every_cell_of_the_paper_is_an_experiment_in_both_variants() -> None:
    assert len([p for p in all_presets().values() if p.published]) == 132
    folders = {p.folder for p in all_presets().values()}
    assert len(folders) == len(all_presets())
    for preset in all_presets().values():
        run, printed = preset.experiment(Form("as-run")), preset.experiment(Form("as-printed"))
        setting = preset.study.options | preset.study.settings[preset.setting].options
        for e in (run, printed):
            for option in ("data", "model", "agents", "epochs", "batch"):
                assert getattr(e, option) == setting[option]
            assert e.lr == preset.own.get("lr", setting.get("lr"))
            hyper = {k: v for k, v in preset.own.items() if k in ("alpha", "momentum", "gamma")}
            assert e.algorithm.settings().items() >= hyper.items()
            assert e.algorithm.weight_decay == 0  # type: ignore[attr-defined]
            assert e.gossip_rounds == 51
        assert run.same_as(printed)
        for variant in ("as-run", "as-printed"):
            assert 1 <= costs.degree(preset, Form(variant)) < run.agents


def test_later_papers_are_presets_without_figures_of_the_paper() -> None:
    later = [p for p in all_presets().values() if p.section == "follow-up"]
    assert len(later) == 5 * 2 * (5 + 2) and not any(p.published for p in later)
    gut = all_presets()["follow-up/resnet20/dirichlet-0.01/dyck/32/gut"].experiment()
    assert (gut.topology, gut.partition, gut.lr, gut.epochs) == ("dyck", "dirichlet:0.01", 0.1, 200)
    assert gut.algorithm.settings()["mu"] == 0.9
    ngc = all_presets()["follow-up/vgg11/dirichlet-0.1/ring/16/ngc"]
    dpsgd = all_presets()["follow-up/vgg11/dirichlet-0.1/ring/16/dpsgd"]
    assert ngc.experiment().algorithm.settings()["nesterov"] is False
    # An epoch is as long as the largest of 16 unequal parts.
    samples = np.arange(50_000) % 10
    largest = max(map(len, partition("dirichlet:0.1", samples, ring(16), 0).indices))
    assert largest > 50_000 / 16
    assert costs.gradients(ngc) == 3 * costs.gradients(dpsgd) == 3 * 200 * 16 * largest


def test_one_choice_as_printed_changes_nothing_else() -> None:
    seen = set()
    for preset in all_presets().values():
        run = preset.usual
        for choice in preset.study.choices:
            variant = f"as-run-but-{choice}"
            try:
                made = preset.experiment(Form(variant))
            except BadValue as error:
                assert variant in str(error) and preset.name in str(error)
                continue
            seen.add((preset.method, choice))
            printed = preset.experiment(Form("as-printed"))
            [option] = preset.study.choices[choice].options
            if choice == "evonorm":
                assert made.model_options == printed.model_options != run.model_options
                assert made.algorithm == run.algorithm and made.topology == run.topology
            else:
                changed = {option: getattr(printed.algorithm, option)}
                both = build(run.algorithm.name, run.algorithm.settings() | changed)
                assert made.algorithm == both != run.algorithm
                assert run.same_as(made) == ["algorithm"]
    assert {c for m, c in seen if m == "ngc"} == {"gradient", "momentum", "evonorm"}
    assert {c for m, c in seen if m == "cga"} == set(PAPER.choices)
    assert {c for m, c in seen if m == "dpsgd"} == {"gradient", "evonorm"}, "it has no momentum"


def test_several_choices_as_printed_in_whatever_order_are_one_experiment() -> None:
    cga = all_presets()["fashion_mnist/lenet5/ring/10/cga"]
    run, printed = cga.usual, cga.experiment(Form("as-printed"))
    names = ("as-run-but-floor,scale", "as-run-but-scale,floor")
    one, other = (campaign.jobs([cga], Order(variant=name), Path("o"))[0] for name in names)
    assert one == other
    assert one.out.parent.name == "as-run-but-floor,scale"
    both = {name: getattr(printed.algorithm, name) for name in ("qp_floor", "qp_scale")}
    assert both == {"qp_floor": 0.0, "qp_scale": "none"}
    assert one.experiment.algorithm == build("cga", run.algorithm.settings() | both)
    every = "as-run-but-gradient,momentum,floor,scale,scope"
    assert cga.experiment(Form(every)).algorithm == printed.algorithm != run.algorithm
    assert parse_form(PAPER, f"{names[1]}-8-epochs-0.5-data") == Form(names[0], 8, 0.5)


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("as-run-but-flor", "some of gradient, momentum, floor"),
        ("as-run-but-floor,flor", "some of gradient, momentum, floor"),
        ("as-run-but-floor,floor", "comma-separated"),
        ("as-run-but-", "some of gradient"),
        ("as-printed-but-floor", "valid: as-printed, as-run"),
        ("as-rum", "did you mean 'as-run'"),
        ("as-run-but-floor,evonorm", "CGA does not depend on evonorm there"),
    ],
)
def test_wrong_variants_are_refused(variant: str, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        all_presets()["fashion_mnist/lenet5/ring/10/cga"].experiment(Form(variant))


def test_hyper_parameters_of_some_cells() -> None:
    known = all_presets()
    cga = known["cifar10/cnn5/ring/10/cga"].experiment()
    assert cga.algorithm == parley.algorithms.CGA.as_run(momentum=0.9, gamma=0.5)
    assert (cga.lr, cga.lr_decay, cga.model_options) == (0.01, "step", {"evonorm": "hard-swish"})
    torus = known["cifar10/cnn5/torus/20/ngc-alpha0"]
    assert torus.experiment().topology == "circulant:1,5"
    assert torus.experiment(Form("as-printed")).topology == "torus"
    assert torus.experiment(Form("as-printed")).model_options == {"evonorm": "s0"}
    assert torus.experiment().algorithm.alpha == 0  # type: ignore[attr-defined]
    text = known["ag_news/bert-mini/ring/8/ngc"].experiment()
    decay = parley.schedule.parse_schedule(text.lr_decay)
    assert [decay.factor(epoch, 1, 3) for epoch in range(3)] == [1.0, 1.0, 0.1]
    assert text.evaluate_every == 1
    assert known["cifar100/resnet20/ring/5/ngc"].experiment().batch == 20


def test_figures_are_made_of_presets() -> None:
    lines = {line for figure in PAPER.pictures.values() for line in figure.lines.values()}
    assert lines == {name for name in all_presets() if name.startswith("figures/")}
    norms = all_presets()["figures/methods/10/cga"]
    assert norms.experiment().bias_norms == "run"
    assert norms.experiment(Form("as-printed")).bias_norms == "printed"
    assert norms.experiment().lr_decay == "exponential:0.981"
    sweep = [all_presets()[f"figures/alpha/10/{a}"].own["gamma"] for a in ("0", "0.5", "1")]
    assert sweep == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("name", list(PAPER.data))
def test_presets_name_options_that_the_networks_have(name: str) -> None:
    for preset in (p for p in all_presets().values() if p.usual.data == name):
        assert set(preset.usual.model_options) <= set(models.options(preset.usual.model))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fashion_mnist/lenet5/ring/10/ncg",), "fashion_mnist/lenet5/ring/10/ngc"),
        (("fashion-mnist",), "fashion_mnist"),
        (("fashion_mnist", 7), "valid: 5, 10 for fashion_mnist"),
        (("fashion_mnist", 5, ["sgd"]), "did you mean 'dpsgd'"),
        (("figures", None, ["dpsgd"]), "valid: cga, ngc for figures"),
    ],
)
def test_wrong_names_are_met_with_the_nearest(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        select(PAPER, *arguments)


def test_reduced_runs_are_other_experiments_in_other_folders() -> None:
    preset = all_presets()["fashion_mnist/lenet5/ring/10/ngc"]
    whole, short = (campaign.jobs([preset], Order(epochs=e), Path("o"))[0] for e in (None, 8))
    assert whole.out.parent.name == "as-run" and short.out.parent.name == "as-run-8-epochs"
    assert "8 of 100 epochs" in short.label
    assert set(short.experiment.same_as(whole.experiment)) == {"evaluate_every"}
    assert (short.experiment.epochs, whole.experiment.epochs) == (8, 100)
    assert preset.form("", 100, 1.0) == Form("as-run")
    with pytest.raises(BadValue, match="1 to 100"):
        preset.form("", 200, None)
    with pytest.raises(BadValue, match="above 0, at most 1"):
        preset.form("", None, 1.5)
    curve = all_presets()["figures/iid/5/ring"]
    decay = parley.schedule.parse_schedule(curve.experiment(Form("", 30)).lr_decay)
    assert decay.factor(30, 1, 30) == pytest.approx(0.981**300, rel=1e-3)


def test_a_fraction_of_the_data_is_an_option() -> None:
    preset = all_presets()["fashion_mnist/lenet5/ring/10/ngc"]
    job = campaign.jobs([preset], Order(fraction=0.1), Path("o"))[0]
    assert job.out.parent.name == "as-run-0.1-data"
    assert parse_form(PAPER, "as-run-0.1-data") == Form("as-run", None, 0.1)


# What it costs


def test_costs_follow_samples_and_gradients() -> None:
    known = all_presets()
    ngc, dpsgd = (known[f"cifar10/cnn5/torus/20/{m}"] for m in ("ngc", "dpsgd"))
    assert costs.gradients(dpsgd) == 100 * 50_000
    assert costs.gradients(ngc) == 5 * costs.gradients(dpsgd)
    assert costs.gradients(ngc, Form("", 10, 0.1)) == costs.gradients(ngc) / 100
    assert costs.hours(ngc, 1000.0) == pytest.approx(
        (costs.gradients(ngc) + costs.evaluations(ngc) / 3) / 3.6e6
    )


def test_calibration_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = all_presets()["fashion_mnist/lenet5/ring/10/ngc"]
    monkeypatch.setattr(costs, "BUDGET", 0.05)
    calibration = costs.Calibration()
    assert not calibration.known(preset)
    calibration.measure(preset)
    speed = costs.Calibration().speed(preset)
    assert speed and speed.per_second > 0 and speed.here and speed == calibration.speed(preset)
    # Other kernels have another speed.
    monkeypatch.setattr(kernels, "identity", lambda: "kernels-of-tomorrow")
    recorded = costs.Calibration().speed(preset)
    assert not costs.Calibration().known(preset) and recorded and not recorded.here


def test_every_network_has_a_recorded_speed() -> None:
    record = json.loads(Path("benchmarks/costs-avx-512.json").read_text())
    assert f"{record['machine']['cpu']}, {record['machine']['vectors']}" == costs.RECORDED_ON
    for preset in all_presets().values():
        speed = costs.Calibration().speed(preset)
        assert speed and speed.machine == costs.RECORDED_ON and not speed.here
        if preset.setting in record["blocks"]:
            assert speed.per_second == record["blocks"][preset.setting]["speed"]


def test_a_network_is_timed_with_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernels compute eight samples in the time of sixteen or more.
    preset, tried = all_presets()["cifar10/resnet20/ring/10/ngc"], []
    monkeypatch.setattr(costs, "_trial", lambda preset, batch, agents: batch)
    monkeypatch.setattr(costs, "_of_one_gradient", lambda batch: tried.append(batch) or batch / 0.2)
    assert costs.measured_speed(preset) == 32 / 0.2 and tried == [8, 32]


def test_the_list_names_every_group_and_measures_only_on_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timed: list[str] = []
    monkeypatch.setattr(
        costs, "measured_speed", lambda preset: timed.append(preset.usual.model) or 12345.0
    )
    asked: list[str] = []  # which builds the kernels on a machine that has none yet
    monkeypatch.setattr(
        kernels, "processor_name", lambda: asked.append("processor") or "this processor"
    )
    shown = command().stdout
    assert not timed and not asked
    assert all(p.setting in shown for p in all_presets().values())
    assert f"Times are estimates, recorded on one core of {costs.RECORDED_ON};" in plain(shown)
    listed = ("fashion_mnist", "--agents", "10", "--out", str(tmp_path), "--list")
    rows = json.loads(command(*listed, "--json").stdout)
    assert [row["method"] for row in rows] == list(METHODS)
    assert rows[3]["gradients"] == 18_000_000 and rows[0]["hours"] > 0
    assert not any(row["measured_here"] for row in rows) and not timed
    rows = json.loads(command(*listed, "--measure", "--json").stdout)
    assert timed == ["lenet5"] and asked and all(row["measured_here"] for row in rows)
    assert "this machine" in plain(command(*listed).stdout)


def plain(text: str) -> str:
    return " ".join(text.split())


def test_in_a_pipe_the_plan_comes_first_and_then_the_runs(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(costs.RECORDED, "logistic 1x8x8", 1.0)  # hours of it
    name = (str(small.file), "digits/logistic/ring/4")
    shown = command(*name, "--parallel", "1", "--out", str(tmp_path / "out"))
    assert shown.exit_code == 0, shown.exception
    said = plain(shown.stderr)
    plan, began = said.index("2 runs left, 1 at a time: about"), said.index("seed 0: accuracy")
    assert plan < said.index("Shorter: --epochs N, --fraction") < began
    assert "estimates" in said[plan:began] and "2 of 2 runs done" in shown.stdout


def test_a_terminal_is_asked_before_hours_begin(tmp_path: Path) -> None:
    mine, theirs = pty.openpty()
    out = tmp_path / "out"
    asked = [sys.executable, "-m", "parley", "reproduce", "cifar10/cnn5/ring/5", "--out", str(out)]
    with subprocess.Popen(asked, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while b"start? [y/N]" not in said:
            said += os.read(mine, 4096)
        os.write(mine, b"n\n")
        assert process.stdout and process.stdout.read() == b""
    os.close(mine)
    assert process.returncode == 1 and b"6 runs left" in said and not out.exists()


def test_a_seed_at_chance_level_is_marked() -> None:
    none, some = results_of("dpsgd", as_run=[10.0, 10.4]), results_of("ngc", as_run=[87.2, 10.0])
    assert none[0].remarks == ["at chance level (10 %)"]
    assert some[0].remarks == ["seed 1 at chance level (10 %)"]
    assert not results_of("cga", as_run=[11.5])[0].remarks
    found = collect.Found(PAPER, [*none, *some])
    text = page.markdown(found, {})
    assert "| at chance level (10 %) |" in text and "| seed 1 at chance level (10 %) |" in text
    kept = json.loads(page.as_json(found))["results"]
    assert [row["at_chance"] for row in kept] == [[0, 1], [1]]


# Running, packing, reporting: on digits, which take seconds


def finish(chosen: list[Cell], out: Path, **order: Any) -> dict[str, list[Any]]:
    return campaign.run(campaign.jobs(chosen, Order(**order), out), 1, out)


def test_runs_are_skipped_when_done_and_reported_beside_the_paper(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results"
    became = finish(small.cells, out, seeds=2)
    assert len(became["done"]) == 6
    finish(small.cells[:1], out, epochs=2)
    summaries = {p: p.stat().st_mtime_ns for p in out.rglob(SUMMARY)}
    assert len(summaries) == 7
    monkeypatch.setitem(costs.RECORDED, "logistic 1x8x8", 1000.0)
    listed = (
        str(small.file),
        "digits",
        "--seeds",
        "3",
        "--parallel",
        "1",
        "--out",
        str(out),
        "--list",
    )
    assert "2 runs left, 1 at a time: about" in command(*listed).stdout
    assert [row["done"] for row in json.loads(command(*listed, "--json").stdout)] == [2, 2]
    finish(small.cells, out, seeds=2)
    assert {p: p.stat().st_mtime_ns for p in out.rglob(SUMMARY)} == summaries

    found = collect.collect(small.study, out)
    assert not found.refused
    whole = {r.cell.name: r for r in found.results if not r.mark}
    ngc = whole["digits/logistic/ring/4/ngc"]
    records = [RunFolder(j.out).records()[-1] for j in became["done"] if "4/ngc" in j.label]
    mean = 50 * sum(r["accuracy_mean_model"] for r in records)
    assert ngc.mean("accuracy_mean_model") == pytest.approx(mean)
    assert ngc.deviation("accuracy_mean_model") == pytest.approx((mean - 90) / 2)
    (reduced,) = [r for r in found.results if r.mark]
    assert reduced.mark == "2 of 4 epochs" and reduced.share == 0.5
    drawn = [(r.cell.method, r.mark) for r in pictures.fullest(found.results[:4])]
    assert drawn == [("dpsgd", ""), ("ngc", "")]
    assert pictures.fullest([reduced]) == [reduced]

    # The copy has all that the report needs, and none of what it does not.
    small_out = tmp_path / "kept"
    assert len(campaign.pack(out, small_out)) == 7
    assert campaign.pack(out, small_out) == []
    assert not list(small_out.rglob("checkpoint"))
    assert page.as_json(collect.collect(small.study, small_out)) == page.as_json(found)

    shown = command(
        *(str(small.file), "--report", "--out", str(small_out)),
        *("--markdown", str(tmp_path / "page.md"), "--pictures", str(tmp_path / "pictures")),
    )
    assert shown.exit_code == 0, shown.exception
    text = (tmp_path / "page.md").read_text()
    assert "reduced: 2 of 4 epochs" in text and "90.00 ± 2.00" in text
    # One table for the dataset; a group of compared methods is named in its first row.
    lines = [
        [c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "| " in line
    ]
    assert [row[:3] for row in lines if row[2] in ("50.00 ± 2.00", "90.00 ± 2.00")] == [
        ["digits/logistic/ring/4", "D-PSGD", "50.00 ± 2.00"],
        ["", "NGC", "90.00 ± 2.00"],
        ["", "D-PSGD", "50.00 ± 2.00"],
    ]
    again = [line for line in text.splitlines() if line.startswith("parley reproduce")]
    assert [line.removeprefix(f"parley reproduce {small.file} ") for line in again] == [
        "digits/logistic/ring/4 --seeds 2",
        "digits/logistic/ring/4 --methods dpsgd --seeds 1 --epochs 2",
        "figures/non-iid/5 --seeds 2",
    ]
    for line in text.splitlines():
        if line.startswith("!["):
            assert (tmp_path / line.partition("(")[2].rstrip(")")).exists()
    assert (tmp_path / "pictures" / "figures-epsilon-5.png").exists()
    assert "reduced" in shown.stdout


def test_what_a_choice_does_is_shown_apart(small: Small, tmp_path: Path) -> None:
    ngc = small.cells[1:2]
    finish(ngc, tmp_path, epochs=2, seeds=2)
    finish(ngc, tmp_path, epochs=2, variant="as-run-but-gradient")
    finish(ngc, tmp_path, variant="as-run-but-gradient")  # with nothing to stand beside
    found = collect.collect(small.study, tmp_path)
    ends = {r.form.variant: r.runs[0][-1] for r in found.results if r.form.epochs}
    (run, mean), (printed, other) = (
        [100 * ends[variant][name] for name in ("accuracy_after_gossip", "accuracy_mean_model")]
        for variant in ("as-run", "as-run-but-gradient")
    )
    figures = [f"{run:.2f}", f"{printed:.2f}", f"{printed - run:+.2f}", f"{other - mean:+.2f}"]
    note = "one seed: no claim, 2 of 4 epochs"
    name = "digits/logistic/ring/4/ngc"
    assert page.ablation_table(found.results).rows == [[name, "gradient", *figures, "1", note]]
    text = page.markdown(found, {})
    assert f"| gradient | {run:.2f} | {printed:.2f} |" in text
    assert "gradient as printed" not in text, "the paper's table is without it"
    assert "In words" not in text and "Inconclusive" not in text
    options = "--methods ngc --seeds 1 --variant as-run-but-gradient --epochs 2"
    assert f"\nparley reproduce {small.file} digits/logistic/ring/4 {options}\n" in text

    # Seed by seed: of what only one side has finished, nothing is shown.
    beside = campaign.jobs(ngc, Order(epochs=2), tmp_path)[0].out
    (beside / SUMMARY).unlink()
    assert page.ablation_table(collect.collect(small.study, tmp_path).results).rows == []


def results_of(method: str, **accuracies: list[float]) -> list[collect.Result]:
    """Runs of Fashion-MNIST with ten agents that ended with these accuracies, seed by seed."""
    preset = all_presets()[f"fashion_mnist/lenet5/ring/10/{method}"]
    made = []
    for variant, values in accuracies.items():
        ends = {
            seed: [{"epoch": 100, "step": 18800} | dict.fromkeys(PAPER.table.columns, value / 100)]
            for seed, value in enumerate(values)
        }
        name = "as-run" + f"-but-{variant.replace('_', ',')}" * (variant != "as_run")
        made.append(collect.Result(preset, Form(name), ends))
    return made


def test_an_interval_is_that_of_a_paired_t_test() -> None:
    first, second = [70.0, 73.0, 68.5, 71.0, 74.0], [71.5, 73.5, 70.5, 71.8, 75.9]
    told = claims.Difference.of(dict(enumerate(first)), dict(enumerate(second)))
    expected = scipy.stats.ttest_rel(second, first).confidence_interval(0.95)
    assert told is not None and told.half is not None and told.seeds == 5
    assert told.mean - told.half == pytest.approx(expected.low)
    assert told.mean + told.half == pytest.approx(expected.high)
    assert told.sign == 1  # although the two overlap by far: the seeds are the same


def test_only_what_stands_outside_its_interval_is_claimed() -> None:
    results = results_of(
        "cga",
        as_run=[70.0, 72.0, 71.0, 73.0, 69.0, 10.0],
        floor=[58.0, 60.5, 58.5, 61.5, 56.5],
        scale=[71.0, 70.0, 73.0, 72.0, 69.5],
        floor_scale=[66.0, 64.0, 67.5, 66.5, 64.0],
        scope=[99.0],
    )
    rows = {row[1]: row[2:] for row in page.ablation_table(results).rows}
    assert {choice: row[-1] for choice, row in rows.items()} == {
        "floor": "**lower**",
        "scale": "inconclusive",
        "scope": "one seed: no claim",
        "floor and scale": "**lower**",
        "floor, given scale": "**lower**",
        "scale, given floor": "**higher**",
    }
    # The sixth seed has nothing to stand beside, so that it is not in the mean either.
    assert rows["floor"][:3] == ["71.00", "59.00", "-12.00 ± 0.62"]
    assert rows["floor and scale"][:2] == ["71.00", "65.60"]
    claims = page.ablation_claims(results)
    where = "(fashion_mnist/lenet5/ring/10)"
    assert claims[0] == f"- CGA, floor as printed: 12.0 points lower, 11.4 to 12.6 {where}"
    assert any("- CGA, floor as printed, where scale is as printed too: " in c for c in claims)
    assert claims[-1] == "- Inconclusive: CGA, scale as printed"
    assert len(claims) == 5 and not any("scope" in claim for claim in claims)
    told = json.loads(page.as_json(collect.Found(PAPER, results)))["ablations"]
    assert {a["seeds"]: a["interval"] is None for a in told} == {5: False, 1: True}


def test_an_order_is_claimed_only_outside_the_spread_of_seeds() -> None:
    results = [
        result
        for method, values in {
            "cga": [88.0, 87.0, 87.6],  # highest of these four in the paper, ours inconclusive
            "ngc": [87.5, 87.4, 87.3],
            "dpsgd": [86.0, 85.0, 85.5],
            "compcga": [84.0, 83.1, 83.4],  # above D-PSGD in the paper
        }.items()
        for result in results_of(method, as_run=values)
    ]
    rows = page.order_table([*results, *results_of("compngc", as_run=[80.0])]).rows
    assert [(row[1], row[2], row[-1]) for row in rows] == [
        ("D-PSGD", "CompCGA", "**the other way round**"),
        ("CompCGA", "NGC", "as in the paper"),
        ("NGC", "CGA", "inconclusive"),
    ]
    assert page.order_claims(results) == [
        "- fashion_mnist/lenet5/ring/10: of 6 pairs of methods, 4 are in the paper's order, 1 the "
        "other way round, 1 inconclusive; with at least 3 seeds and corrected for the number of "
        "pairs (Holm), 4 and 1 remain"
    ]
    assert page.order_table(results_of("cga", as_run=[80.0])).rows == []


def test_a_page_keeps_what_stands_around_the_report(tmp_path: Path) -> None:
    document, found = tmp_path / "page.md", collect.Found(PAPER, results_of("ngc", as_run=[80.0]))
    document.write_text(f"before ![](b.png)\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write_markdown(document, found, {"a": "a.png", "b": "b.png"})
    written = document.read_text()
    assert written.startswith(f"before ![](b.png)\n{page.BEGIN}\n{PAPER.about.strip()}")
    assert written.endswith(f"\n{page.END}\nafter\n") and "old" not in written
    assert "![a](a.png)" in written and written.count("b.png") == 1, "it is there already"
    document.write_text("by hand\n")
    with pytest.raises(BadValue, match="a new file, or one with the lines"):
        page.write_markdown(document, found, {})
    assert document.read_text() == "by hand\n"


def test_interrupted_runs_continue(small: Small, tmp_path: Path) -> None:
    job = campaign.jobs(small.cells[:1], Order(), tmp_path)[0]
    finish(small.cells[:1], tmp_path)
    whole = RunFolder(job.out).records()
    (job.out / SUMMARY).unlink()
    assert campaign.state(job) == "begun"
    assert collect.collect(small.study, tmp_path).results[0].unfinished == ["seed 0 at epoch 4"]
    finish(small.cells[:1], tmp_path)
    again = RunFolder(job.out).records()
    assert [r["loss"] for r in again] == [r["loss"] for r in whole]


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    """Models that grow by a factor of a billion with every step."""
    text = TEXT.replace("runs.dpsgd = {", "runs.dpsgd = { lr = 1e6, weight_decay = 1000.0,")
    few = Small(tmp_path, text)
    wild, tame = few.cells[:2]
    became = finish([wild, tame], tmp_path / "out")
    assert [j.label for j in became["failed"]] == [wild.name]
    assert [j.label for j in became["done"]] == [tame.name]
    assert finish([wild], tmp_path / "out")["failed"]  # it is not tried again
    failed = collect.collect(few.study, tmp_path / "out").results[0]
    assert not failed.runs and "diverged" in failed.unfinished[0]


def test_a_run_that_another_process_is_at_has_not_failed(small: Small, tmp_path: Path) -> None:
    job = campaign.jobs(small.cells[:1], Order(), tmp_path)[0]
    folder = RunFolder(job.out)
    folder.open(job.experiment, resume=False)
    with status.held(folder.path) as locked:
        assert locked
        with pytest.raises(ParleyError, match="another process is using"):
            finish(small.cells[:1], tmp_path)
        assert campaign.state(job) == "begun"
    assert finish(small.cells[:1], tmp_path)["done"]


def test_folders_of_other_experiments_and_versions_are_left_alone(
    small: Small, tmp_path: Path
) -> None:
    finish(small.cells[:1], tmp_path)
    job = campaign.jobs(small.cells[:1], Order(), tmp_path)[0]
    toml = (job.out / EXPERIMENT).read_text()
    before = sorted(p.name for p in job.out.iterdir())

    (job.out / EXPERIMENT).write_text(toml.replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(ParleyError, match=r"holds a different experiment .* differ in lr"):
        finish(small.cells[:1], tmp_path)
    assert "differ in lr" in collect.collect(small.study, tmp_path).refused[0]

    (job.out / EXPERIMENT).write_text(toml + "\n[future]\nwarp = 9\n")
    with pytest.raises(ParleyError, match=r"not a valid experiment: .*future"):
        finish(small.cells[:1], tmp_path)

    (job.out / EXPERIMENT).write_text(toml)
    (job.out / SUMMARY).unlink()
    environment = parse_json((job.out / ENVIRONMENT).read_text())
    (job.out / ENVIRONMENT).write_text(json.dumps(environment | {"parley": "0.0.0"}))
    with pytest.raises(ParleyError, match=r"started by parley 0\.0\.0, but this is"):
        finish(small.cells[:1], tmp_path)
    assert sorted([*(p.name for p in job.out.iterdir()), SUMMARY]) == before


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda lines: lines[:-1], r"its last record is of epoch 3, not 4"),
        (
            lambda lines: [*lines[:-1], lines[-1].replace('"accuracy_after_gossip": 0', '"x": 0')],
            r"accuracy_after_gossip of the last record is None, not a number from 0 to 1",
        ),
        (
            lambda lines: [*lines[:-1], lines[-1].replace('_own": 0.', '_own": 7.')],
            r"accuracy_own of the last record is 7\.\d+, not a number from 0 to 1",
        ),
        (lambda lines: ["damaged", *lines[1:]], r"line 1 of .* is damaged; remove the line"),
    ],
)
def test_a_finished_run_with_damaged_records_is_left_out_and_the_other_seeds_stay(
    damage: Callable[[list[str]], list[str]], reason: str, small: Small, tmp_path: Path
) -> None:
    finish(small.cells[:1], tmp_path, seeds=2)
    jobs = campaign.jobs(small.cells[:1], Order(seeds=2), tmp_path)
    path = jobs[1].out / RECORDS
    lines = [json.dumps(record) for record in RunFolder(jobs[1].out).records()]  # no checksums
    path.write_text("\n".join(damage(lines)) + "\n")
    found = collect.collect(small.study, tmp_path)
    [result], [refused] = found.results, found.refused
    assert list(result.runs) == [0]
    assert refused.startswith(f"{jobs[1].out}: ") and re.search(reason, refused)


def test_records_without_checksums_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    found = collect.collect(PAPER, Path("results"))
    runs = sum(len(result.runs) for result in found.results)
    [said] = [record.getMessage() for record in caplog.records if "checksums" in record.message]
    assert said.startswith(f"the records of {runs} runs in results have no checksums")


def test_packing_overwrites_nothing(small: Small, tmp_path: Path) -> None:
    finish(small.cells[:1], tmp_path / "out")
    campaign.pack(tmp_path / "out", tmp_path / "kept")
    (kept,) = find_runs(tmp_path / "kept")
    (kept / "records.jsonl").write_text("{}\n")
    with pytest.raises(ParleyError, match="holds a different run"):
        campaign.pack(tmp_path / "out", tmp_path / "kept")
    assert (kept / "records.jsonl").read_text() == "{}\n"
    with pytest.raises(BadValue, match="outside --out"):
        campaign.pack(tmp_path / "out", tmp_path / "out" / "kept")


def test_what_an_older_version_has_packed_is_still_the_same(small: Small, tmp_path: Path) -> None:
    """Its experiment lacks the fields that have come since."""
    finish(small.cells[:1], tmp_path / "out")
    campaign.pack(tmp_path / "out", tmp_path / "kept")
    (kept,) = find_runs(tmp_path / "kept")
    lines = (kept / EXPERIMENT).read_text().splitlines(keepends=True)
    older = "".join(line for line in lines if not line.startswith(("links", "patience")))
    assert len(older.splitlines()) == len(lines) - 2
    (kept / EXPERIMENT).write_text(older)
    assert campaign.pack(tmp_path / "out", tmp_path / "kept") == []
    assert (kept / EXPERIMENT).read_text() == older


def test_an_absent_dataset_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("PARLEY_DATA_ROOT", raising=False)
    chosen = select(PAPER, "fashion_mnist", 10, ["dpsgd"])
    with pytest.raises(BadValue, match="data: "):
        finish(chosen, tmp_path / "out", data_root=str(tmp_path / "nowhere"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing-like-it"], "preset: 'nothing-like-it' is not valid"),
        (["fashion_mnist", "--seeds", "0"], "seeds: 0 is not valid"),
        (["fashion_mnist", "--variant", "as-seen"], "variant: 'as-seen'"),
        (["fashion_mnist", "--fraction", "much"], "fraction: 'much'"),
        (["report", "--out", "no/such/folder"], "out: 'no/such/folder'"),
        (["theory", "--momentum", "1"], "momentum: 1.0 is not valid"),
        (["resources", "--measure", "no-preset"], "preset: 'no-preset'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str) -> None:
    error = command(*arguments).exception
    assert isinstance(error, ParleyError)
    assert words in str(error) and "\n" not in str(error)


def test_a_method_has_the_same_colour_whichever_others_are_shown() -> None:
    records = [[{"epoch": 1, "accuracy_own": 0.5}, {"epoch": 2, "accuracy_own": 0.6}]]
    own, y, slots = field_of("accuracy_own"), Axis("own"), pictures.slots(PAPER)
    both, one = (
        line_chart("", dict.fromkeys(names, records), own, y, slots=slots)
        for names in (("D-PSGD", "NGC"), ("NGC",))
    )
    assert both and one
    colours = [mark.colour for chart in (both, one) for mark in chart.marks]
    assert colours[1] == colours[2] == slots["NGC"]
    assert len(set(slots.values())) == len(slots)
