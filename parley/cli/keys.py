"""``parley keys``: private keys and certificates, made where they live."""

from pathlib import Path
from typing import Annotated

import typer

from parley.cli.options import option
from parley.errors import BadValue
from parley.peers import keys

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    help="Make the keys and certificates that peers know each other by.",
)

Name = Annotated[
    str,
    typer.Argument(help="The peer's name, as peers.toml has it.", metavar="NAME"),
]
Folder = Annotated[
    Path,
    option("Folder to write to. (default: here)", "FOLDER", "--dir"),
]  # fmt: skip
Days = Annotated[
    int,
    option(f"How long the certificate is valid. (default: {keys.DAYS})", "N"),
]  # fmt: skip


def _days(days: int) -> int:
    if not 1 <= days <= 36500:
        raise BadValue("days", days, "1 to 36500")
    return days


@app.command("new")
def new(name: Name, folder: Folder = Path(), days: Days = keys.DAYS) -> None:
    """Make a private key and a certificate, and print the line for peers.toml.

    [bold]parley keys new ward-a[/bold]

    NAME.key stays on this machine, readable by you alone. NAME.crt is not secret.
    """
    made = keys.new(name, folder, _days(days))
    print(f'key = "{made.fingerprint}"')


@app.command("ca")
def ca(name: Name, folder: Folder = Path(), days: Days = 2 * keys.DAYS) -> None:
    """Make an authority for a group that wants one: a key that signs, and its certificate.

    [bold]parley keys ca consortium[/bold]

    Every peer needs a copy of NAME.crt, and peers.toml has [bold]ca = "NAME.crt"[/bold] in place of
    a key for each peer.
    """
    made = keys.authority(name, folder, _days(days))
    print(f'ca = "{made.certificate.name}"')


@app.command("request")
def request(name: Name, folder: Folder = Path()) -> None:
    """Make a private key and a request that the authority can sign.

    [bold]parley keys request ward-a[/bold]

    Send NAME.csr to whoever keeps the authority. NAME.key stays on this machine.
    """
    _, path = keys.request(name, folder)
    print(path)


@app.command("sign")
def sign(
    request: Annotated[
        Path, typer.Argument(help="What parley keys request wrote.", metavar="FILE.csr")
    ],
    ca: Annotated[
        Path,
        option("The authority's certificate, with its key beside it.", "CA.crt"),
    ],
    folder: Folder = Path(),
    days: Days = keys.DAYS,
) -> None:  # fmt: skip
    """Sign a request: write the certificate to send back.

    [bold]parley keys sign ward-a.csr --ca consortium.crt[/bold]
    """
    print(keys.sign(request, ca, folder, _days(days)))
