"""``parley export``: a trained model in the formats of other programs."""

from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import AllowCode, OfAgent, count
from parley.store import inference, outputs
from parley.store.folder import CARD

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command()
def export(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a complete run.", metavar="RUN", show_default=False),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="onnx (needs parley-learning\\[onnx]) or torch-export.",
            metavar="FORMAT",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out",
            help="The file to write, ending in .onnx or .pt2.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    agent: OfAgent = None,
    allow_code: AllowCode = None,
) -> None:  # fmt: skip
    """Export a trained model for other programs.

    The exported model takes raw inputs in batches of any size: normalisation is included. Text
    models take token IDs; tokenizer.json in the run's folder turns texts into them.

    [bold]parley export runs/mine --to onnx -o mine.onnx[/bold]
    """
    trained = outputs.found(run)
    remedy = f"with --allow-code {trained.card.architecture.model.partition(':')[0]}"
    chosen = None if agent is None else count("agent", agent, least=0)
    module = trained.module(chosen, None, allow_code or (), remedy)
    inference.export(module, trained.card, to, out)
    about = trained.card.input
    print(f"written to {out}: {about.dtype} inputs of shape {list(about.shape)}, scores out")
    if about.resize or about.crop:
        scale = f"scale the shorter side to {about.resize}, then " if about.resize else ""
        words = f"{scale}crop the central square of {about.crop or about.resize} pixels"
        print(f"prepare images as the run did: {words}")
    if about.table:
        print(f"prepare the columns as in {run / CARD}")
    if about.tokenizer:
        print(f"texts become token IDs with {run / about.tokenizer}")
