"""``parley reproduce guide``: which algorithm should I use?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import (
    DataRoot,
    Json,
    Parallel,
    check_picture,
    check_place,
    count,
    option,
    switch,
)
from parley.cli.screen import screen, stoppable
from parley.compute.threads import usable_cores
from parley.errors import BadValue
from parley.reproduce import findings
from parley.reproduce import guide as study
from parley.reproduce.report import write_markdown
from parley.watch.log import console

SettingName = Annotated[
    str | None,
    typer.Argument(
        help=f"One setting instead of all: {', '.join(study.SETTINGS)}.",
        metavar="NAME",
        show_default=False,
    ),
]
Methods = Annotated[str, typer.Option(help="As for parley compare --algorithms.", metavar="LIST")]
Trials = Annotated[str, typer.Option(help="Learning rates (and γ) tried per method.", metavar="N")]
TrialEpochs = Annotated[str, typer.Option(help="Epochs of a trial.", metavar="N")]
Epochs = Annotated[str, typer.Option(help="Epochs of a run.", metavar="N")]
Seeds = Annotated[str, typer.Option(help="Runs with the best settings.", metavar="N")]
Fraction = Annotated[float, typer.Option(help="Share of the training samples.", metavar="NUMBER")]
TestFraction = Annotated[float, typer.Option(help="Share of the test samples.", metavar="NUMBER")]
GuideOut = Annotated[Path, typer.Option(help="Folder of the results.", metavar="FOLDER")]
Page = Annotated[
    Path | None,
    option(
        "Markdown file for the tables. In an existing file, what is between its begin and end "
        "marks is replaced. (default: guide.md in --out)",
        "FILE",
    ),
]
Picture = Annotated[
    Path | None, option("File for the picture. (default: guide.png in --out)", "FILE")
]
Report = Annotated[
    bool,
    switch("Show the finished runs without starting any.", "--report"),
]


def guide(
    name: SettingName = None,
    methods: Methods = study.METHODS,
    trials: Trials = "4",
    trial_epochs: TrialEpochs = "20",
    epochs: Epochs = "20",
    seeds: Seeds = "3",
    fraction: Fraction = 1.0,
    test_fraction: TestFraction = 1.0,
    out: GuideOut = Path("results-guide"),
    parallel: Parallel = None,
    data_root: DataRoot = None,
    report: Report = False,
    markdown: Page = None,
    picture: Picture = None,
    json_: Json = False,
) -> None:
    """Compare every method in three settings, to help choose one.

    Fashion-MNIST with LeNet-5: skewed classes on a ring, one class per agent on a ring, and skewed
    classes on a graph that changes. Every method is tuned with the same trials and then run with
    three seeds.

    What is finished is not run again, and with more --seeds only the new ones run; after Ctrl-C the
    same command continues. Everything takes about two days on one core; --fraction 0.2
    --test-fraction 0.5 takes several hours. Results of methods not listed in --methods are kept.
    """
    check_picture(picture)
    check_place("markdown", markdown)
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
        refused = []
        with stoppable(out, "the same command continues"):
            for setting, outcome in study.run(chosen, methods, budget, at_once, out):
                _tell(setting, outcome)
                refused.append(bool(outcome.refusal))
        if all(refused):
            where = ", ".join(setting.name for setting in chosen)
            raise BadValue("methods", methods, "methods that can be used in this setting", where)
    files = [markdown or out / "guide.md", picture or out / "guide.png"]
    write_markdown(files[0], findings.markdown(out))
    findings.picture(out, files[1])
    if json_:
        print(json.dumps({"out": str(out), "files": [str(path) for path in files]}))
        return
    for setting in chosen:
        for part in findings.terminal(out, setting, screen.width):
            screen.print(part, highlight=False)
    screen.print(f"written to {files[0]} and {files[1]}", highlight=False, soft_wrap=True)


def _tell(setting: study.Setting, outcome: study.Outcome) -> None:
    """Says on stderr why a method has no result in a setting."""
    if outcome.refusal:
        what = f"is left out: {outcome.refusal}"
    elif outcome.diverged:
        what = "diverged"
    else:
        return
    console.print(f"{setting.name}: {outcome.label} {what}", highlight=False, soft_wrap=True)
