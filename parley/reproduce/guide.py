"""Which algorithm should I use? Every method in three settings, tuned alike, and what follows.

Each method gets the same number of trials over its learning rate (and over γ, if that is
below 1 by default), judged on held-out training samples. Then it runs with every seed at the
settings that won. Where a method has momentum, it is the same for all.

OUT/<setting>/<method>/ holds a method's trials and runs, OUT/<setting>.jsonl the records of all
finished runs of a setting, which ``findings.py`` reads, and OUT/<setting>-trials.jsonl what the
trials found. Both files keep the methods that a command does not name. Runs that are recorded are
not made again, even if their folders are gone: with more seeds, only the new ones run.
"""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parley.errors import BadValue, unknown_name
from parley.experiment import Experiment
from parley.files import write_atomically
from parley.reproduce.campaign import version_of
from parley.store.folder import RunFolder
from parley.sweep import compare, field, tune
from parley.sweep.compare import Method, parse_algorithms, slug
from parley.sweep.jobs import Job
from parley.training.record import value

MOMENTUM = 0.9
"""Of every method that has it."""
LINKS = "delay=0.01,bandwidth=100M"
"""The simulated network: 10 ms one way, 100 Mbit/s on each link."""
RATES = {"sgd": (0.01, 1.0), "momentum": (0.003, 0.3), "adaptive": (0.0003, 0.03)}
"""Learning rates that are tried. Momentum multiplies a step by up to 1 / (1 - 0.9), and adaptive
rules divide it by the size of the gradient, so one range for all would favour some."""
METHODS = (
    "dpsgd,dpsgd:momentum=0,ngc,ngc:alpha=0,compngc,compngc:variant=as-run,cga,cga:variant=as-run,"
    "compcga,compcga:variant=as-run,compngc:gamma=0.1,compcga:gamma=0.1,dmsgd,qgm,decentlam,d2,"
    "d2:gamma=0.75,exact-diffusion,exact-diffusion:gamma=0.75,gut,gut:momentum=0,"
    "gut:momentum=0:mu=0.9,gut:variant=as-run:momentum=0:mu=0.9,tracking,momentum-tracking,"
    "relaysgd,ngc+qgm,ngc+qgm:nesterov=False,ngc+tracking,dpsgd+adamw,ngc+adamw,quantized,choco,"
    "compngc+choco,deepsqueeze,adagossip,beer,sgp,sparse-push,kgt,led,led:gamma=0.75,proxskip,"
    "proxskip:gamma=0.75,diloco,swarmsgd,swarmsgd:pairs=many,skewscout,fedavg,central"
)
TRIAL_EPOCHS_BEFORE = 5
"""In records that do not say how long their trials were."""
KEPT = (
    "epoch", "step", "accuracy_mean_model", "accuracy_own", "consensus_distance", "bytes_models",
    "bytes_cross_gradients", "seconds", "seconds_network",
)  # fmt: skip
"""The fields of a record that tables and pictures need."""
TUNED = ("lr", "gamma")
"""What the trials find."""
ABOUT = (*TUNED, "momentum", "epochs", "fraction")
"""What a record says about its run for them."""


@dataclass(frozen=True)
class Setting:
    """Who learns what from whom."""

    name: str
    title: str
    agents: int
    topology: str
    partition: str
    data: str = "fashion_mnist"
    model: str = "lenet5"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("ring", "Skewed classes, a ring", 16, "ring", "dirichlet:0.1"),
        Setting("one-class", "One class per agent, a ring", 10, "ring", "skew:1"),
        Setting(
            "changing",
            "Skewed classes, a changing exponential graph",
            16,
            "one-peer-exponential",
            "dirichlet:0.1",
        ),
    )
}


@dataclass(frozen=True)
class Budget:
    """What every method gets."""

    trials: int = 4
    trial_epochs: int = 20
    epochs: int = 20
    seeds: int = 3
    fraction: float = 1.0
    """Share of the training samples."""
    test_fraction: float = 1.0
    data_root: str | None = None


def settings_named(name: str | None) -> list[Setting]:
    """All settings, or the one with this name."""
    if name is None:
        return list(SETTINGS.values())
    if name not in SETTINGS:
        raise unknown_name("name", name, list(SETTINGS))
    return [SETTINGS[name]]


def experiment(setting: Setting, method: Method, budget: Budget) -> Experiment:
    """A method in a setting, whether or not the graph suits it."""
    common = {
        "data": setting.data,
        "model": setting.model,
        "agents": setting.agents,
        "topology": setting.topology,
        "partition": setting.partition,
        "momentum": MOMENTUM,
        "epochs": budget.epochs,
        "batch": 32,
        "fraction": budget.fraction,
        "test_fraction": budget.test_fraction,
        "evaluate_every": max(1, budget.epochs // 4),
        "gossip_rounds": 0,
        "links": LINKS,
        "data_root": budget.data_root,
    }
    return method.experiment(common)


def label_of(method: Method, made: Experiment) -> str:
    """The algorithm's label, with the settings that it was given.

    >>> [method] = parse_algorithms("dpsgd:momentum=0")
    >>> label_of(method, method.experiment({}))
    'D-PSGD momentum=0'
    >>> [method] = parse_algorithms("ngc:alpha=0")
    >>> label_of(method, method.experiment({}))
    'NGC α=0'
    >>> [method] = parse_algorithms("compngc:gamma=0.1")
    >>> label_of(method, method.experiment({}))
    'CompNGC γ=0.1'
    """
    label = made.algorithm.label
    said = {"alpha"} if "α=" in label else set()
    short = {"gamma": "γ"}
    given = (f"{short.get(k, k)}={v}" for k, v in method.settings.items() if k not in said)
    return " ".join([label, *given])


def key_of(method: Method) -> str:
    """The method's name with all of its settings: a γ that is given is not tuned.

    >>> [method] = parse_algorithms("compngc:gamma=0.1")
    >>> key_of(method)
    'compngc:gamma=0.1'
    """
    return ":".join([method.name, *(f"{k}={v}" for k, v in sorted(method.settings.items()))])


def rates(made: Experiment) -> tuple[float, float]:
    """The range of learning rates for a method."""
    options = made.algorithm.settings()
    if "beta1" in options:
        return RATES["adaptive"]
    return RATES["momentum" if options.get("momentum") else "sgd"]


@dataclass(frozen=True)
class Outcome:
    """What became of a method in a setting."""

    label: str
    refusal: str = ""
    """Why it was not run there."""
    diverged: bool = False
    """Whether every trial, or a run at the winning settings, diverged."""


def run(
    settings: Sequence[Setting], methods: str, budget: Budget, parallel: int, out: Path
) -> Iterator[tuple[Setting, Outcome]]:
    """Runs what is not there yet, method by method; the records are up to date after each."""
    chosen = parse_algorithms(methods)
    for setting in settings:  # nothing begins before everything is known to be valid
        _check_methods(chosen, [experiment(setting, method, budget) for method in chosen])
        _check_records(setting, chosen, budget, out)
    for setting in settings:
        for method in chosen:
            yield setting, run_method(setting, method, budget, parallel, out)


def _check_methods(methods: Sequence[Method], made: Sequence[Experiment]) -> None:
    """Refuses settings that are not the methods' own, and methods that cannot be told apart."""
    seen: set[str] = set()
    for method, asked in zip(methods, made, strict=True):
        common = Experiment.model_fields.keys() - {"variant"}
        if others := sorted(common & method.settings.keys()):
            why = f"{method.name} has {', '.join(others)}, which is tuned or the same for all"
            raise BadValue("methods", key_of(method), "settings of the algorithm itself", why)
        if (label := label_of(method, asked)) in seen:
            why = f"{label} is given twice"
            raise BadValue("methods", key_of(method), "each method once", why)
        seen.add(label)


def _check_records(setting: Setting, methods: Sequence[Method], budget: Budget, out: Path) -> None:
    """Refuses to add to records of other experiments, and to replace more seeds by fewer."""
    path, keys = out / f"{setting.name}.jsonl", {key_of(method) for method in methods}
    _lines_if_any(out / f"{setting.name}-trials.jsonl")  # damaged ones are refused
    for line in _lines_if_any(path):
        known = {"trial_epochs": TRIAL_EPOCHS_BEFORE} | line
        differing = [
            f"{name} {known[name]}"
            for name in ("epochs", "fraction", "test_fraction", "trials", "trial_epochs")
            if name in known and known[name] != getattr(budget, name)
        ]
        if line["method"] in keys and (line["seed"] or 0) >= budget.seeds:
            differing.append(f"seed {line['seed']} of {line['label']}")
        if differing:
            why = f"{path.name} has runs with {', '.join(differing)}"
            raise BadValue("out", str(out), "a folder for this budget alone", why)


def run_method(
    setting: Setting, method: Method, budget: Budget, parallel: int, out: Path
) -> Outcome:
    """Tunes a method and runs it with every seed; nothing that is recorded is run again."""
    try:
        asked = field.fitting(experiment(setting, method, budget))
    except BadValue as error:
        return Outcome(key_of(method), refusal=str(error))
    place, path = out / setting.name / slug(key_of(method)), out / f"{setting.name}.jsonl"
    about: dict[str, Any] = {"method": key_of(method), "label": label_of(method, asked)}
    lines = [line for line in _lines_if_any(path) if line["method"] == key_of(method)]
    if lines:
        best = {name: lines[0][name] for name in TUNED if lines[0].get(name) is not None}
    else:
        trials = _trials(asked, method, budget, place)
        tune.tune(trials, parallel, place / "trials", resume=True)
        tried = [_tried(about, trial) for trial in trials]
        _replace_lines(out / f"{setting.name}-trials.jsonl", method, tried)
        [won] = tune.winners(trials).values() or [{}]
        best = won[key_of(method)].settings if won else {}
    about |= {"trials": budget.trials, "trial_epochs": budget.trial_epochs}
    about |= {"test_fraction": budget.test_fraction}
    if not best:  # every trial has diverged
        about |= {"epochs": budget.epochs, "fraction": budget.fraction}
        lines = [about | {"seed": None, "diverged": True}]
        _replace_lines(path, method, lines)
    elif runs := _runs(asked.replace(**best), budget, place, {line["seed"] for line in lines}):
        compare.compare(runs, parallel, place / "runs", resume=True)
        lines += [line for job in runs for line in _lines(about, job)]
        _replace_lines(path, method, lines)
    return Outcome(key_of(method), diverged=any(line["diverged"] for line in lines))


def _trials(asked: Experiment, method: Method, budget: Budget, place: Path) -> list[tune.Trial]:
    short = asked.replace(epochs=budget.trial_epochs)
    keys = [key_of(method)]
    return tune.plan([short], budget.trials, place / "trials", rates(asked), keys)


def _tried(of_method: Mapping[str, Any], trial: tune.Trial) -> dict[str, Any]:
    tried, lost = trial.job.experiment, trial.job.failure is not None
    about = {**of_method, "trial": trial.number, "seed": tried.seed, **trial.settings}
    about |= {"epochs": tried.epochs, "diverged": lost}
    return about if lost else about | {"accuracy_held_out": round(trial.score[0], 5)}


def _runs(tuned: Experiment, budget: Budget, place: Path, recorded: Container[int]) -> list[Job]:
    """One for each seed that is not recorded."""
    made = compare.jobs([tuned], budget.seeds, place / "runs", names=[tuned.algorithm.label])
    return [replace(job, may_diverge=True) for job in made if job.experiment.seed not in recorded]


def _lines_if_any(path: Path) -> list[dict[str, Any]]:
    return read_lines(path) if path.exists() else []


def _replace_lines(path: Path, method: Method, lines: Sequence[Mapping[str, Any]]) -> None:
    kept = [line for line in _lines_if_any(path) if line["method"] != key_of(method)]
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in [*kept, *lines]))


def _lines(of_method: Mapping[str, Any], job: Job) -> Iterator[dict[str, Any]]:
    made: Experiment = job.experiment
    about = {**of_method, "seed": made.seed, "lr": made.lr}
    about |= {"gamma": made.algorithm.settings().get("gamma"), "topology": made.topology}
    about |= {"momentum": made.algorithm.momentum_label, "diverged": job.failure is not None}
    about |= {"epochs": made.epochs, "fraction": made.fraction}
    about |= {"commit": version_of(job.out, "commit")}
    records = RunFolder(job.out).records()
    for record in records:
        yield about | {
            key: round(found, 5) for key in KEPT if (found := value(record, key)) is not None
        }
    if not records:  # it diverged before the first
        yield about


def read_lines(path: Path, figures: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The records of a file, with these figures if they have not diverged."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:  # UnicodeDecodeError is one, too
            record = None
        if not isinstance(record, dict):
            raise _damaged(path, number, "")
        needed = ["method", "label", "seed", "diverged"]
        if record.get("seed") is not None:
            needed.append("lr")
        if not record.get("diverged"):
            needed += figures
        if lacking := [name for name in dict.fromkeys(needed) if name not in record]:
            raise _damaged(path, number, f": it lacks {', '.join(lacking)}")
        if not isinstance(record["seed"], int | None):
            raise _damaged(path, number, ": its seed is not a number")
        found.append(record)
    return found


def _damaged(path: Path, number: int, how: str) -> BadValue:
    why = f"{path.name} is damaged in line {number}{how}"
    return BadValue("out", str(path.parent), "a folder with whole records", why)
