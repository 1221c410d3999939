"""Seconds per training step: the textbook, one process per agent, and Parley, side by side.

    python -m benchmarks.steps             everything, into benchmarks/results.json
    python -m benchmarks.steps --quick     a few configurations
    python -m benchmarks.steps --missing   only what the results do not have yet
    python -m benchmarks.steps --table     the results as Markdown; measures nothing

Every contestant has its own child processes, which wait. Only one works at a time, in turns, so
that a noisy machine is noisy for all; a ratio is the median over the turns of the ratio within a
turn. Nothing is timed before all contestants have arrived at the same models, with the same few
steps from the same start on the same batches.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cases import QUICK, Case, Rule, every_case
from benchmarks.contestants import ENTRIES, Contestant
from benchmarks.table import render
from parley.compute import kernels

RESULTS = Path(__file__).parent / "results.json"

AGREEMENT_STEPS = 3
SLOW = 3.0
"""Seconds of a step: where the first contestant takes longer, one step has to do for agreement."""
FEWEST = 2
"""Turns, however little time there is."""
TOLERANCE = 1e-3
"""How far apart two float32 trajectories may be after those steps, relative to the way covered:
‖x - y‖ / ‖x - start‖ over all agents together."""
SIGN_TOLERANCE = 5e-2
"""The same where only signs are sent: an entry close to zero that is rounded to the other side
changes its sign, and by then a few have."""

FAMILIES = ("textbook", "one process each", "parley")
ALONE = ("textbook, 1 thread", "parley, 1 worker")
"""One core against one core: their processor time can be compared on a machine that is busy."""
MEMORY_CASES = (
    Case("dpsgd", "cnn5", 20),
    Case("dpsgd", "mlp", 20, hidden=512),
)
# Memory that is freed goes back to the system at once, so that the peak is that of live memory.
PROMPT_FREE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    results = read(options.out)
    if options.table:
        print(render(results))
        return 0
    torch.set_num_threads(1)
    cases, memory = every_case(), list(MEMORY_CASES)
    if options.quick:
        cases = [case for case in cases if case.key in QUICK]
        memory = memory[-1:]
    cases = [case for case in cases if _chosen(case.key, options.only)]
    memory = [case for case in memory if _chosen(_memory_key(case), options.only)]
    if options.missing:
        cases = [case for case in cases if case.key not in results["cases"]]
        memory = [case for case in memory if _memory_key(case) not in results["memory"]]
    if not cases and not memory:
        print("nothing to measure", file=sys.stderr)
        return 0

    failures = 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PARLEY_CACHE"] = cache  # start-up as on a new machine
        for agents, group in groupby(cases, lambda case: case.agents):
            failures += measure_group(agents, list(group), options, results)
        for case in memory:
            # A peak hardly differs from one time to the next.
            results["memory"][_memory_key(case)] = _memory(case, 1 if options.quick else 3)
            _write(options.out, results)
    return 1 if failures else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="a few configurations, few repeats")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="configurations whose name contains this, for example lenet5/10/ or ngc1 or memory/",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="TEXT",
        help='leave out contestants whose name contains this: "2 threads" where others work too',
    )
    parser.add_argument("--missing", action="store_true", help="skip what has been measured")
    parser.add_argument("--repeats", type=int, help="turns of every contestant (7; 3 if quick)")
    parser.add_argument(
        "--seconds", type=float, help="about how long a turn lasts, at least a step (1; 0.5)"
    )
    parser.set_defaults(budget=float("inf"))
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are merged into")
    parser.add_argument("--table", action="store_true", help="print the results as Markdown")
    options = parser.parse_args(arguments)
    if all(_left_out(e.name, options.without) for e in ENTRIES if e.kind == "parley"):
        parser.error("--without: Parley itself has to take part")
    options.repeats = options.repeats or (3 if options.quick else 7)
    options.seconds = options.seconds or (0.5 if options.quick else 1.0)
    return options


def _chosen(key: str, only: Sequence[str]) -> bool:
    return not only or any(text in key for text in only)


def _left_out(name: str, without: Sequence[str]) -> bool:
    return any(text in name for text in without)


def measure_group(
    agents: int, cases: Sequence[Case], options: argparse.Namespace, results: dict[str, Any]
) -> int:
    """Measures cases with equally many agents in the same processes; returns how many failed."""
    failures = 0
    left = list(cases)
    while left:
        with ExitStack() as stack:
            contestants = {
                entry.name: stack.enter_context(entry.start(agents))
                for entry in ENTRIES
                if agents <= entry.most_agents and not _left_out(entry.name, options.without)
            }
            while left:
                case = left.pop(0)
                try:
                    entry = measure(
                        case, contestants, options.repeats, options.seconds, options.budget
                    )
                except (RuntimeError, AssertionError) as error:
                    _say(f"{case.key}: FAILED: {error}")
                    failures += 1
                    break  # on with new processes
                results["cases"][case.key] = entry
                _write(options.out, results)
                _say(_line(case, entry))
    return failures


def measure(
    case: Case,
    contestants: dict[str, Contestant],
    repeats: int,
    turn_seconds: float,
    budget: float = float("inf"),
) -> dict[str, Any]:
    """Agreement, then times, then what is not timed.

    The turns of all contestants together take about `budget` seconds, if that is less than all
    `repeats` would."""
    load_average = os.getloadavg()
    rate = gemm_rate()
    found: dict[str, dict[str, Any]] = {}
    for name, contestant in contestants.items():
        start_up = {"processes": contestant.start_up, "load": contestant.seconds("load", case)}
        found[name] = {"start_up": start_up}
    agreement = _agree(case, contestants, found)

    round_seconds = 0.0
    for name, contestant in contestants.items():
        one = found[name]["start_up"]["first step"]
        one = one if one > SLOW else contestant.seconds("steps", 1)
        found[name]["steps"] = _turn(case, one, turn_seconds)
        round_seconds += found[name]["steps"] * one
        found[name]["seconds"], found[name]["processor"] = [], []
    for repeat in range(int(min(repeats, max(FEWEST, budget / round_seconds)))):
        names = list(contestants)
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            n = found[name]["steps"]
            before = sum(contestants[name].ask("processor"))
            found[name]["seconds"].append(contestants[name].seconds("steps", n) / n)
            spent = sum(contestants[name].ask("processor")) - before
            found[name]["processor"].append(spent / n)
    for entry in found.values():
        entry |= _spread(entry["seconds"])

    flops = case.flops()
    entry = {
        "case": asdict(case),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(load_average),
        "agreement": agreement,
        "contestants": found,
        "ratios": _ratios(found),
        "flops": flops,
        "gemm_flops_per_second": rate,
        "limit": {"one core": flops / rate, "two cores": flops / rate / 2},
        "kernels": code(),
    }
    alone = "parley, 1 worker"
    for name, contestant in contestants.items():
        if name.startswith("parley"):
            found[name]["engine"] = contestant.ask("engine")[0]
    if case.rule in ("compngc", "cga") and alone in contestants:
        (entry["shares"],) = contestants[alone].ask("shares", found[alone]["steps"])
    return entry


def _agree(
    case: Case, contestants: dict[str, Contestant], found: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Takes the first steps and compares the models with the first contestant's."""
    tolerance = SIGN_TOLERANCE if case.rule == "compngc" else TOLERANCE
    apart: dict[str, dict[str, float]] = {}
    start = reference = None
    steps = AGREEMENT_STEPS
    for name, contestant in contestants.items():
        before = contestant.models()
        found[name]["start_up"]["first step"] = first = contestant.seconds("steps", 1)
        if start is None and first > SLOW:
            steps = 1
        contestant.ask("steps", steps - 1)
        x = contestant.models()
        if start is None or reference is None:
            start, reference = before, x
            continue
        assert np.array_equal(before, start), f"{name} starts elsewhere"
        gone = np.linalg.norm(reference - start)
        relative = float(np.linalg.norm(x - reference) / gone)
        apart[name] = {"relative": relative, "largest": float(np.abs(x - reference).max())}
        assert relative <= tolerance, (
            f"{name} is {relative:.2g} of the way from {next(iter(contestants))} after "
            f"{steps} steps; at most {tolerance:g} is rounding"
        )
    return {"steps": steps, "tolerance": tolerance, "apart": apart}


def _turn(case: Case, step_seconds: float, turn_seconds: float) -> int:
    """How many steps to time at once: whole passes over the data where there is time for one."""
    n = max(1, round(turn_seconds / step_seconds))
    return max(1, n // case.pass_length) * case.pass_length if n >= case.pass_length else n


def _spread(values: Sequence[float]) -> dict[str, Any]:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": middle, "quartiles": [low, high]}


def code() -> str:
    """Changes with every change of the compiled kernels."""
    sources = sorted(Path(kernels.__file__).parent.glob("*.[ch]"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def _ratios(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How many times as long as Parley; each family by its member with the smallest median."""
    best: dict[str, str] = {}
    for family in FAMILIES:
        members = [name for name in found if name.startswith(family)]
        if members:
            best[family] = min(members, key=lambda name: found[name]["median"])
    ours = found[best["parley"]]["seconds"]
    ratios: dict[str, Any] = {}
    for family in FAMILIES[:-1]:
        if family in best:
            theirs = found[best[family]]["seconds"]
            paired = [a / b for a, b in zip(theirs, ours, strict=True)]
            of = [best[family], best["parley"]]
            ratios[f"{family} / parley"] = {"of": of, **_spread(paired)}
    if all(name in found for name in ALONE):
        theirs, ours = (found[name]["processor"] for name in ALONE)
        paired = [a / b for a, b in zip(theirs, ours, strict=True)]
        ratios["processor time"] = {"of": [*ALONE], **_spread(paired)}
    return ratios


def gemm_rate(size: int = 1024, seconds: float = 0.5) -> float:
    """Floating-point operations per second of one core in a matrix product: the best of many."""
    a, b, into = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    fastest, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        torch.mm(a, b, out=into)
        fastest = min(fastest, time.perf_counter() - started)
    return 2 * size**3 / fastest


def machine(load_average: Iterable[float]) -> dict[str, Any]:
    """What it ran on, and what else ran (load average before)."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, cwd=RESULTS.parent)
    return {
        "cpu": models[0] if models else platform.processor(),
        "vectors": kernels.vectors(),
        "switched_off": "avx512f" in kernels.processor() and kernels.vectors() != "AVX-512",
        "cores": os.cpu_count(),
        "load_average": [round(value, 2) for value in load_average],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or "unknown",
    }


def records(name: str) -> dict[str, dict[str, Any]]:
    """What a command has recorded on each kind of processor."""
    paths = sorted(RESULTS.parent.glob(f"{name}-*.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return {record["machine"]["vectors"]: record for record in found}


def write_record(name: str, found: dict[str, Any]) -> None:
    """Keeps what a command has found on this kind of processor."""
    _write(RESULTS.parent / f"{name}-{kernels.vectors().lower()}.json", found)


def _memory_key(case: Case) -> str:
    return f"memory/{case.model}/{case.agents}"


def _memory(case: Case, repeats: int) -> dict[str, Any]:
    """How much more memory NGC's steps need than D-PSGD's, each measured in a new process."""
    size = sum(p.numel() for p in case.start().parameters())
    unit = case.agents * size * 4
    growth: dict[Rule, list[int]] = {"dpsgd": [], "ngc0": [], "ngc1": []}
    for _ in range(repeats):
        for rule, values in growth.items():
            with Contestant("parley", environment=PROMPT_FREE) as contestant:
                contestant.ask("load", replace(case, rule=rule))
                values += contestant.ask("growth", 4)
    peak = {rule: float(np.median(values)) / unit for rule, values in growth.items()}
    _say(f"{_memory_key(case)}: {', '.join(f'{r} {p:.2f}' for r, p in peak.items())} of {unit} B")
    return {
        "case": asdict(case),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(os.getloadavg()),
        "bytes_of_all_models": unit,
        "growth_bytes": growth,
        "growth_in_models": peak,
    }


def _line(case: Case, entry: dict[str, Any]) -> str:
    times = [f"{name} {c['median'] * 1e3:.3g} ms" for name, c in entry["contestants"].items()]
    ratios = [f"{name} {r['median']:.3g}" for name, r in entry["ratios"].items()]
    shares = [f"{name} {share:.1%}" for name, share in entry.get("shares", {}).items() if share]
    return f"{case.key}: " + ", ".join(times) + " | " + ", ".join(ratios + shares)


def _say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def read(path: Path) -> dict[str, Any]:
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {"cases": {}, "memory": {}}


def _write(path: Path, results: dict[str, Any]) -> None:
    # To a new file that then replaces the old one: an interruption loses nothing.
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
