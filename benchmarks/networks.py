"""Every network against the textbook, on this kind of processor.

    python -m benchmarks.networks           what is not measured yet, into networks-avx2.json or
                                            networks-avx-512.json, named after the processor
    python -m benchmarks.networks --avx2    the same with AVX2 at most, for both sides, also on a
                                            processor with AVX-512
    python -m benchmarks.networks --table   all records side by side as Markdown; measures nothing

One step of NGC with α = 1 on a ring. The textbook has one thread or two, Parley two threads or two
workers; the better of each counts. Rows that were measured with other kernels are measured anew. It
can be stopped at any time and goes on where it was. On two idle cores it takes about a quarter of
an hour, half of it for MobileNet-V2, ResNet-18 and BERT-mini.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import NETWORKS
from benchmarks.steps import code, measure_group, read
from benchmarks.table import side_by_side
from parley.compute import kernels

FOLDER = Path(__file__).parent
WITHOUT = ("one process each", "parley, 1 worker")
"""Contestants that are slower than others of their kind."""
BUDGET = 45.0
"""Seconds of turns for a row, where two of each contestant do not take longer."""
NO_AVX512 = " -mno-avx512f"


def narrow() -> dict[str, str]:
    """The environment in which Parley's kernels, torch's own and oneDNN's do without AVX-512."""
    compiler = os.environ.get("CC", "cc").removesuffix(NO_AVX512)
    return os.environ | {
        "CC": compiler + NO_AVX512,
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    }


def records() -> dict[str, dict[str, Any]]:
    """Every record by its kind of processor."""
    found = [read(path)["cases"] for path in sorted(FOLDER.glob("networks-*.json"))]
    return {next(iter(cases.values()))["machine"]["vectors"]: cases for cases in found if cases}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--table", action="store_true", help="print the records as Markdown")
    parser.add_argument("--avx2", action="store_true", help="do without AVX-512")
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose name contains this")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of turns for a row")
    parser.add_argument("--out", type=Path, help="where rows are merged into")
    parser.set_defaults(repeats=7, seconds=1.0, without=WITHOUT)
    options = parser.parse_args(arguments)
    if options.table:
        print(side_by_side(records()))
        return 0
    if options.avx2 and narrow() != os.environ:
        # Torch has read its variables by now, and the kernels may be loaded: so once more.
        command = [sys.executable, "-m", "benchmarks.networks", *(arguments or sys.argv[1:])]
        return subprocess.run(command, env=narrow(), check=False).returncode
    options.out = options.out or FOLDER / f"networks-{kernels.vectors().lower()}.json"
    results, now = read(options.out), code()
    missing = [
        case
        for case in NETWORKS
        if options.only in case.key and results["cases"].get(case.key, {}).get("kernels") != now
    ]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        kernels.available()  # built where they are kept
        os.environ["PARLEY_CACHE"] = cache  # no choice of an engine from another time
        # No contestant of these has as many processes as there are agents.
        return 1 if measure_group(2, missing, options, results) else 0


if __name__ == "__main__":
    sys.exit(main())
