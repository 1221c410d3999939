"""Mistakes, help, and the command in a process of its own."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parley import Experiment
from parley.algorithms import ALGORITHMS
from parley.cli import fields
from parley.cli.main import COMMANDS, main
from parley.version import full_version
from tests.cli.test_train import SMALL, SUMMARY


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
        ("train --lr -0.10", "lr: -0.10 is not valid; valid: a number from 1e-20 to"),
        ("train --lr inf", "lr: inf is not valid; valid: a number from 1e-20 to"),
        ("train --lr-decay stp", "lr_decay: 'stp' is not valid; valid: constant, step"),
        (
            "train --lr-decay cosine:warmup=50",
            "lr_decay: 'cosine:warmup=50' is not valid (the warm-up is longer than the run of 20 e"
        ),
        ("train --lr-decay exponential:0", "lr_decay: 'exponential:0' is not valid; valid: cons"),
        ("train schedule.toml", "lr_decay: 'linear:to=2' is not valid; valid: constant, step"),
        ("train --gamma-decay stp", "gamma_decay: 'stp' is not valid; valid: constant, step"),
        (
            "train --gamma-decay exponential:2",
            "gamma_decay: 'exponential:2' is not valid (γ would grow beyond its value); valid: a f"
        ),
        (
            "train --gamma-decay cosine --algorithm d2",
            "gamma_decay: 'cosine' is not valid (d2 needs the same weights in all steps); valid: c"
        ),
        ("train --stop-when accuracy>0.9", "stop_when: 'accuracy>0.9' is not valid; valid: cond"),
        ("train --stop-when acuracy>=0.9", "stop_when: 'acuracy' is not valid (did you mean 'ac"),
        ("train stop.toml", "stop_when: 'loss:patience=0' is not valid; valid: patience on a l"),
        ("tune --stop-when seconds<=9", "stop_when: 'seconds<=9' is not valid (seconds only gro"),
        ("train --checkpoint-every 0", "checkpoint_every: 0 is not valid; valid: a whole number"),
        ("train --keep 0", "keep: 0 is not valid; valid: a whole number from 1 to"),
        ("train keep.toml", "keep: True is not valid; valid: a whole number from 1 to"),
        (
            "train --algorithm dpsgd --local-steps 1.5",
            "local_steps: 1.5 is not valid; valid: a whole number from 1 to"
        ),
        (
            "train --local-steps 4",
            "local_steps: 4 is not valid (ngc takes gradients at the neighbours' models, which ev"
        ),
        ("train local.toml", "local_steps: True is not valid; valid: a whole number from 1 to"),
        ("compare --algorithms led:local_steps=0", "local_steps: 0 is not valid; valid: a whole"),
        ("train --algorithm dpsgd+clip --clip 0", "clip: 0 is not valid; valid: a number above 0"),
        ("train --algorithm clip --clip-by nrm", "clip_by: 'nrm' is not valid; valid: norm, val"),
        ("train --algorithm dpsgd --clip 1", "clip: 1 is not valid (dpsgd has no such option; it"),
        ("train --algorithm sam --rho -1", "rho: -1 is not valid; valid: a number above 0, at mo"),
        ("train --algorithm adamw --beta1 1", "beta1: 1 is not valid; valid: a number from 0 to b"),
        ("train --algorithm adam --epsilon 0", "epsilon: 0 is not valid; valid: a number above 0"),
        ("train --algorithm diloco --outer-lr 0", "outer_lr: 0 is not valid; valid: a number ab"),
        ("train --algorithm dpsgd --decay-on bias", "decay_on: 'bias' is not valid; valid: all, w"),
        (
            "train --algorithm ngc+adamw+lion",
            "algorithm: 'ngc+adamw+lion' is not valid (adamw and lion are both the update rule); v"
        ),
        ("train --algorithm ngc+sam", "algorithm: 'ngc+sam' is not valid (ngc and sam are both t"),
        ("train --algorithm dpsgd+adamv", "algorithm: 'adamv' is not valid (did you mean 'adam"),
        ("train --epochs 0", "epochs: 0 is not valid; valid: a whole number from 1 to"),
        ("train --batch 1.5", "batch: 1.5 is not valid; valid: a whole number from 1 to"),
        ("train --agents abc", "agents: 'abc' is not valid; valid: a whole number from 1 to"),
        ("train --seed -1", "seed: -1 is not valid; valid: a whole number from 0 to"),
        ("train --workers 4 --agents 3", "workers: 4 is not valid (every worker must host an"),
        ("train --threads 0", "threads: 0 is not valid; valid: a whole number from 1 to"),
        ("train --dtype float16", "dtype: 'float16' is not valid; valid: float32, float64"),
        ("train --device tpu", "device: 'tpu' is not valid; valid: cpu, cuda or cuda:N"),
        ("train --device cuda:99", "device: 'cuda:99' is not valid (this CUDA device is not avail"),
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
        ("train --task regression", "task: 'regression' is not valid (the data have one of 10 c"),
        ("train --resume", "out: missing (--resume needs it); valid: the folder to resume"),
        ("train --resume --out no", "out: 'no' is not valid (it does not exist); valid: a folder"),
        ("train --out apart.txt --agents 3", "out: 'apart.txt' is not valid (it is a file); valid"),
        ("compare --seeds 0", "seeds: 0 is not valid; valid: a whole number of at least 1"),
        ("compare --seeds x", "seeds: 'x' is not valid; valid: a whole number of at least 1"),
        ("compare --parallel 0", "parallel: 0 is not valid; valid: a whole number of at least 1"),
        ("compare --algorithms dpgsd", "algorithm: 'dpgsd' is not valid (did you mean 'dpsgd'?)"),
        ("compare --algorithms dpsgd:alpha=0", "alpha: 0 is not valid (dpsgd has no such option"),
        ("compare --algorithms ngc:alhpa=0", "option: 'alhpa' is not valid (did you mean 'alpha'"),
        ("compare --algorithms ngc:alpha", "algorithms: 'ngc:alpha' is not valid; valid: name or"),
        ("train --algorithm adamw:beta1", "algorithm: 'adamw:beta1' is not valid"),
        ("compare --algorithms ,", "algorithms: ',' is not valid; valid: at least one of dpsgd"),
        ("compare --algorithms ngc,ngc:alpha=1", "algorithms: 'NGC' is not valid (it is given twi"),
        ("compare --algorithm ngc --algorithms ngc", "algorithm: 'ngc' is not valid; valid: eithe"),
        ("compare --algorithms dpsgd --alpha 1", "alpha: 1 is not valid (none of dpsgd has"),
        ("compare --resume", "out: missing (--resume needs it); valid: the folder to resume"),
        ("compare --out apart.txt", "out: 'apart.txt' is not valid (it is a file); valid: a fold"),
        ("compare --out .", "out: '.' is not valid (it is not empty; use --resume to continue"),
        ("compare --model lenet", "model: 'lenet' is not valid (did you mean 'lenet5'?); valid:"),
        ("compare --device cuda:99", "device: 'cuda:99' is not valid (this CUDA device is not"),
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
        ("data digits --seed -1", "seed: -1 is not valid; valid: a whole number from 0 to"),
        ("data digits --partition skew:2", "partition: 'skew:2' is not valid; valid: skew:s with"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line_that_says_what_is_valid(fails, arguments, message):
    assert fails(arguments).startswith(message)


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
    assert "η, the learning rate. (default: 0.1)" in words and "Only for cga, compcga." in words
    for name in ("compare", "demo", "algorithms", "topology", "data"):
        code, out, _ = command(f"{name} --help")
        assert code == 0 and "Usage: parley" in out
    assert command("--version") == (0, f"{full_version()}\n", "")


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fills_the_lines_of_the_terminal(command, name):
    """Lines break where the terminal ends, not where those of the source do."""
    code, out, _ = command(f"{name} --help")
    assert code == 0 and "<bool>" not in out
    prose = out.partition("╭")[0].splitlines()
    for line, after in itertools.pairwise(prose):
        fits = len(line.rstrip()) + len(f" {after.strip()}".split(" ")[1]) < 78
        assert not (line.strip() and after.strip() and fits) or after.strip().startswith(
            ("(", "parley ")
        )


def shown_help(command_, name):
    """The help of every flag of a command, in one line each."""
    code, out, _ = command_(f"{name} --help")
    assert code == 0
    flags: dict[str, str] = {}
    for line in out.splitlines():
        if found := re.match(r"│ +--([a-z0-9-]+)", line):
            flag = found[1]
        if line.startswith("│") and (flags or found):
            flags[flag] = f"{flags.get(flag, '')} {line.strip('│').strip()}"
    return {flag: " ".join(words.split()) for flag, words in flags.items()}


@pytest.mark.parametrize("name", ["train", "compare", "tune"])
def test_help_shows_the_default_of_every_algorithm(command, name):
    """Read back: what the help says about each algorithm is what its class has."""
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
        only = re.search(r"Only for ([^.]*)\.$", words)
        lacking = re.search(r"Not for ([^.]*)\.$", words)
        for key, algorithm in ALGORITHMS.items():
            has = key in only[1].split(", ") if only else True
            has = has and not (lacking and key in lacking[1].split(", "))
            assert has == (option in algorithm.options()), (option, key)
            if has:
                default = str(algorithm.options()[option].default).lower()
                assert own.get(key, usual) == (default or "none"), (option, key)


def test_the_described_flags_are_those_of_the_fields():
    described = Path(fields.__file__).with_name("flags.json").read_text(encoding="utf-8")
    assert described == fields.as_text(), "python -m parley.cli.fields writes flags.json anew"


def test_help_shows_the_default_of_every_field(command):
    flags = shown_help(command, "train")
    for field, about in Experiment.model_fields.items():
        if isinstance(about.default, (int, float, str)) and field != "workers":
            words = flags[field.replace("_", "-")]
            assert f"(default: {str(about.default).lower() or 'none'})" in words, words
    tune = shown_help(command, "tune")
    assert "(default: 0.2)" in tune["validation"] and "default" not in tune["lr"]
    assert "default" not in shown_help(command, "compare")["algorithm"]


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk, as Linux has it")
def test_a_full_disk_costs_the_log_or_the_output_and_never_the_run(tmp_path):
    def run(name, **streams):
        words = [sys.executable, "-m", "parley", "train", *SMALL.split(), "--json", "--out", name]
        return subprocess.run(words, cwd=tmp_path, text=True, timeout=300, **streams)

    with Path("/dev/full").open("w") as full:
        quiet = run("first", stdout=subprocess.PIPE, stderr=full)
        mute = run("second", stdout=full, stderr=subprocess.PIPE)
    assert quiet.returncode == 0
    assert json.loads(quiet.stdout).keys() >= SUMMARY
    assert mute.returncode == 2
    last = mute.stderr.splitlines()[-1]
    assert last == "error: the output cannot be written (No space left on device)"
    for name in ("first", "second"):
        assert (tmp_path / name / "summary.json").is_file()


@pytest.mark.parametrize(
    "words",
    ["train --out {}", "report {}", "train --init {}", "keys new a --dir {}", "data {}", "dash {}"],
)
def test_a_path_that_the_system_refuses_is_named(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["parley", *words.format("a" * 300).split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("error: path: 'aaaa") and "(File name too long)" in said


@pytest.mark.parametrize("init", ["~nobody-of-that-name/model", "loop"])
def test_a_home_or_a_link_that_leads_nowhere_is_named(init, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    code, _, said = command("train", *SMALL.split(), "--init", init, "--out", "run")
    assert code == 2 and said.startswith(f"error: init: '{init}' is not valid")
