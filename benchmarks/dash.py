"""What looking costs: the live page's server on 200 runs and on a run of a million records.

    python -m benchmarks.dash       measures, into benchmarks/dash.json
    python -m benchmarks.dash --records 100000

Processor seconds, since other programs do not count in them. Beside them is a plain reader of the
same file (`json.loads` for every line, all kept), which a page without thinning would need.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parley.dash import runs as runs_module
from parley.dash.runs import Runs
from parley.dash.tail import Cursor, Tail
from parley.experiment import Experiment
from parley.store.folder import RunFolder

RESULTS = Path(__file__).parent / "dash.json"
RUNS = 200
AGENTS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        print(json.dumps(plain(options.plain)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.records)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


def measure(folder: Path, records: int) -> dict[str, Any]:
    runs_module.SCAN_EVERY = runs_module.REST = 0.0
    many, one = folder / "many", folder / "one"
    for k in range(RUNS):
        write(many / f"compare-{k % 4}" / f"run-{k:03d}", 40)
    path = write(one / "long", records)
    runs = Runs(many)
    first, listing = timed(runs.listing)
    again, _ = timed(runs.listing)

    tail = Tail(path)
    parts = []
    while not parts or tail.behind:
        parts.append(timed(tail.read)[0])
    whole, told = timed(lambda: tail.news(Cursor()))
    before = tail.bytes_read
    line = record(records + 1)
    with path.open("a") as file:
        file.write(line)

    def second() -> dict[str, Any]:
        tail.read()
        return tail.news(Cursor.parse(told["cursor"]))

    new, news = timed(second)
    peak = peak_mb()
    reader = [sys.executable, "-m", "benchmarks.dash", "--plain", str(path)]
    beside = json.loads(subprocess.run(reader, check=True, capture_output=True).stdout)
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "runs": RUNS,
        "list_seconds": round(first, 4),
        "list_again_seconds": round(again, 4),
        "list_bytes": len(json.dumps(listing)),
        "records": records,
        "file_bytes": path.stat().st_size,
        "first_part_seconds": round(parts[0], 4),
        "read_all_seconds": round(sum(parts), 3),
        "answer_seconds": round(whole, 4),
        "answer_bytes": len(json.dumps(told)),
        "second_seconds": round(new, 5),
        "second_bytes_read": tail.bytes_read - before,
        "second_new_bytes": len(line),
        "second_answer_bytes": len(json.dumps(news)),
        "all_over_second": round(sum(parts) / new),
        "peak_mb": round(peak),
        "plain_reader_seconds": beside["seconds"],
        "plain_reader_peak_mb": beside["peak_mb"],
        "all_over_plain": round(sum(parts) / beside["seconds"], 2),
    }


def plain(path: Path) -> dict[str, float]:
    """The obvious reader, in a process of its own."""
    seconds, kept = timed(lambda: [json.loads(line) for line in path.open()])
    assert kept
    return {"seconds": round(seconds, 3), "peak_mb": round(peak_mb())}


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = act()
    return time.process_time() - began, result


def write(path: Path, records: int) -> Path:
    """A run's folder with records like those of ten agents."""
    folder = RunFolder(path)
    folder.open(Experiment.of(agents=AGENTS, epochs=records), resume=False)
    with (path / "records.jsonl").open("w") as file:
        for start in range(1, records + 1, 10_000):
            stop = min(start + 10_000, records + 1)
            file.write("".join(record(epoch) for epoch in range(start, stop)))
    return path / "records.jsonl"


def record(epoch: int) -> str:
    down = 1 / (1 + epoch % 1000)
    return (
        f'{{"epoch": {epoch}, "step": {5 * epoch}, "lr": 0.1, "loss": {down:.16f}, '
        f'"loss_train": {down / 2:.16f}, "accuracy_mean_model": {1 - down:.16f}, '
        f'"accuracy_own": 0.8916666666666666, "accuracy_own_min": 0.8055555555555556, '
        f'"accuracy_own_max": 0.9138888888888889, "accuracy_after_gossip": 0.8944444444444445, '
        f'"accuracy_agents": [{", ".join(["0.891667"] * AGENTS)}], '
        f'"consensus_distance": {down:.16f}, "distance_agents": [{", ".join(["0.123456"] * AGENTS)}'
        f'], "bytes_models": {28908.0 * epoch}, "bytes_cross_gradients": {28908.0 * epoch}, '
        f'"seconds": {0.08 * epoch:.3f}, "gradients_per_second": 71634.5, '
        '"peak_memory_mb": 412.7}\n'
    )


if __name__ == "__main__":
    main()
