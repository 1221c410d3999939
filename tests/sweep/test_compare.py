"""Algorithms times seeds: the same numbers however they are run, whatever happens in between."""

import json
import signal
import statistics
import sys
from pathlib import Path

import pytest
from rich.console import Console

from parley import BadValue, Experiment
from parley.algorithms import ALGORITHMS
from parley.cli.main import main
from parley.cli.screen import screen
from parley.cluster import launch
from parley.measures import FORMS
from parley.results.group import group_seeds
from parley.results.page import page as report_page
from parley.results.read import read_run
from parley.store.status import held
from parley.sweep import compare
from parley.sweep.compare import FIGURES, jobs, labels, parse_algorithms, title
from parley.sweep.jobs import Job
from tests.processes import Command, recorded, records

pytestmark = pytest.mark.usefixtures("undrawn")
SMALL = {"agents": 3, "model": "logistic", "batch": 200, "gossip_rounds": 2}
FLAGS = "--agents 3 --model logistic --batch 200 --gossip-rounds 2"


def experiments(specs, **options):
    return [method.experiment(SMALL | options) for method in parse_algorithms(specs)]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(words):
        monkeypatch.setattr(sys, "argv", ["parley", "compare", *FLAGS.split(), *words.split()])
        with pytest.raises(SystemExit) as exit_:
            main()
        shown = capsys.readouterr()
        return exit_.value.code, shown.out, shown.err

    return run


# --- what is run ------------------------------------------------------------------------------


def test_options_go_to_every_algorithm_that_has_them():
    dpsgd, ngc, cga = experiments(
        " dpsgd, ngc:alpha=0:momentum=0.5 ,cga", momentum=0.9, alpha=1, qp_floor=0.5
    )
    assert dpsgd.algorithm.momentum == 0.9
    assert (ngc.algorithm.momentum, ngc.algorithm.alpha) == (0.5, 0)
    assert (cga.algorithm.momentum, cga.algorithm.qp_floor) == (0.9, 0.5)
    assert len(parse_algorithms("all")) == len(ALGORITHMS)
    assert len(parse_algorithms(compare.PAPER)) == 6


OTHER = {
    "lr": (0.2, 0.01), "epochs": (3, 4), "topology": ("ring", "circulant:1,5"), "batch": (16, 8),
    "partition": ("iid", "dirichlet:0.5"), "lr_decay": ("constant", "step:0.5,0.2,0.8"),
    "fraction": (0.5, 0.25), "validation": (0.1, 0.2), "seed": (3, 5), "agents": (11, 12),
    "model": ("mlp", "logistic"), "weights": ("auto", "uniform"), "dtype": ("float32", "float64"),
    "precision": ("full", "bf16"),
    "links": ("", "delay=0.1,bandwidth=10M"), "evaluate_every": (1, 2), "gossip_rounds": (1, 2),
    "engine": ("auto", "loop"), "test_fraction": (1.0, 0.5), "start_agent": (0, 1),
    "bias_norms": ("off", "run"), "data": ("digits", "cifar10"), "workers": (1, 2),
    "device": ("cpu", "cuda"), "threads": (1, 2), "on_failure": ("stop", "heal"),
    "suspicious": ("warn", "stop"), "gamma_decay": ("constant", "cosine:warmup=2"),
    "stop_when": ("", "loss<=0.1"),
    "checkpoint_every": (1, 2), "keep": (2, 3), "patience": (5.0, 6.0),
    "data_root": ("here", "there"), "buffers": ("local", "mixed"), "init": ("", "old.safetensors"),
    "task": ("classification", "binary"), "loss": ("auto", "cross-entropy"), "metrics": ("", "f1"),
    "epoch_length": ("largest", "smallest"), "steps_per_epoch": (None, 5), "max_steps": (7, 9),
    "objective": ("equal", "size"), "sampling": ("shuffled", "balanced"), "lora": ("", "r=4"),
    "class_weights": ("", "1,5"), "label_smoothing": (0.0, 0.1), "ignore_index": (-100, 255),
}  # fmt: skip
"""For every field, a value for all and another behind a name."""


def test_what_stands_behind_a_name_wins_for_every_field():
    tables = {"algorithm", "model_options", "data_options", "from_python"}
    assert set(OTHER) == set(Experiment.model_fields) - tables
    common = {name: value for name, (value, _) in OTHER.items()}
    for name, (value, other) in OTHER.items():
        if name == "metrics":
            continue  # the columns of the table, which all share
        task = ":task=segmentation" if name == "ignore_index" else ""
        plain, own, last = (
            method.experiment(common)
            for method in parse_algorithms(f"dpsgd,ngc:{name}={other}:alpha=0.5{task},cga")
        )
        assert getattr(own, name) == other and own.algorithm.alpha == 0.5
        assert getattr(plain, name) == getattr(last, name) == value
        dashed = parse_algorithms(f"ngc:{name.replace('_', '-')}={other}{task}")[0]
        assert getattr(dashed.experiment(common), name) == other


def test_values_may_have_colons_and_commas_of_their_own():
    found = parse_algorithms(
        "choco:codec=topk:0.1:gamma=0.5,ngc+topk:0.1:alpha=0,dpsgd:topology=circulant:1,5:lr=0.1,"
        "ngc:lr-decay=step:0.1,0.5,0.75, cga:links=delay=0.1,bandwidth=10M:batch=8,"
        "qgm:stop-when=accuracy>=0.9,loss<=0.1:lr=0.2"
    )
    assert [(method.name, method.settings) for method in found] == [
        ("choco", {"codec": "topk:0.1", "gamma": "0.5"}),
        ("ngc+topk:0.1", {"alpha": "0"}),
        ("dpsgd", {"topology": "circulant:1,5", "lr": "0.1"}),
        ("ngc", {"lr_decay": "step:0.1,0.5,0.75"}),
        ("cga", {"links": "delay=0.1,bandwidth=10M", "batch": "8"}),
        ("qgm", {"stop_when": "accuracy>=0.9,loss<=0.1", "lr": "0.2"}),
    ]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ("ngc:lr=0.1:lr=0.2", "lr is given twice"),
        ("ngc:learning=0.1", "option: 'learning' is not valid"),
        ("ngc,dpsgd:alpha=0", "alpha: 0 is not valid .dpsgd has no such option"),
        ("ngc:name=dpsgd", "the algorithm's name first"),
        ("dpsgd,ngc:metrics=f1,auroc", "ngc:metrics=f1' .*same columns.* --metrics f1,auroc"),
        ("ngc:lr=", "valid: name or name:option=value"),
        (" , ", "at least one of"),
    ],
)
def test_what_cannot_be_understood_behind_a_name_is_refused(specs, words):
    with pytest.raises(BadValue, match=words):
        experiments(specs)


def test_the_rate_behind_a_name_is_trained_with(command):
    code, out, _ = command(
        "--algorithms dpsgd,ngc:lr=0.01,dpsgd:lr=0.05:epochs=2 --lr 0.2 --seeds 1 --epochs 1"
        " --parallel 1 --out all"
    )
    assert code == 0
    assert "skew:1, 1 epoch, 1 seed" in " ".join(out.split())  # every row names its rate
    table = Path("all/table.md").read_text().splitlines()[2:]
    names = ["D-PSGD epochs=1 lr=0.2", "NGC lr=0.01", "D-PSGD epochs=2 lr=0.05"]
    assert [line.split("|")[1].strip() for line in table] == names
    for folder, rate, epochs in (
        ("d-psgd-epochs-1-lr-0.2", 0.2, 1), ("ngc-lr-0.01", 0.01, 1),
        ("d-psgd-epochs-2-lr-0.05", 0.05, 2),
    ):  # fmt: skip
        lines = records(Path("all") / folder / "seed-0")
        assert [line["lr"] for line in lines] == [rate] * epochs


def test_a_method_that_needs_another_graph_is_told_how_to_get_it(command):
    code, _, err = command("--algorithms dpsgd,relaysgd --seeds 1 --epochs 1 --out all")
    assert code == 2 and "for it alone: relaysgd:topology=chain" in err
    assert not Path("all").exists()
    words = "--algorithms dpsgd,relaysgd:topology=chain --seeds 1 --epochs 1 --parallel 1 --out all"
    code, _, _ = command(words)
    assert code == 0 and "| RelaySGD topology=chain |" in Path("all/table.md").read_text()
    code, _, err = command(
        "--algorithms dpsgd,cga --topology star --weights uniform --seeds 1 --epochs 1 --out none"
    )
    assert code == 2 and "dpsgd:weights=metropolis" in err


def test_a_graph_that_does_not_exist_has_no_remedy(command):
    for algorithms in ("relaysgd,ngc", "all"):
        code, _, err = command(f"--algorithms {algorithms} --topology mesh --seeds 1")
        assert code == 2 and err.startswith("error: topology: 'mesh' is not valid; valid: ")
        assert "alone" not in err and "spanning-tree:mesh" not in err


def test_a_variant_for_those_that_have_it(command):
    code, _, err = command("--algorithms ngc,d2,cga --variant as-run --seeds 1")
    assert code == 2 and err.startswith("error: variant: 'as-run' is not valid (")
    assert err.endswith("where it exists: ngc:variant=as-run, cga:variant=as-run\n")
    algorithms = "ngc:variant=as-run,d2"
    words = f"--algorithms {algorithms} --seeds 1 --epochs 1 --parallel 1 --out a"
    assert command(words)[0] == 0
    assert 'gradient_at = "mixed"' in next(Path("a").glob("ngc*/*/experiment.toml")).read_text()


def test_bad_input_of_any_method_is_found_before_anything_runs(command):
    code, _, err = command("--algorithms dpsgd,ngc:partition=skew:2 --epochs 1 --out all")
    assert code == 2 and "partition: 'skew:2'" in err and not Path("all").exists()


def test_labels_tell_apart_what_differs():
    made = experiments("ngc,ngc:momentum=0.9,ngc:alpha=0.5,ngc:momentum=0.9:gamma=0.5,dpsgd")
    assert labels(made) == [
        "NGC", "NGC momentum=0.9", "NGC α=0.5", "NGC momentum=0.9 gamma=0.5", "D-PSGD",
    ]  # fmt: skip
    with pytest.raises(BadValue, match="given twice"):
        labels(experiments("ngc,ngc:alpha=1.0"))


def test_the_title_says_only_what_rows_leave_to_it():
    each = experiments("dpsgd:lr_decay=constant,dpsgd:lr_decay=cosine:warmup=2")
    assert labels(each) == ["D-PSGD lr_decay=constant", "D-PSGD lr_decay=cosine:warmup=2"]
    assert "lr_decay" not in title(each, 1)
    some = experiments("dpsgd:lr=0.2,ngc:lr=0.1,cga:lr=0.2")
    assert labels(some) == ["D-PSGD", "NGC lr=0.1", "CGA"] and ", lr 0.2, " in title(some, 1)


def test_every_run_has_a_folder_of_its_own(tmp_path):
    made = jobs(experiments("ngc:alpha=0.5,dpsgd,ngc", seed=4), 2, tmp_path)
    assert [str(job.out.relative_to(tmp_path)) for job in made] == [
        "ngc-alpha-0.5/seed-4", "ngc-alpha-0.5/seed-5", "d-psgd/seed-4", "d-psgd/seed-5",
        "ngc/seed-4", "ngc/seed-5",
    ]  # fmt: skip
    assert [job.experiment.seed for job in made] == [4, 5, 4, 5, 4, 5]
    assert made[1].experiment == made[0].experiment.replace(seed=5)


# --- what comes out ---------------------------------------------------------------------------


def test_the_result_is_one_json_object_with_means_and_deviations(command, drawn):
    code, out, err = command(
        "--algorithms dpsgd,compngc --alpha 0.5 --seeds 3 --epochs 2 --parallel 1 --json --out all"
    )
    assert code == 0 and out.count("\n") == 1 and "CompNGC α=0.5, seed 2: accuracy" in err
    told = json.loads(out)
    assert told["out"] == "all" and Path("all/curves.svg").read_bytes()[:5] == b"<?xml"
    first, second = told["rows"]
    assert (first["algorithm"], first["label"], first["seeds"]) == ("dpsgd", "D-PSGD", 3)
    assert (second["algorithm"], second["label"]) == ("compngc", "CompNGC α=0.5")
    for row, name in ((first, "d-psgd"), (second, "compngc-alpha-0.5")):
        assert (row["agents"], row["epochs"]) == (3, 2)
        ends = [json.loads(Path(f"all/{name}/seed-{s}/summary.json").read_text()) for s in range(3)]
        for key in FIGURES:
            values = [end[key] for end in ends]
            assert row[key] == pytest.approx(statistics.fmean(values))
            assert row[f"{key}_std"] == pytest.approx(statistics.stdev(values))
    assert first["bytes_cross_gradients"] == 0 < second["bytes_cross_gradients"]
    table = Path("all/table.md").read_text().splitlines()
    assert len(table) == 4 and table[2].startswith("| D-PSGD | ")
    mean, deviation = first["accuracy_mean_model"], first["accuracy_mean_model_std"]
    assert f"| {100 * mean:.1f} ± {100 * deviation:.1f} |" in table[2]


def test_methods_are_compared_by_time_on_a_simulated_network(command):
    code, out, _ = command(
        "--algorithms dpsgd,ngc --links delay=10 --seeds 2 --epochs 1 --parallel 1 --json --out all"
    )
    assert code == 0
    once, twice = (row["seconds_network"] for row in json.loads(out)["rows"])
    assert twice == pytest.approx(2 * once, rel=0.01), "NGC's agents send, and wait, twice"
    heading, _, first, second = Path("all/table.md").read_text().splitlines()
    assert heading.endswith("| network seconds |")
    assert first.endswith(f"| {once:.1f} |") and second.endswith(f"| {twice:.1f} |")


def test_a_table_for_people_fits_a_terminal(command, monkeypatch):
    monkeypatch.setattr(screen, "_width", 80)
    code, out, _ = command("--algorithm ngc --seeds 1 --epochs 1 --parallel 1 --out one")
    assert code == 0 and "digits, 3 agents, ring, skew:1, 1 epoch, 1 seed" in out
    assert "±" not in out and "written to one: table.md" in out
    fields = (*(f"accuracy_{form}" for form in FORMS), *FIGURES)
    row = {"label": "CompNGC", "seeds": 3} | dict.fromkeys(fields, 0.123456)
    row |= {f"{key}_std": 0.012345 for key in fields} | {"bytes_models": 123456789.0}
    shown = Console(width=80, color_system=None)
    with shown.capture() as captured:
        shown.print(compare.table([row]).terminal())
    line = "CompNGC 12.3 ± 1.2 12.3 ± 1.2 12.3 ± 1.2 0.123 ± 0.01 123.46 0.1"
    assert line in " ".join(captured.get().split())


# --- going on ---------------------------------------------------------------------------------


def test_momentum_is_shown_where_methods_differ(command):
    """Below the table if there is no room beside it; as a column in documents and reports."""
    methods = "dpsgd,qgm,dpsgd+adamw:lr=0.003,diloco:lr=0.003"
    words = f"--algorithms {methods} --epochs 1 --seeds 1 --parallel 1 --out it --json"
    _, out, _ = command(words)
    table = compare.table(json.loads(out)["rows"])
    shown = {}
    for width in (80, 140):
        terminal = Console(width=width, color_system=None)
        with terminal.capture() as captured:
            terminal.print(table.terminal(width))
        shown[width] = captured.get()
        assert all(name in shown[width] for name in ("D-PSGD", "QGM", "AdamW", "DiLoCo"))
    assert (
        "momentum: none (D-PSGD); 0.9, Nesterov (QGM); β₁ 0.9, β₂ 0.999 (D-PSGD + AdamW lr=0.003); "
        "β₁ 0.9, β₂ 0.999, outer 0.9 (Pairwise DiLoCo lr=0.003)"
    ) in " ".join(shown[80].split())
    lines = [line.split("  ")[-1].strip() for line in shown[140].splitlines()]
    assert {"momentum", "none", "0.9, Nesterov", "β₁ 0.9, β₂ 0.999, outer 0.9"} <= {*lines}
    cells = [line.split(" | ")[-1] for line in Path("it/table.md").read_text().splitlines()]
    assert cells == [
        "momentum |", "---: |", "none |", "0.9, Nesterov |", "β₁ 0.9, β₂ 0.999 |",
        "β₁ 0.9, β₂ 0.999, outer 0.9 |",
    ]  # fmt: skip
    page = report_page(group_seeds([read_run(run) for run in Path("it").glob("*/seed-*")]))
    assert '<th scope="col">momentum</th>' in page and "<td>0.9, Nesterov</td>" in page


def test_momentum_that_all_share_is_not(command):
    words = "--algorithms dpsgd,ngc --momentum 0.5 --epochs 1 --seeds 1 --parallel 1 --out it"
    status, out, _ = command(words)
    assert status == 0 and "momentum" not in out + Path("it/table.md").read_text()


def test_runs_that_stop_early_say_after_how_many_epochs(command):
    words = "--algorithms dpsgd,dpsgd:lr=0.001 --epochs 5 --seeds 1 --parallel 1 --out it --json"
    status, out, err = command(f"{words} --stop-when loss<=1.9")
    first, second = json.loads(out)["rows"]
    assert status == 0 and first["epochs"] < 5 == second["epochs"]
    assert f"D-PSGD lr=0.1, seed 0: epoch {first['epochs']} of 5, accuracy" in err
    table = Path("it/table.md").read_text().splitlines()
    assert [line.split(" | ")[-1] for line in table] == [
        "epochs |", "---: |", f"{first['epochs']} |", "5 |",
    ]  # fmt: skip


def test_what_is_done_is_not_run_again(command, monkeypatch):
    assert command("--algorithms dpsgd --seeds 2 --epochs 2 --parallel 1 --out all")[0] == 0
    before = records(Path("all/d-psgd/seed-0"))
    executed = []
    execute = launch.execute
    monkeypatch.setattr(launch, "execute", lambda e, *rest: executed.append(e) or execute(e, *rest))
    words = "--algorithms dpsgd,ngc --seeds 3 --epochs 2 --parallel 1 --out all --resume"
    assert command(words)[0] == 0
    assert [(e.algorithm.name, e.seed) for e in executed] == [
        ("dpsgd", 2), ("ngc", 0), ("ngc", 1), ("ngc", 2),
    ]  # fmt: skip
    assert records(Path("all/d-psgd/seed-0")) == before
    code, _, err = command(f"{words} --lr 0.7")
    assert (
        code == 2
        and "holds a different experiment (they differ in lr)" in err
        and len(executed) == 4
    )


def test_only_one_comparison_at_a_time_has_a_folder(command):
    """Else each of two would hold a run that the other needs, and both would end."""
    words = "--algorithms dpsgd --seeds 1 --epochs 1 --parallel 1 --out all"
    Path("all").mkdir()
    with held(Path("all")):
        code, _, err = command(words)
        assert code == 2 and "another process is using all" in err
        assert [path.name for path in Path("all").iterdir()] == [".lock"]
    assert command(words)[0] == 0
    with held(Path("all")):
        code, _, err = command(f"{words} --resume")
        assert code == 2 and "another process is using all" in err
    assert command(f"{words} --resume")[0] == 0
    code, _, err = command(words)
    assert code == 2 and "it is not empty; use --resume" in err


def test_a_run_that_diverges_is_named_and_the_finished_ones_are_kept(command):
    huge = "--lr 1e3 --batch 2000 --epochs 20 --seeds 1 --parallel 1 --out all"
    assert command(f"--algorithms ngc {huge}")[0] == 0
    code, out, err = command(f"--algorithms dpsgd:weight_decay=1,ngc {huge} --resume")
    assert code == 2 and out == ""
    assert "error: D-PSGD weight_decay=1.0, seed 0: loss: " in err and "try a smaller lr" in err
    assert len(records(Path("all/ngc/seed-0"))) == 20


def test_runs_side_by_side_stopped_and_resumed_are_those_one_by_one(tmp_path):
    """Ctrl-C during two parallel runs; then the rest, again side by side."""
    words = f"compare {FLAGS} --algorithms dpsgd,ngc --seeds 1 --epochs 200 --evaluate-every 50"
    folder = tmp_path / "stopped"
    stopped = Command(tmp_path, *words.split(), "--out", folder, "--parallel", "2")
    runs = [folder / "d-psgd" / "seed-0", folder / "ngc" / "seed-0"]
    assert stopped.until(lambda: all(recorded(run) for run in runs)), stopped.err
    stopped.interrupt_all()
    assert stopped.wait() == 130, stopped.err
    assert "Traceback" not in stopped.err
    assert f"to continue: the same command with --out {folder} --resume" in stopped.err
    assert stopped.nothing_left()
    assert not (folder / "table.md").exists()
    assert not all((run / "summary.json").exists() for run in runs)
    told = [run / "status.json" for run in runs if not (run / "summary.json").exists()]
    assert all(json.loads(path.read_text())["state"] == "stopped" for path in told)

    made = jobs(experiments("dpsgd,ngc", epochs=200, evaluate_every=50), 1, folder)
    compare.compare(made, 2, folder, resume=True)
    straight = jobs(experiments("dpsgd,ngc", epochs=200, evaluate_every=50), 1, tmp_path / "whole")
    compare.compare(straight, 1, tmp_path / "whole", resume=False)
    for one, other in zip(made, straight, strict=True):
        assert len(records(one.out)) == 4 and records(one.out) == records(other.out)


def test_runs_end_with_a_command_that_is_killed(tmp_path):
    words = f"compare {FLAGS} --algorithms dpsgd,ngc --seeds 1 --epochs 1000000 --parallel 2"
    killed = Command(tmp_path, *words.split(), "--evaluate-every", "1000", "--out", tmp_path / "a")
    runs = [tmp_path / "a" / name / "seed-0" / "status.json" for name in ("d-psgd", "ngc")]
    assert killed.until(lambda: all(run.exists() for run in runs)), killed.err
    killed.send(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert killed.nothing_left()


def test_a_mistake_in_a_later_run_is_told_before_the_first_one(tmp_path):
    good, bad = experiments("dpsgd", epochs=1)[0], experiments("ngc", epochs=1, model="lenet5")[0]
    todo = [Job(e.algorithm.label, e, tmp_path / e.algorithm.name) for e in (good, bad)]
    with pytest.raises(BadValue, match="model: 'lenet5' is not valid"):
        compare.compare(todo, 1, tmp_path, resume=True)
    assert not list(tmp_path.iterdir())
