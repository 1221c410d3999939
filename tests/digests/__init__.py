"""Numbers and names that must not change unintentionally.

Each row of ``tests/digests/*.json`` is what Parley gave when it was recorded. `ROWS` says how each
is measured again, through nothing but what users have: the command, ``parley.train``, and the files
of a run. ``tests/test_digests.py`` compares the two, and

    python -m tests.digests            says which rows have changed, and by how much
    python -m tests.digests --record   rewrites those rows

If you record a row again, explain the change in the commit: which fault was fixed, or what is now
computed differently and why. See README.md beside this file.
"""

import contextlib
import io
import json
import math
import os
import re
import runpy
import sys
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import torch
from torch import Tensor, nn

import parley
from parley.files import parse_json

HERE = Path(__file__).parent
FOLDERS = HERE / "folders"
"""Folders of runs as the code of that day wrote them."""

# --- comparing --------------------------------------------------------------------------------

RELATIVE = 1e-9
"""Far above rounding, which differs between processors, and far below any change of a method."""
TOLERANCES = {"runs": 1e-6}
"""For files where it has to be another: networks by name draw their weights in float32, whose last
digit depends on whether the processor multiplies and adds in one."""
ABSOLUTE = 1e-12
"""For what is zero but for rounding."""
SHORTENED = {"distance_agents": 1e-5, "accuracy_agents": 1e-5}
"""Fields of a record that are rounded to about six digits: the last of those may tip over."""


def differences(
    recorded: Any, measured: Any, relative: float = RELATIVE, where: str = ""
) -> list[str]:
    """How what is measured differs from what was recorded, one line each.

    What is only in `measured` is no difference: a new flag or field breaks nobody's use.

    >>> differences({"loss": 2.0, "step": 5}, {"loss": 2.0 + 1e-12, "step": 6, "new": 1})
    ['step: 5 is now 6']
    >>> differences([{"loss": 2.0}], [{"loss": 2.002}])
    ['[0].loss: 2.0 is now 2.002 (1.0e-03)']
    """
    if isinstance(recorded, dict) and isinstance(measured, dict):
        found = []
        for key, value in recorded.items():
            inner = f"{where}.{key}" if where else key
            if key not in measured:
                found.append(f"{inner}: is missing")
            else:
                found += differences(value, measured[key], relative, inner)
        return found
    if isinstance(recorded, list) and isinstance(measured, list) and _are_names(recorded):
        return [f"{where}: {name!r} is missing" for name in recorded if name not in measured]
    if isinstance(recorded, list) and isinstance(measured, list) and len(recorded) == len(measured):
        pairs = enumerate(zip(recorded, measured, strict=True))
        return [
            line for n, (a, b) in pairs for line in differences(a, b, relative, f"{where}[{n}]")
        ]
    if isinstance(recorded, float) and isinstance(measured, (int, float)):
        last = re.sub(r"\[\d+\]$", "", where).rpartition(".")[2]
        tolerance = 0.0 if last.startswith("bytes_") else SHORTENED.get(last, relative)
        if math.isclose(recorded, measured, rel_tol=tolerance, abs_tol=min(tolerance, ABSOLUTE)):
            return []
        change = abs(measured - recorded) / max(abs(recorded), ABSOLUTE)
        return [f"{where}: {recorded} is now {measured} ({change:.1e})"]
    same = recorded == measured and type(recorded) is type(measured)
    return [] if same else [f"{where}: {_short(recorded)} is now {_short(measured)}"]


def _are_names(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def rounded(value: Any) -> Any:
    """The same with 12 significant digits: more would only be noise in the files."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(inner) for inner in value]
    return value


MACHINE = {"seconds", "seconds_network", "gradients_per_second", "peak_memory_mb", "out"}
"""What a record or a summary says about the machine and not about the run."""


def about_the_run(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in MACHINE}


# --- the command ------------------------------------------------------------------------------


class Said(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


def command(line: str, folder: Path) -> Said:
    """``parley …`` in this process, which is quicker than in one of its own."""
    out, err = io.StringIO(), io.StringIO()
    argv, code = sys.argv, 0
    columns = os.environ.get("COLUMNS")
    sys.argv, os.environ["COLUMNS"] = ["parley", *line.split()], "200"
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            runpy.run_module("parley", run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = argv
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return Said(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def told(line: str) -> Iterator[tuple[Said, Path]]:
    """A command that must succeed, and the folder that it ran in."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        said = command(line, folder)
        assert said.code == 0, f"parley {line}: {said.err}"
        yield said, folder


def json_of(line: str) -> Any:
    with told(f"{line} --json") as (said, _):
        return said.json


def records_in(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return [about_the_run(parse_json(line)) for line in lines]


# --- trajectories -----------------------------------------------------------------------------

FEATURES, CLASSES, SIZES = 6, 3, (24, 17, 33)


def net() -> nn.Module:
    """Smooth, and no entry of its gradient is ever zero: rounding alone flips no sign.

    Torch would draw the weights in float32, and its last digit depends on the processor.
    """
    made = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    draws = np.random.RandomState(11)  # the same numbers in every version of numpy
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.from_numpy(0.5 * draws.standard_normal(parameter.shape)))
    return made


def samples(agents: int) -> list[tuple[Tensor, Tensor]]:
    """Unequal numbers of samples, at each agent mostly of one class."""
    draws = np.random.RandomState(7)
    centres = draws.standard_normal((CLASSES, FEATURES))
    made = []
    for agent in range(agents):
        size = SIZES[agent % len(SIZES)]
        targets = np.where(draws.random_sample(size) < 0.7, agent, draws.randint(0, 99, size))
        inputs = centres[targets % CLASSES] + 0.8 * draws.standard_normal((size, FEATURES))
        made.append((torch.from_numpy(inputs), torch.from_numpy(targets % CLASSES)))
    return made


def irregular() -> "nx.DiGraph[int]":
    """Directed, of unequal degrees, with two-way and one-way edges."""
    return nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 2), (2, 0), (3, 1)])


def training(options: Mapping[str, Any], **how: Any) -> parley.Result:
    """15 steps with a learning rate that changes, by which forms of momentum are told apart."""
    chosen = dict(options)
    if chosen.get("topology") == "irregular":
        chosen["topology"] = irregular()
        agents = 6
    else:
        agents = chosen.setdefault("agents", 5)
    return parley.train(
        **{
            "model": net, "data": samples(agents), "test": samples(agents + 1)[-1],
            "topology": "ring", "dtype": "float64", "engine": "loop", "epochs": 3, "batch": 8,
            "lr": 0.2, "lr_decay": "exponential:0.8", "gossip_rounds": 3, "progress": False,
        } | chosen | how
    )  # fmt: skip


def trajectory(options: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """Every record, and where the models have ended."""
    result = training(options, **how)
    x_ND = result.x_ND
    along_D = torch.arange(x_ND.shape[1], dtype=x_ND.dtype).mul_(0.7).add_(1).cos_()
    ends = {"norm": float(x_ND.norm()), "along": (x_ND @ along_D).tolist()}
    held = result.about["agents"]["held"]
    return rounded(
        {
            "label": result.summary["label"],
            "held": zlib.crc32(json.dumps(held).encode()),
            "records": [about_the_run(record) for record in result.records],
            "models": ends,
        }
    )


HEAVY = {"momentum": 0.9}
DIRECTED = {"topology": "irregular", "weights": "push"}
AS_RUN: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "ngc": {},
    "compngc": {"scope": "tensor"},
    "cga": {"scope": "tensor", "qp_floor": 0.5, "qp_scale": "neighbourhood"},
    "compcga": {"scope": "tensor", "qp_floor": 0.5, "qp_scale": "neighbourhood"},
}
"""What ``--variant as-run`` sets beside `gradient_at` and `nesterov`: the row of names says so."""
TRAJECTORIES: dict[str, dict[str, Any]] = {
    "dpsgd": {"algorithm": "dpsgd", **HEAVY, "weight_decay": 0.01, "gamma": 0.8},
    "dpsgd, base": {"algorithm": "dpsgd", **HEAVY, "topology": "base:1", "agents": 6},
    "dpsgd, irregular": {"algorithm": "dpsgd", "topology": "irregular", "nesterov": True, **HEAVY},
    "ngc": {"algorithm": "ngc", **HEAVY},
    "ngc α=0": {"algorithm": "ngc", "alpha": 0, **HEAVY, "topology": "directed-ring"},
    "ngc α=0.4": {"algorithm": "ngc", "alpha": 0.4, "topology": "star", "agents": 6, "gamma": 0.7},
    "ngc, changing graph": {
        "algorithm": "ngc", "topology": "one-peer-exponential", "agents": 8, **HEAVY,
    },
    "ngc, bias norms": {"algorithm": "ngc", "bias_norms": "printed", "evaluate_every": 2},
    "ngc, bias norms as run": {"algorithm": "ngc", "bias_norms": "run", "start_agent": 2},
    "compngc": {"algorithm": "compngc", **HEAVY},
    "compngc α=0.5 per tensor": {
        "algorithm": "compngc", "alpha": 0.5, "scope": "tensor", "gamma": 0.9,
        "topology": "directed-ring",
    },
    "cga": {"algorithm": "cga", **HEAVY},
    "cga, floor": {"algorithm": "cga", "qp_floor": 0.3, "topology": "star", "scope": "tensor"},
    "compcga": {"algorithm": "compcga", **HEAVY},
    "compcga, scaled": {"algorithm": "compcga", "qp_scale": "neighbourhood", "weight_decay": 0.01},
    **{
        f"{name}, as run": {
            "algorithm": name, "gradient_at": "mixed", "nesterov": True, **more, **HEAVY,
            "topology": "torus:2x3", "agents": 6,
        }
        for name, more in AS_RUN.items()
    },
    "dmsgd": {"algorithm": "dmsgd", "topology": "directed-ring"},
    "qgm": {"algorithm": "qgm", "mu": 0.8, "weight_decay": 0.01},
    "qgm, changing graph": {"algorithm": "qgm", "topology": "matchings:4", "agents": 6},
    "decentlam": {"algorithm": "decentlam", "gamma": 0.9},
    "d2": {"algorithm": "d2", "weight_decay": 0.01},
    "gut": {"algorithm": "gut", "mu": 0.05, **HEAVY},
    "tracking": {"algorithm": "tracking", "momentum": 0.5, "topology": "irregular"},
    "tracking, changing graph": {
        "algorithm": "tracking", "topology": "one-peer-exponential", "agents": 8,
    },
    "momentum-tracking": {"algorithm": "momentum-tracking", "momentum": 0.8, "gamma": 0.9},
    "relaysgd": {"algorithm": "relaysgd", "topology": "chain", **HEAVY},
    "relaysgd, tree": {"algorithm": "relaysgd", "topology": "tree:2", "agents": 6},
    "quantized": {"algorithm": "quantized", "codec": "qsgd:8", **HEAVY},
    "choco": {"algorithm": "choco", **HEAVY, "gamma": 0.3},
    **{
        f"choco, {codec}": {"algorithm": "choco", "codec": codec, "topology": "star", "epochs": 2}
        for codec in (
            "dense", "fp16", "topk:0.2", "randomk:0.3", "randomk:0.3,unbiased", "qsgd:4", "qsgd:2",
            "qsgd:8,16",
        )
    },
    "deepsqueeze": {"algorithm": "deepsqueeze", **HEAVY},
    "adagossip": {"algorithm": "adagossip", "smoothing": 0.9, "gamma": 0.01, **HEAVY},
    "beer": {"algorithm": "beer", "codec": "topk:0.3", "momentum": 0.5},
    "beer, sign": {"algorithm": "beer", "gamma": 0.1},
    "sgp": {"algorithm": "sgp", **DIRECTED, **HEAVY},
    "sparse-push": {"algorithm": "sparse-push", **DIRECTED, "codec": "topk:0.3"},
    "swarmsgd": {"algorithm": "swarmsgd", "local_steps": 2, **HEAVY},
    "swarmsgd, many pairs": {"algorithm": "swarmsgd", "pairs": "many", "agents": 6},
    "skewscout": {"algorithm": "skewscout", "longest": 4, "travels": 2, **HEAVY},
    "fedavg": {"algorithm": "fedavg", "local_steps": 3, "nesterov": True, **HEAVY},
    "central": {"algorithm": "central", "weight_decay": 0.01, **HEAVY},
    "ngc+qgm": {"algorithm": "ngc+qgm", "alpha": 0.5, "mu": 0.8},
    "compngc+qgm": {"algorithm": "compngc+qgm"},
    "cga+qgm": {"algorithm": "cga+qgm"},
    "compngc+choco": {"algorithm": "compngc+choco", "gamma": 0.3, **HEAVY},
    "ngc+adagossip": {"algorithm": "ngc+adagossip", "smoothing": 0.9, "gamma": 0.01},
    "ngc+push-sum": {"algorithm": "ngc+push-sum", "alpha": 0.3, "gamma": 0.5, **DIRECTED},
    "compngc+push-sum": {"algorithm": "compngc+push-sum", **DIRECTED, **HEAVY},
    "tracking+sign": {"algorithm": "tracking+sign"},
    "tracking+push-sum": {"algorithm": "tracking+push-sum", **DIRECTED, "momentum": 0.5},
    "tracking+qgm": {"algorithm": "tracking+qgm", "mu": 0.8},
    "ngc+tracking": {"algorithm": "ngc+tracking"},
    "qgm+topk": {"algorithm": "qgm+topk:0.3", "gamma": 0.4},
    "kgt": {"algorithm": "kgt", "local_steps": 3, "topology": "irregular"},
    "exact-diffusion": {"algorithm": "exact-diffusion", "weight_decay": 0.01},
    "led": {"algorithm": "led", "local_steps": 3, "topology": "star"},
    "proxskip": {"algorithm": "proxskip", "local_steps": 2},
    "diloco": {"algorithm": "diloco", "local_steps": 4, "agents": 6, "lr": 0.02},
    "dpsgd, local steps": {
        "algorithm": "dpsgd", "local_steps": 4, **HEAVY, "topology": "irregular",
    },
    "qgm, local steps": {"algorithm": "qgm", "local_steps": 4, "topology": "irregular"},
    "sgp, local steps": {"algorithm": "sgp", "local_steps": 2, **DIRECTED},
    "choco, local steps": {"algorithm": "choco", "local_steps": 2, "gamma": 0.3},
    "dpsgd+adamw": {"algorithm": "dpsgd+adamw", "lr": 0.02, "topology": "irregular"},
    "dpsgd+adam": {"algorithm": "dpsgd+adam", "lr": 0.02, "weight_decay": 0.1, "local_steps": 2},
    "ngc+clip+adamw": {"algorithm": "ngc+clip+adamw", "lr": 0.02, "clip": 0.3, "alpha": 0.5},
    "dpsgd+lion": {
        "algorithm": "dpsgd+lion", "lr": 0.005, "weight_decay": 0.1, "decay_on": "weights",
        "topology": "directed-ring",
    },
    "dpsgd+sam": {
        "algorithm": "dpsgd+sam", "rho": 0.2, **HEAVY, "decoupled": True, "weight_decay": 0.1,
    },
    "dpsgd+clip": {"algorithm": "dpsgd+clip", "clip": 0.1, "clip_by": "value"},
    "cosine with a rise": {"algorithm": "dpsgd", "lr_decay": "cosine:warmup=1,to=0.1"},
    "fading averages": {"algorithm": "dpsgd", "gamma_decay": "linear:to=0.2", "topology": "star"},
    "deepsqueeze+push-sum+qgm": {"algorithm": "deepsqueeze+push-sum+qgm", **DIRECTED},
}  # fmt: skip

# --- runs by the command: data, partitions and models by name ----------------------------------

SMALL = "--agents 5 --model logistic --fraction 0.15 --epochs 2 --dtype float64 --engine loop"
RUNS = {
    "skew": f"{SMALL} --algorithm ngc --partition skew:0.8 --momentum 0.9",
    "iid": f"{SMALL} --algorithm dpsgd --partition iid --seed 3 --lr-decay step:0.5,0.5",
    "dirichlet": f"{SMALL} --algorithm ngc --partition dirichlet:0.5 --gossip-rounds 0",
    "classes": f"{SMALL} --algorithm tracking --partition classes:2 --batch 16",
    "validation": f"{SMALL} --algorithm qgm --validation 0.3 --test-fraction 0.5",
    "random graph": f"{SMALL} --algorithm cga --topology erdos-renyi:0.5 --seed 1",
    "sinkhorn weights": f"{SMALL} --algorithm dpsgd --topology star --weights sinkhorn",
    "ngc as run": f"{SMALL} --algorithm ngc --variant as-run --momentum 0.9",
    "cga as run": f"{SMALL} --algorithm cga --variant as-run --momentum 0.9",
    "unfinished": "--agents 4 --topology ring --algorithm compngc --momentum 0.9 --model mlp "
    "--model-option hidden=2 --fraction 0.1 --epochs 4 --gossip-rounds 3 --dtype float64 "
    "--engine loop",  # folders/unfinished, had it not been stopped
    "links": f"{SMALL} --algorithm ngc --links delay=0.05,bandwidth=10M,drop=0.1",
}
ON_IMAGES = "--agents 2 --fraction 0.01 --test-fraction 0.05 --epochs 1 --batch 8 --gossip-rounds 0"
MODELS = {
    "mlp": "--model mlp --model-option hidden=7",
    "cnn5": "--model cnn5",
    "resnet20": "--model resnet20 --model-option evonorm=s0",
}


def run(line: str) -> dict[str, Any]:
    """Every record that a run writes, and who held what."""
    with told(f"train {line} --workers 1 --out run --json") as (said, folder):
        summary = said.json
        assert summary == parse_json((folder / "run/summary.json").read_text(encoding="utf-8"))
        agents = parse_json((folder / "run/agents.json").read_text(encoding="utf-8"))
        return rounded(
            {
                "held": agents["held"],
                "summary": about_the_run(summary),
                "records": records_in(folder / "run"),
            }
        )


# --- graphs -----------------------------------------------------------------------------------

GRAPHS = (
    "ring", "directed-ring", "chain", "torus:2x4", "circulant:1,3", "exponential", "full", "star",
    "hypercube", "tree:2", "spanning-tree:torus", "directed-exponential", "random-regular:3",
    "erdos-renyi:0.5", "one-peer-exponential", "base:1", "base:2", "matchings:5",
    "star --weights uniform", "tree:3 --weights sinkhorn", "erdos-renyi:0.4 --weights metropolis",
)  # fmt: skip


def graph(spec: str) -> dict[str, Any]:
    """What the command says of a graph of eight; the weights as one number."""
    figures = json_of(f"topology {spec} --agents 8 --seed 2")
    weights = torch.tensor(figures.pop("weight_matrix"), dtype=torch.float64).flatten()
    along = torch.arange(len(weights), dtype=torch.float64).mul_(0.7).add_(1).cos_()
    figures["weights_along"] = float(weights @ along)
    rounds = figures.pop("rounds", [])
    figures["round_edges"] = [zlib.crc32(json.dumps(r["edges"]).encode()) for r in rounds]
    return rounded(figures)


# --- names ------------------------------------------------------------------------------------

FLAG = re.compile(r"[│|]?\s{1,4}(?:\*\s+)?((?:--?[a-z][\w-]*[\s,/]+)+)")
"""The first column of a help page, with or without a frame; sentences beside it name flags too."""
NAMED = re.compile(r"[│|]?\s{1,2}([a-z][\w-]*)\s{2,}\S")


def help_of(path: str) -> dict[str, list[str]]:
    """Flags and commands on one page of help."""
    with told(f"{path} --help".strip()) as (said, _):
        lines = said.out.splitlines()
    flags = {flag for line in lines if (found := FLAG.match(line)) for flag in found[1].split()}
    start = next((n for n, line in enumerate(lines) if "Commands" in line), len(lines))
    commands = {found[1] for line in lines[start:] if (found := NAMED.match(line))}
    return {"flags": sorted(flag.strip(",/") for flag in flags), "commands": sorted(commands)}


def commands(path: str = "") -> dict[str, list[str]]:
    """The flags of every command and of those below it."""
    page = help_of(path)
    found = {f"parley {path}".strip(): page["flags"]}
    for name in page["commands"]:
        found |= commands(f"{path} {name}".strip())
    return found


def keys(value: Any) -> Any:
    """Names without values; of a list, those of its first entry."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [keys(value[0])]
    return None


QUICK = "--agents 3 --model logistic --fraction 0.05 --epochs 1 --gossip-rounds 0 --engine loop"


def summary_keys() -> dict[str, Any]:
    """What ``--json`` prints, and what the files of a run hold."""
    with told(f"train {QUICK} --links delay=0.1 --bias-norms run --out run --json") as (said, at):
        found = {"train": keys(said.json)}
        for path in sorted((at / "run").glob("*.json")):
            found[path.name] = keys(json.loads(path.read_text(encoding="utf-8")))
        line = (at / "run/records.jsonl").read_text(encoding="utf-8").splitlines()[0]
        found["records.jsonl"] = keys(parse_json(line))
        found["report"] = keys(command("report run --out page.html --json", at).json)
    compared = f"compare --algorithms dpsgd,ngc --seeds 2 --parallel 1 {QUICK}"
    found["compare"] = keys(json_of(f"{compared} --out all"))
    found["compare, partitions"] = keys(json_of(f"{compared} --partitions iid,skew:1 --out all"))
    found["data"] = keys(json_of("data digits --agents 3"))
    found["topology"] = keys(json_of("topology base:1 --agents 4"))
    return found


def toml() -> dict[str, Any]:
    """Every key of an experiment's file, with its default unless there is none."""
    without = {"threads": 1, "data_root": "data", "evaluate_every": 1}
    return tomllib.loads(parley.Experiment.of(**without).to_toml())


def variants() -> dict[str, Any]:
    """The hyper-parameters that ``--variant as-run`` stands for."""
    found = {}
    for name in AS_RUN:
        line = f"train --algorithm {name} --variant as-run {QUICK} --out run"
        with told(line) as (_, folder):
            written = (folder / "run/experiment.toml").read_text(encoding="utf-8")
            found[name] = tomllib.loads(written)["algorithm"]
    return found


NAMES: dict[str, Callable[[], Any]] = {
    "flags": commands,
    "toml": toml,
    "as run": variants,
    "json": summary_keys,
    "algorithms": lambda: json_of("algorithms"),
    "combinations": lambda: {
        name: json_of(f"algorithms {name}")[name]
        for name in sorted({o["algorithm"] for o in TRAJECTORIES.values() if "+" in o["algorithm"]})
    },
    "data": lambda: sorted(json_of("data")),
    "python": lambda: sorted(parley.__all__),
}

# --- all of them ------------------------------------------------------------------------------

ROWS: dict[str, dict[str, Callable[[], Any]]] = {
    "trajectories": {name: partial(trajectory, o) for name, o in TRAJECTORIES.items()},
    "runs": {
        **{name: partial(run, line) for name, line in RUNS.items()},
        **{
            name: partial(
                run, f"--algorithm dpsgd --dtype float64 --engine loop {ON_IMAGES} {line}"
            )
            for name, line in MODELS.items()
        },
    },
    "graphs": {spec: partial(graph, spec) for spec in GRAPHS},
    "names": NAMES,
}
"""How each row of each file is measured."""


def changes(file: str, name: str, measured: Any) -> list[str]:
    """How a row differs from what was recorded."""
    return differences(read(file)[name], measured, TOLERANCES.get(file, RELATIVE))


def read(file: str) -> dict[str, Any]:
    """The rows of a file as recorded."""
    path = HERE / f"{file}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(file: str, rows: Mapping[str, Any]) -> None:
    (HERE / f"{file}.json").write_text(_laid_out(rows, 3) + "\n", encoding="utf-8")


def _laid_out(value: Any, depth: int, indent: str = "") -> str:
    """JSON with one line for each record, so that a change shows as the lines that changed."""
    if depth == 0 or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value, ensure_ascii=False)
    further = indent + " "
    if isinstance(value, list):
        if not isinstance(value[0], (dict, list)):
            return json.dumps(value, ensure_ascii=False)
        entries = [_laid_out(inner, depth - 1, further) for inner in value]
    else:
        entries = [
            f"{json.dumps(key, ensure_ascii=False)}: {_laid_out(inner, depth - 1, further)}"
            for key, inner in value.items()
        ]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return f"{start}\n{further}" + f",\n{further}".join(entries) + f"\n{indent}{end}"
