"""Several methods at once, for ``parley compare`` and ``parley tune``."""

import logging
from pathlib import Path
from typing import Any

from parley.cli.flags import with_file
from parley.cli.own_algorithm import own_algorithm
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.sweep import compare as comparison
from parley.sweep import field as whole_field
from parley.sweep import tune as tuning
from parley.user_code import allow_named
from parley.watch.log import console

log = logging.getLogger(__name__)


def chosen_methods(
    file: Path | None, given: dict[str, Any], algorithms: str | None, default: str
) -> tuple[dict[str, Any], list[comparison.Method]]:
    """The options for all methods, from a file and flags, and the methods with their own."""
    one = given.pop("algorithm", None)
    if one and algorithms:
        raise BadValue("algorithm", one, "either --algorithm or --algorithms")
    methods = comparison.parse_algorithms(algorithms or one or default, own_algorithm)
    for method in methods:
        allow_named(method.settings)
    options = with_file(file, given, [method.own for method in methods if method.own])
    options.pop("algorithm", None)
    comparison.check_used(given, [method.kind for method in methods])
    return options, methods


def refuse_rates(given: dict[str, Any], methods: list[comparison.Method]) -> None:
    """Refuses a given learning rate that tuning would replace."""
    asked = [m.settings["lr"] for m in methods if "lr" in m.settings]
    for rate in [given["lr"]] if "lr" in given else asked:
        raise BadValue("lr", rate, "no lr, or no tuning", "tuning chooses it")


def on_partitions(
    methods: list[comparison.Method], options: dict[str, Any], names: str
) -> dict[str, list[Experiment]]:
    """Every method's experiment on each partition, on a graph that the method can use."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    fitting = []
    for method in methods:
        if "partition" in method.settings:
            valid = "one partition for all methods, or several with --partitions"
            raise BadValue("algorithms", f"{method.name}:partition=…", valid)
        asked = method.experiment(options)
        if "topology" in method.settings:
            comparison.check_graph(asked)
            one = asked
        else:
            one = whole_field.fitting(asked)
        if asked.topology != one.topology:
            where = f"{one.algorithm.label} runs on {one.topology}"
            log.info("%s, since it cannot use %s", where, asked.topology)
        fitting.append(one)
    return {name: [one.replace(partition=name) for one in fitting] for name in chosen}


def run_tuning(
    methods: list[comparison.Method],
    by_partition: dict[str, list[Experiment]],
    trials: int,
    rates: tuple[float, float],
    parallel: int,
    out: Path,
    resume: bool,
) -> Path:
    """Tunes every method on every partition, shows what was found, and returns its file."""
    keys = [method.key for method in methods]
    todo = [t for es in by_partition.values() for t in tuning.plan(es, trials, out, rates, keys)]
    tuning.tune(todo, parallel, out, resume and out.exists())
    path = tuning.write(todo, out)
    console.print(tuning.table(todo).terminal())
    return path
