"""``python -m tests.fuzz``: see the package."""

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.fuzz import TARGETS, case, command


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--minutes", type=float, default=0.5, help="for all targets together")
    parser.add_argument("--seed", type=int, help="try this case alone")
    given = parser.parse_args()
    targets = given.target or list(TARGETS)
    if unknown := [name for name in targets if name not in TARGETS]:
        parser.error(f"no target {unknown[0]}; there are {', '.join(TARGETS)}")
    if given.seed is not None:
        for name in targets:
            print(f"{name} {given.seed}: {case(name, given.seed) or 'accepted'}")
        return 0
    failures = sum(_long(name, 60 * given.minutes / len(targets)) for name in targets)
    return 1 if failures else 0


def _long(name: str, seconds: float) -> int:
    seed, end = int(time.time() * 1000), time.monotonic() + seconds
    count: Counter[str] = Counter()
    seen: set[str] = set()
    while time.monotonic() < end:
        seed += 1
        try:
            count["refused" if case(name, seed) else "accepted"] += 1
        except Exception as error:
            count["failed"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} in {where.filename}:{where.lineno}"
            if what not in seen:  # once for each place
                seen.add(what)
                print(f"{what}: {str(error)[:200]}\n    {command(name, seed)}", flush=True)
    print(f"{name}: " + ", ".join(f"{n} {word}" for word, n in sorted(count.items())), flush=True)
    return count["failed"]


if __name__ == "__main__":
    sys.exit(main())
