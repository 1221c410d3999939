"""``parley export``: a trained model in the formats of other programs."""

from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import AllowCode, OfAgent, count
from parley.store import inference, outputs

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

    The exported model takes raw inputs in batches of any size: standardising the columns of tables
    and normalising images are included. Texts are not: text models take token IDs, which
    tokenizer.json in the run's folder makes of texts. Neither is resizing images, and a text in a
    table is given as its number. What the model expects, its columns and its classes are in the
    file's metadata and are printed.

    [bold]parley export runs/mine --to onnx -o mine.onnx[/bold]
    """
    trained = outputs.found(run)
    remedy = f"with --allow-code {trained.card.architecture.model.partition(':')[0]}"
    chosen = None if agent is None else count("agent", agent, least=0)
    module = trained.module(chosen, None, allow_code or (), remedy)
    inference.export(module, trained.card, to, out)
    print(f"written to {out}")
    for name, said in inference.described(trained.card).items():
        print(f"{name}: {said}")
