"""``parley predict``: a trained model's predictions for images, arrays, tables or texts."""

import json
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import AllowCode, OfAgent, count, option, switch
from parley.cli.screen import heading, screen
from parley.errors import BadValue
from parley.measures import SEGMENTATION
from parley.results.table import Table
from parley.store import outputs
from parley.store.inference import Answer, answers, write_masks

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

SHOWN = 3
"""Classes of each input in the table."""

RunFolder = Annotated[
    Path,
    typer.Argument(help="The folder of a complete run.", metavar="RUN", show_default=False),
]
Inputs = Annotated[
    list[str],
    typer.Argument(
        help="Images, .npy or .npz arrays, or tables; for text models, the texts themselves "
        "or files with one text per line; for language models, arrays of token IDs.",
        metavar="INPUT...",
        show_default=False,
    ),
]
Top = Annotated[
    str | None,
    option(f"Number of classes to show for each input. (default: {SHOWN}; all with --json)", "N"),
]
Resize = Annotated[
    bool,
    switch(
        "Scale images until their shorter side fits, and crop them to the central square.",
        "--resize",
    ),
]
Masks = Annotated[
    str | None,
    option(
        "Folder for the masks of a segmentation: PNG files with the numbers of classes.", "FOLDER"
    ),
]
JsonList = Annotated[
    bool,
    switch("Print the predictions as one JSON list.", "--json"),
]


@app.command()
def predict(
    run: RunFolder,
    inputs: Inputs,
    agent: OfAgent = None,
    top: Top = None,
    resize: Resize = False,
    masks: Masks = None,
    allow_code: AllowCode = None,
    json_: JsonList = False,
) -> None:
    """Run a trained model on images, arrays, tables or texts.

    This uses the averaged model, or with [bold]--agent[/bold] the model of one agent. Inputs are
    prepared as in the run. A segmentation prints how many pixels each class has; a language model
    the likeliest next tokens.

    [bold]parley predict runs/mine scan-1.png scan-2.png[/bold]

    [bold]parley predict runs/news "Shares fell on Monday" --json[/bold]
    """
    few = None if top is None else count("top", top)
    trained = outputs.found(run)
    if masks is not None and trained.card.task != SEGMENTATION:
        because = f"the model was trained for the task {trained.card.task}"
        raise BadValue("masks", masks, "none, unless the task is segmentation", because)
    names, raw = trained.expected(resize).read(inputs)
    allowed = allow_code or ()
    remedy = f"with --allow-code {trained.card.architecture.model.partition(':')[0]}"
    chosen = None if agent is None else count("agent", agent, least=0)
    module = trained.module(chosen, None, allowed, remedy)
    found = answers(module, trained.card, names, raw, few if few or json_ else SHOWN)
    places = [] if masks is None else write_masks(found, Path(masks))
    if json_:
        said = [answer.described() for answer in found]
        for one, place in zip(said, places, strict=False):
            one["mask"] = str(place)
        print(json.dumps(said))
        return
    heading(f"{trained.card.architecture.model} of {run}")
    rows = [[answer.input, *_shown(answer, few or SHOWN)] for answer in found]
    first = "numbers" if found[0].numbers else "pixels" if found[0].shares else "likeliest"
    titles = ["input", first, *[""] * (max(map(len, rows)) - 2)]
    screen.print(Table(titles, rows, frozenset({0})).terminal())
    if masks is not None:
        screen.print(f"written to {masks}", highlight=False, soft_wrap=True)


def _shown(answer: Answer, few: int) -> list[str]:
    if answer.numbers:
        return [f"{value:.6g}" for value in answer.numbers.values()]
    shares = [*(answer.shares or answer.probabilities).items()]
    return [f"{label} {share:.1%}" for label, share in shares[:few]]
