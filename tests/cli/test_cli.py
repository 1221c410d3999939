"""The command as a user meets it: what it prints, what it writes, how it says no."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import parley
from parley import Experiment
from parley.algorithms import ALGORITHMS
from parley.cli import app as cli
from parley.cli.main import main
from parley.data import load
from parley.version import full_version

SMALL = "--agents 3 --model logistic --epochs 2 --batch 200 --gossip-rounds 2"
SUMMARY = {
    "algorithm", "agents", "epochs", "loss", "accuracy_mean_model", "accuracy_own",
    "accuracy_after_gossip", "consensus_distance", "bytes_models", "bytes_cross_gradients",
    "seconds", "gradients_per_second", "peak_memory_mb", "out",
}  # fmt: skip
TIMES = {"seconds", "gradients_per_second", "peak_memory_mb"}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["parley", *" ".join(arguments).split()])
        with pytest.raises(SystemExit) as exit_:
            main()
        shown = capsys.readouterr()
        return exit_.value.code, shown.out, shown.err

    return run


@pytest.fixture
def fails(command, tmp_path):
    """Runs a command that must fail as every one does; returns its message."""
    (tmp_path / "apart.txt").write_text("0 1\n2 3\n")
    (tmp_path / "asymmetric.txt").write_text("0 -> 1 0.5\n1 -> 0 0.25\n1 2 0.25\n")
    (tmp_path / "broken.toml").write_text("agents = [")
    (tmp_path / "unknown.toml").write_text("agentz = 3")
    (tmp_path / "inner.toml").write_text('[algorithm]\nname = "ngc"\nalhpa = 0.5')

    def run(*arguments):
        before = tree(tmp_path)
        code, out, err = command(*arguments)
        assert code == 2 and out == "" and tree(tmp_path) == before
        assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
        return err.removeprefix("error: ").strip()

    return run


def tree(folder):
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def records(out):
    lines = (Path(out) / "records.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tran", "No such command 'tran'. Did you mean 'train'?"),
        ("train --alpah 0.5", "flag: '--alpah' is not valid (did you mean --alpha?); valid: those"),
        ("train --out", "Option '--out' requires an argument."),
        ("train one.toml two.toml", "Got unexpected extra argument"),
        ("train --algorithm ncg", "algorithm: 'ncg' is not valid (did you mean 'ngc'?); valid:"),
        ("train --topology rng", "topology: 'rng' is not valid (did you mean 'ring'?); valid:"),
        ("train --partition skw:1", "partition: 'skw:1' is not valid (did you mean 'skew:s'?)"),
        ("train --data digts", "data: 'digts' is not valid (did you mean 'digits'?); valid:"),
        ("train --model lenet", "model: 'lenet' is not valid (did you mean 'lenet5'?); valid:"),
        ("train --engine vmpa", "engine: 'vmpa' is not valid (did you mean 'vmap'?); valid:"),
        ("train --weights unform", "weights: 'unform' is not valid (did you mean 'uniform'?)"),
        ("train --variant as-ran", "variant: 'as-ran' is not valid (did you mean 'as-run'?)"),
        ("train --model-option hiden=8", "model: 'hiden' is not valid (mlp has no such option)"),
        ("train --model-option hidden", "model_option: 'hidden' is not valid; valid: NAME=VALUE"),
        ("train unknown.toml", "option: 'agentz' is not valid (did you mean 'agents'?); valid:"),
        ("train inner.toml", "option: 'alhpa' is not valid (did you mean 'alpha'?); valid:"),
        ("train broken.toml", "experiment: 'broken.toml' is not valid (not TOML: Invalid value"),
        ("train none.toml", "experiment: 'none.toml' is not valid (No such file or directory)"),
        ("train --alpha 1.5", "alpha: 1.5 is not valid; valid: a number from 0 to 1"),
        ("train --alpha -0.1", "alpha: -0.1 is not valid; valid: a number from 0 to 1"),
        ("train --momentum 1", "momentum: 1 is not valid; valid: a number from 0 to below 1"),
        ("train --gamma 0", "gamma: 0 is not valid; valid: a number above 0, at most 1"),
        ("train --lr -0.10", "lr: -0.10 is not valid; valid: a number from 1e-20 to 1000000"),
        ("train --lr inf", "lr: inf is not valid; valid: a number from 1e-20 to 1000000"),
        ("train --lr-decay stp", "lr_decay: 'stp' is not valid; valid: constant, step"),
        ("train --epochs 0", "epochs: 0 is not valid; valid: a whole number from 1 to 1000000"),
        ("train --batch 1.5", "batch: 1.5 is not valid; valid: a whole number from 1 to 1000000"),
        ("train --agents abc", "agents: 'abc' is not valid; valid: a whole number from 1"),
        ("train --seed -1", "seed: -1 is not valid; valid: a whole number from 0 to 92"),
        ("train --workers 4 --agents 3", "workers: 4 is not valid (every worker hosts an agent)"),
        ("train --threads 0", "threads: 0 is not valid; valid: a whole number from 1 to 1024"),
        ("train --dtype float16", "dtype: 'float16' is not valid; valid: float32, float64"),
        ("train --device tpu", "device: 'tpu' is not valid; valid: cpu, cuda or cuda:N"),
        ("train --device cuda:99", "device: 'cuda:99' is not valid (no such CUDA device can be us"),
        (
            "train --topology file:apart.txt --agents 4",
            "topology: 'file:apart.txt' is not valid (agent 0 is cut off from agent 2); valid: a gr"
        ),
        (
            "train --topology file:asymmetric.txt --agents 3 --algorithm cga",
            "weights: 'explicit' is not valid (cga needs symmetric weights; agent 0 gives agent 1"
        ),
        (
            "train --topology star --weights uniform --algorithm cga",
            "weights: 'uniform' is not valid (cga needs symmetric weights; agent 0 gives agent 1"
        ),
        (
            "train --topology star --weights uniform",
            "weights: 'uniform' is not valid (ngc needs doubly-stochastic weights; column 0"
        ),
        ("train --agents 5000", "agents: 5000 is not valid; valid: at most 1437, so that every"),
        (
            "train --partition classes:1 --agents 3",
            "partition: 'classes:1' is not valid (classes 3, 4, 5, 6, 7, 8, 9 have no holder); vali"
        ),
        ("train --alpha 0.5 --algorithm dpsgd", "alpha: 0.5 is not valid (dpsgd has no such opti"),
        ("train --resume", "out: missing (--resume needs it); valid: the folder to go on with"),
        ("train --resume --out no", "out: 'no' is not valid (--resume found none); valid: a fold"),
        ("train --out apart.txt --agents 3", "out: 'apart.txt' is not valid (it is a file); valid"),
        ("compare --seeds 0", "seeds: 0 is not valid; valid: a whole number of at least 1"),
        ("compare --seeds x", "seeds: 'x' is not valid; valid: a whole number of at least 1"),
        ("compare --parallel 0", "parallel: 0 is not valid; valid: a whole number of at least 1"),
        ("compare --algorithms dpgsd", "algorithm: 'dpgsd' is not valid (did you mean 'dpsgd'?)"),
        ("compare --algorithms dpsgd:alpha=0", "alpha: 0 is not valid (dpsgd has no such option"),
        ("compare --algorithms ngc:alhpa=0", "option: 'alhpa' is not valid (did you mean 'alpha'"),
        ("compare --algorithms ngc:alpha", "algorithms: 'ngc:alpha' is not valid; valid: name or"),
        ("compare --algorithms ,", "algorithms: ',' is not valid; valid: at least one of dpsgd"),
        ("compare --algorithms ngc,ngc:alpha=1", "algorithms: 'NGC' is not valid (it is given twi"),
        ("compare --algorithm ngc --algorithms ngc", "algorithm: 'ngc' is not valid; valid: eithe"),
        ("compare --algorithms dpsgd --alpha 1", "alpha: 1 is not valid (none of dpsgd has"),
        ("compare --resume", "out: missing (--resume needs it); valid: the folder to go on with"),
        ("compare --out apart.txt", "out: 'apart.txt' is not valid (it is a file); valid: a fold"),
        ("compare --out .", "out: '.' is not valid (it is not empty; --resume goes on with a com"),
        ("compare --model lenet", "model: 'lenet' is not valid (did you mean 'lenet5'?); valid:"),
        ("compare --device cuda:99", "device: 'cuda:99' is not valid (no such CUDA device can be"),
        (
            "compare --topology star --weights uniform --algorithms dpsgd,cga",
            "weights: 'uniform' is not valid (dpsgd needs doubly-stochastic weights; column 0"
        ),
        ("algorithms ncg", "algorithm: 'ncg' is not valid (did you mean 'ngc'?); valid: adagossip"),
        ("topology rng", "topology: 'rng' is not valid (did you mean 'ring'?); valid: base"),
        ("topology ring", "agents: missing; valid: a number of agents for topology 'ring'"),
        ("topology ring --agents 0", "agents: 0 is not valid; valid: a whole number of at least 1"),
        ("topology ring --agents 3 --seed x", "seed: 'x' is not valid; valid: a whole number"),
        ("topology ring --agents 3 --parameters 0", "parameters: 0 is not valid; valid: a whole"),
        ("topology ring --agents 3 --picture a.gif", "picture: 'a.gif' is not valid; valid: a fil"),
        ("topology ring --agents 3 --picture no/a.png", "picture: 'no/a.png' is not valid; valid:"),
        ("data digts", "data: 'digts' is not valid (did you mean 'digits'?); valid:"),
        ("data digits --seed -1", "seed: -1 is not valid; valid: a whole number from 0 to 92"),
        ("data digits --partition skew:2", "partition: 'skew:2' is not valid; valid: skew:s with"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line_that_says_what_is_valid(fails, arguments, message):
    assert fails(arguments).startswith(message)


def test_a_dataset_that_cannot_be_had(fails, monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = fails(f"train --data somebody/something --data-root {tmp_path}")
    assert message.startswith("data: 'somebody/something' is not valid (")
    assert "no local copy in" in message and "--data-root" in message


def test_labels_with_a_gap(fails, monkeypatch):
    digits = load("digits")
    kept = digits.train.take(np.flatnonzero(digits.train.targets.numpy() != 4))
    monkeypatch.setattr("parley.data.load", lambda *_: replace(digits, train=kept))
    assert "class 4 has no training sample" in fails("train")
    assert "class 4 has no training sample" in fails("data digits")


def test_a_diverging_run_stops_and_keeps_the_last_good_checkpoint(command):
    # The step is 1000 times too long: weights grow a thousandfold in each of the epochs' one step.
    huge = "--lr 1000 --weight-decay 1 --epochs 40 --algorithm dpsgd --batch 2000 --out run"
    code, out, err = command("train", SMALL, huge)
    assert code == 2 and out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    kept = int(line.partition("the checkpoint after epoch ")[2].split()[0])
    assert line.startswith("error: loss: ") and ("inf at" in line or "nan at" in line)
    assert f" at agent 0, step {kept + 1} of 40: training has diverged" in line
    assert "try a smaller lr (now 1000)" in line
    assert sorted(p.name for p in Path("run/checkpoint").iterdir())[-1] == f"epoch-{kept:06d}"
    assert [r["epoch"] for r in records("run")] == list(range(1, kept + 1))
    assert "NaN" not in Path("run/records.jsonl").read_text()
    # It can be resumed, to the same end.
    code, out, err = command("train", SMALL, huge, "--resume")
    assert code == 2 and err.splitlines()[-1] == line


# --- train ------------------------------------------------------------------------------------


def test_train_takes_all_promised_flags_and_prints_one_json_object(command):
    code, out, err = command(
        "train --data digits --model logistic --algorithm ngc --alpha 0.5 --agents 3",
        "--topology ring --partition iid --epochs 2 --batch 200 --lr 0.2 --momentum 0.5",
        "--gamma 0.9 --seed 1 --workers 1 --out run --json --data-root nowhere",
    )
    assert code == 0 and out.count("\n") == 1
    summary = json.loads(out)
    assert summary.keys() >= SUMMARY
    assert (summary["algorithm"], summary["agents"], summary["epochs"]) == ("ngc", 3, 2)
    assert summary["out"] == "run" and json.loads(Path("run/summary.json").read_text()) == summary
    assert "epoch 2 of 2: accuracy" in err  # chatter goes to stderr
    written = Experiment.from_toml(Path("run/experiment.toml").read_text())
    expected = Experiment.of(
        model="logistic", alpha=0.5, agents=3, partition="iid", epochs=2, batch=200, lr=0.2,
        momentum=0.5, gamma=0.9, seed=1, data_root="nowhere",
    )  # fmt: skip
    assert written == expected
    assert {k: v for k, v in records("run")[-1].items() if k in SUMMARY}.items() <= summary.items()
    code, again, _ = command("train --resume --out run --json --seed 1 run/experiment.toml")
    assert code == 0 and json.loads(again) == summary  # what is done is only shown


def test_an_experiment_file_gives_the_same_run_and_flags_win(command):
    flags = "--variant as-run --momentum 0.9 --algorithm cga --out first"
    assert command("train", SMALL, flags)[0] == 0
    text = Path("first/experiment.toml").read_text()
    assert "qp_floor = 0.5" in text and "variant" not in text
    assert command("train first/experiment.toml --out second")[0] == 0
    assert Path("second/experiment.toml").read_text() == text
    assert records("second") == records("first")
    # A plain file that says little, and flags on top of it.
    Path("mine.toml").write_text(
        'algorithm = "ngc"\nalpha = 0.25\nlr = 0.3\nmodel = "logistic"\n'
        "agents = 3\nepochs = 1\nbatch = 400\ngossip_rounds = 0\n"
    )
    assert command("train mine.toml --lr 0.4 --algorithm compngc --out third")[0] == 0
    third = Experiment.from_toml(Path("third/experiment.toml").read_text())
    assert third == Experiment.of(
        algorithm="compngc", alpha=0.25, lr=0.4, model="logistic", agents=3, epochs=1, batch=400,
        gossip_rounds=0,
    )  # fmt: skip
    assert (
        command("train first/experiment.toml --variant as-printed --epochs 1 --out fourth")[0] == 0
    )
    fourth = Experiment.from_toml(Path("fourth/experiment.toml").read_text())
    assert fourth.algorithm == parley.CGA(momentum=0.9)


def test_a_folder_is_never_overwritten(command, fails):
    assert command("train", SMALL, "--out run")[0] == 0
    assert "already holds this experiment" in fails("train", SMALL, "--out run")
    assert "holds another experiment (it differs in lr" in fails(
        "train", SMALL, "--out run --lr 0.7 --resume"
    )
    assert "is not empty" in fails("compare", SMALL, "--out run")


def test_a_summary_on_a_part_of_the_test_samples_says_so(command):
    _, out, _ = command("train", SMALL, "--out run")
    assert "tested on" not in out
    records = Path("run/records.jsonl")
    first, last = records.read_text().splitlines()
    assert json.loads(last)["test_samples"] == 360
    changed = json.loads(last) | {"test_samples": 240, "test_samples_absent": 120}
    records.write_text(f"{first}\n{json.dumps(changed)}\n")
    _, out, _ = command("train", SMALL, "--out run --resume")
    assert "240 of 360 samples" in out


def test_without_a_folder_a_new_one_is_made(command):
    for number in (1, 2):
        code, out, _ = command("train", SMALL, "--epochs 1")
        assert code == 0 and "accuracy, averaged model" in out
        assert Path(f"runs/ngc-digits-00{number}/summary.json").exists()


def test_ctrl_c_says_how_to_go_on(command, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("parley.cli.app.TrainingProgress.__call__", stop)
    code, out, err = command("train", SMALL, "--out run")
    assert code == 130 and out == ""
    assert "to go on: the same command with --out run --resume" in err
    monkeypatch.setattr("parley.cli.app.read_file", stop)
    code, out, err = command("train some.toml")
    assert (code, out, err) == (130, "", "")


# --- the other commands -----------------------------------------------------------------------


def test_help_teaches(command):
    for arguments in ("", "--help"):
        code, out, _ = command(arguments)
        assert code == 0 and all(name in out for name in ("train", "compare", "demo", "topology"))
    code, out, _ = command("train --help")
    assert code == 0
    assert "--from-python" not in out
    fields = [name for name in Experiment.model_fields if name != "from_python"]
    for flag in (*fields, *ALGORITHMS["compngc"].options(), "variant"):
        assert (
            f"--{flag.removesuffix('s') if flag.endswith('_options') else flag}".replace("_", "-")
            in out
        ), flag
    words = " ".join(out.replace("│", " ").split())
    assert "η, the learning rate. (default: 0.1)" in words and "Only cga, compcga." in words
    for name in ("compare", "demo", "algorithms", "topology", "data"):
        code, out, _ = command(f"{name} --help")
        assert code == 0 and "Usage: parley" in out
    assert command("--version") == (0, f"{full_version()}\n", "")


def shown_help(command_, name):
    """The help of every flag of a command, in one line each."""
    code, out, _ = command_(f"{name} --help")
    assert code == 0
    flags: dict[str, str] = {}
    for line in out.splitlines():
        if found := re.match(r"│ +--([a-z-]+)", line):
            flag = found[1]
        if line.startswith("│") and (flags or found):
            flags[flag] = f"{flags.get(flag, '')} {line.strip('│').strip()}"
    return {flag: " ".join(words.split()) for flag, words in flags.items()}


@pytest.mark.parametrize("name", ["train", "compare", "tune"])
def test_help_shows_the_default_of_every_algorithm(command, name):
    """Read back: what the help says of each algorithm is what its class has."""
    flags = shown_help(command, name)
    options = {option for a in ALGORITHMS.values() for option in a.options()}
    for option in options:
        words = flags[option.replace("_", "-")]
        found = re.search(r"\(default: ([^)]*)\)", words)
        assert found, words
        usual, *others = found[1].split("; ")
        own = {
            key: value
            for value, _, keys in (other.partition(" for ") for other in others)
            for key in keys.split(", ")
        }
        only = re.search(r"Only ([^.]*)\.$", words)
        lacking = re.search(r"Not ([^.]*)\.$", words)
        for key, algorithm in ALGORITHMS.items():
            has = key in only[1].split(", ") if only else True
            has = has and not (lacking and key in lacking[1].split(", "))
            assert has == (option in algorithm.options()), (option, key)
            if has:
                default = str(algorithm.options()[option].default).lower()
                assert own.get(key, usual) == (default or "none"), (option, key)


def test_help_shows_the_default_of_every_field(command):
    flags = shown_help(command, "train")
    for field, about in Experiment.model_fields.items():
        if isinstance(about.default, (int, float, str)) and field != "workers":
            words = flags[field.replace("_", "-")]
            assert f"(default: {str(about.default).lower() or 'none'})" in words, words
    tune = shown_help(command, "tune")
    assert "(default: 0.2)" in tune["validation"] and "default" not in tune["lr"]
    assert "default" not in shown_help(command, "compare")["algorithm"]


def test_algorithms(command):
    code, out, _ = command("algorithms")
    assert code == 0 and all(name in out for name in ALGORITHMS)
    code, out, _ = command("algorithms ngc")
    assert code == 0 and "alpha = 1.0  [a number from 0 to 1]" in out
    assert "gradient_at = own, as run mixed" in out and "qp_floor" not in out
    assert json.loads(command("algorithms --json")[1]).keys() == ALGORITHMS.keys()
    defaults = json.loads(command("algorithms dpsgd --json")[1])
    assert defaults == {"dpsgd": parley.DPSGD().settings()}


def test_topology(command):
    code, out, _ = command("topology ring --agents 10 --picture ring.png --parameters 1000")
    assert code == 0 and "spectral gap" in out and "metropolis: symmetric, doubly stoch" in out
    assert out.count(" 0.33") == 30 and Path("ring.png").read_bytes()[:4] == b"\x89PNG"
    figures = json.loads(command("topology star --agents 5 --parameters 1000 --json")[1])
    assert (figures["diameter"], figures["degree_min"], figures["degree_max"]) == (2, 1, 4)
    assert figures["spectral_gap"] == pytest.approx(0.2)
    assert np.array(figures["weight_matrix"]).sum(0) == pytest.approx(np.ones(5))
    # 1.6 messages for each agent, of 32 bytes and 4000, or of 32 bytes, 4 and 125.
    assert figures["round_megabytes_models"] == pytest.approx(1.6 * 4032e-6, abs=1e-6)
    assert figures["round_megabytes_cross_gradients_1bit"] == pytest.approx(1.6 * 161e-6, abs=1e-6)
    code, out, _ = command("topology directed-ring --agents 12")
    assert code == 0 and "some one-way" in out and "not symmetric, doubly stochastic" in out
    Path("graph.txt").write_text("0 1\n1 2\n")
    assert json.loads(command("topology file:graph.txt --json")[1])["agents"] == 3


def test_data(command):
    code, out, _ = command("data")
    assert code == 0 and "digits" in out and "cifar10" in out
    assert "digits" in json.loads(command("data --json")[1])
    code, out, err = command("data digits --agents 5 --picture who.png")
    assert code == 0 and "1,437 training and 360 test samples" in out and "note" not in out + err
    assert Path("who.png").exists()
    told = json.loads(command("data digits --agents 12 --topology full --json")[1])
    held = np.array(told["held"])
    assert held.shape == (12, 10) and held.sum() == told["train"] == 1437
    assert (np.count_nonzero(held, axis=1) == 1).all() and told["test"] == 360
    assert "cannot be given to 12 fully connected agents" in told["note"]
    code, out, _ = command("data digits --agents 12 --topology full")
    assert "note: 10 classes cannot be given" in out


def test_what_each_agent_holds_is_listed_where_a_table_is_too_wide(monkeypatch):
    monkeypatch.setattr(cli.screen, "_width", 60)
    names = tuple(f"a long name {n}" for n in range(10))
    table = cli._holdings_table(np.eye(10, dtype=int) * 7, names)
    assert table.headings == ["agent", "holds", "all"]
    assert table.rows[3] == ["3", "a long name 3: 7", "7"]


# --- real processes ---------------------------------------------------------------------------


def test_the_command_in_a_process_of_its_own(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "parley", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    done = run("train", *SMALL.split(), "--json", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]).keys() >= SUMMARY
    assert "Traceback" not in done.stderr and "warn" not in done.stderr.lower()
    wrong = run("train", "--alpha", "2")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: alpha: 2 is not valid; valid: a number from 0 to 1\n"
