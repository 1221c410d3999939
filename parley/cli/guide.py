"""``parley reproduce guide``: which algorithm should I use?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import Json, Parallel, count, option, switch
from parley.cli.screen import screen, stoppable
from parley.compute.threads import usable_cores
from parley.errors import BadValue
from parley.reproduce import guide as study
from parley.watch.log import console


def guide(
    name: Annotated[
        str | None,
        typer.Argument(
            help=f"One setting instead of all: {', '.join(study.SETTINGS)}.",
            metavar="[NAME]",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="As for parley compare --algorithms.", metavar="LIST")
    ] = study.METHODS,
    trials: Annotated[
        str, typer.Option(help="Learning rates (and γ) tried per method.", metavar="N")
    ] = "4",
    trial_epochs: Annotated[str, typer.Option(help="Epochs of a trial.", metavar="N")] = "5",
    epochs: Annotated[str, typer.Option(help="Epochs of a run.", metavar="N")] = "20",
    seeds: Annotated[str, typer.Option(help="Runs at the winning settings.", metavar="N")] = "3",
    fraction: Annotated[
        float, typer.Option(help="Share of the training samples.", metavar="NUMBER")
    ] = 1.0,
    test_fraction: Annotated[
        float, typer.Option(help="Share of the test samples.", metavar="NUMBER")
    ] = 1.0,
    out: Annotated[Path, typer.Option(help="Folder of the results.", metavar="FOLDER")] = Path(
        "results-guide"
    ),
    parallel: Parallel = None,
    data_root: Annotated[
        str | None,
        option("Folder with local copies of datasets.", "FOLDER"),
    ] = None,
    report: Annotated[
        bool,
        switch("Only show what is finished; run nothing.", "--report"),
    ] = False,
    json_: Json = False,
) -> None:
    """Compare every method in three settings, tuned alike: which one should I use?

    Fashion-MNIST with LeNet-5: skewed classes on a ring, one class per agent on a ring, and skewed
    classes on a graph that changes. Every method gets the same trials, then three seeds.

    Finished runs are skipped; after Ctrl-C the same command continues. All of it takes about a day
    on one core; --fraction 0.2 --test-fraction 0.5 takes a few hours.
    """
    chosen = study.settings_named(name)
    budget = study.Budget(
        count("trials", trials),
        count("trial-epochs", trial_epochs),
        count("epochs", epochs),
        count("seeds", seeds),
        fraction,
        test_fraction,
        data_root,
    )
    if out.exists() and not out.is_dir():
        raise BadValue("out", str(out), "a folder", "it is a file")
    if not report:
        at_once = usable_cores() if parallel is None else count("parallel", parallel)
        with stoppable(out, "the same command continues"):
            for setting, outcome in study.run(chosen, methods, budget, at_once, out):
                if outcome.refusal:
                    console.print(
                        f"{setting.name}: {outcome.label} is left out: {outcome.refusal}",
                        highlight=False,
                        soft_wrap=True,
                    )
                elif outcome.diverged:
                    console.print(f"{setting.name}: {outcome.label} diverged", highlight=False)
    files = study.report(out)
    if json_:
        print(json.dumps({"out": str(out), "files": [str(path) for path in files]}))
        return
    for setting in chosen:
        if (out / f"{setting.name}.jsonl").exists():
            found = study.read(out / f"{setting.name}.jsonl")
            screen.print(setting.title, highlight=False)
            screen.print(study.table(found).terminal())
    screen.print(f"written to {files[0]} and {files[1]}", highlight=False, soft_wrap=True)
