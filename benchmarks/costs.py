"""What the paper's tables cost on one core: gradients per second of every network, and days.

    python -m benchmarks.costs             measures, prints and writes the record of this processor,
                                           costs-avx2.json or costs-avx-512.json
    python -m benchmarks.costs --table     all records as Markdown; measures nothing

A block is one network on one dataset and graph, trained once by each of the six methods. Its cost
is what `parley reproduce NAME --measure --list` shows: processor time, evaluations included.
"""

import argparse
import os
import tempfile
from datetime import UTC, datetime
from typing import Any

from benchmarks.steps import machine, records, write_record
from parley.compute import kernels
from parley.reproduce import costs
from parley.reproduce.cells import cells
from parley.reproduce.study import named

TABLES = ("cifar10", "datasets", "text-fullres")


def measured() -> dict[str, Any]:
    """Speed and hours of every block."""
    blocks: dict[str, dict[str, Any]] = {}
    calibration = costs.Calibration()
    for cell in cells(named("paper")).values():
        if cell.section in TABLES:
            if not calibration.known(cell):
                calibration.measure(cell)
            found = calibration.speed(cell)
            assert found, "it has just been measured"
            fresh = {"speed": found.per_second, "runs": 0, "gradients": 0, "hours": 0}
            block = blocks.setdefault(cell.setting, fresh)
            block["runs"] += 1
            block["gradients"] += costs.gradients(cell)
            block["hours"] += costs.hours(cell, found.per_second)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(os.getloadavg()),
        "blocks": blocks,
    }


def table(records: dict[str, dict[str, Any]]) -> str:
    """Markdown."""
    if not records:
        return ""
    heads = [f"{kind}, {what}" for kind in records for what in ("gradients per second", "one core")]
    lines = [f"| {' | '.join(['block', 'runs', *heads])} |", "|---|" + "---:|" * (len(heads) + 1)]
    for name in dict.fromkeys(n for record in records.values() for n in record["blocks"]):
        row, runs = [], 0
        for record in records.values():
            block = record["blocks"].get(name)
            runs = block["runs"] if block else runs
            time = costs.duration(block["hours"]) if block else ""
            row += [f"{block['speed']:,.0f}", time] if block else ["", ""]
        lines.append(f"| `{name}` | {runs} | {' | '.join(row)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--table", action="store_true", help="print the records; measure nothing")
    if not parser.parse_args().table:
        with tempfile.TemporaryDirectory() as cache:
            kernels.available()  # built where they are kept
            os.environ["PARLEY_CACHE"] = cache  # nothing from another time
            found = measured()
        write_record("costs", found)
    print(table(records("costs")))
