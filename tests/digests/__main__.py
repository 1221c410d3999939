"""``python -m tests.digests [--record] [ROW...]``: what has changed; with --record it is written.

``torchrun … -m tests.digests --workers FILE`` measures every trajectory on the workers that were
started, and writes them as one JSON object into FILE.
"""

import argparse
import json
import os
from pathlib import Path

import parley

from . import RELATIVE, ROWS, TOLERANCES, TRAJECTORIES, differences, read, trajectory, write


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.digests", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="only these (default: all)")
    parser.add_argument("--record", action="store_true", help="write the rows that have changed")
    parser.add_argument("--workers", type=Path, metavar="FILE", help="see above")
    asked = parser.parse_args()
    if asked.workers:
        on_workers(asked.workers)
    elif not compare(asked.rows, asked.record) and not asked.record:
        raise SystemExit(1)


def compare(only: list[str], record: bool) -> bool:
    """Whether nothing has changed; says what has."""
    same = True
    for file, rows in ROWS.items():
        recorded = read(file)
        tolerance = TOLERANCES.get(file, RELATIVE)
        kept = {}
        for name, measure in rows.items():
            if only and name not in only:
                kept |= {name: recorded[name]} if name in recorded else {}
                continue
            measured = measure()
            kept[name] = measured
            if name not in recorded:
                print(f"{file}: {name}: is new")
                same = False
            elif changed := differences(recorded[name], measured, tolerance):
                print(f"{file}: {name}: has changed:", *changed, sep="\n    ")
                same = False
            elif more := differences(measured, recorded[name], tolerance):
                lacks = (line.removesuffix(": is missing") for line in more)
                print(f"{file}: {name}: the recorded row lacks:", *lacks, sep="\n    ")
            else:
                kept[name] = recorded[name]  # rounding is no change
        for name in recorded.keys() - rows.keys():
            print(f"{file}: {name}: nothing measures it any more")
            same = False
        if record and kept != recorded:
            write(file, kept)
    return same


def on_workers(out: Path) -> None:
    """Many runs one after another in the same processes: starting those takes longest."""
    measured = {}
    for name, options in TRAJECTORIES.items():
        try:
            measured[name] = trajectory(options)
        except parley.ParleyError as error:
            measured[name] = {"error": str(error)}
    if os.environ["RANK"] == "0":
        out.write_text(json.dumps(measured), encoding="utf-8")


main()
