"""``parley peers``: a group of peers is made, looked at, and changed."""

import json
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.join import Keys, Listen, Me, PeersFile
from parley.cli.options import Json, option
from parley.cli.screen import screen
from parley.errors import BadValue
from parley.experiment import Experiment, read_file
from parley.fabric.base import listed
from parley.peers.check import check as look
from parley.peers.file import Peers
from parley.peers.hosts import make
from parley.peers.keys import find
from parley.peers.revisions import AUTHORITY, signed
from parley.results.table import Table

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    help="Make a group of hosts, look at the peers of a group, agree to a change.",
)


LONGEST = 86400.0
"""Seconds for which others are looked for, at most."""


@app.command()
def sign(
    file: PeersFile,
    *,
    me: Annotated[
        str | None,
        typer.Option(help="Which of the peers signs.", metavar="NAME", show_default=False),
    ] = None,
    keys: Keys = Path(),
    ca: Annotated[
        Path | None,
        typer.Option(
            help="In a group with an authority: its certificate, with its key beside it.",
            metavar="CA.crt", show_default=False,
        ),
    ] = None,
) -> None:  # fmt: skip
    """Agree to a newer peers.toml: print the line for its table \\[signatures].

    [bold]parley peers sign peers.toml --me ward-a[/bold]

    While a group trains, a newer revision counts as soon as more than half of the peers of the one
    before have signed it, or the authority has.
    """
    group = Peers.read(file)
    if (ca is None) == (me is None):
        raise BadValue("me", me, "the name of the peer that signs, or --ca, not both")
    if (ca is None) != (group.ca is None):
        valid = "only where peers.toml has a ca" if ca else f"{group.ca}: it signs for everyone"
        raise BadValue("ca", str(ca) if ca else None, valid)
    if ca is not None:
        print(f'{AUTHORITY} = "{signed(group, ca, ca.with_suffix(".key"))}"')
    elif me is not None:
        identity = find(me, keys)
        name = f'"{me}"' if "." in me else me  # as TOML wants it
        print(f'{name} = "{signed(group, identity.certificate, identity.key)}"')


@app.command()
def hosts(
    experiment: Annotated[
        Path, typer.Argument(help="The experiment that all train.", metavar="EXPERIMENT.toml")
    ],
    addresses: Annotated[
        list[str],
        typer.Argument(help="Where each host is reached by the others.", metavar="HOST:PORT..."),
    ],
    *,
    out: Annotated[Path, option("Folder to write to.", "FOLDER")],
) -> None:  # fmt: skip
    """Make the keys and the peers.toml for hosts that all belong to you.

    [bold]parley peers hosts experiment.toml a.example:7400 b.example:7400 --out hosts[/bold]

    Copy hosts/NAME to each host, and start [bold]parley join peers.toml --me NAME[/bold] there. The
    agents are spread over the hosts in order. FOLDER has all keys: keep it to yourself.
    """
    made = make(experiment, addresses, out)
    for peer in made.peer:
        print(f"{out / peer.name}: {peer.address}, {listed(peer.agents)}")


@app.callback()
def _group() -> None: ...


@app.command()
def check(
    file: PeersFile,
    *,
    me: Me,
    keys: Keys = Path(),
    listen: Listen = None,
    seconds: Annotated[
        float,
        option("How long to look for the others. (default: 10)", "NUMBER"),
    ] = 10.0,
    json_: Json = False,
) -> None:  # fmt: skip
    """Show who can be reached, whose key fits, and whose experiment differs.

    [bold]parley peers check peers.toml --me ward-a[/bold]

    Peers answer while they train, wait for others, or run this check themselves. The exit code is 1
    unless everyone is ready.
    """
    if not 0 < seconds <= LONGEST:
        raise BadValue("seconds", seconds, f"a number above 0, at most {LONGEST:g}")
    group = Peers.read(file)
    experiment = Experiment.of(**read_file(Path(group.experiment)))
    rows = look(group, experiment, me, keys, seconds, listen)
    if json_:
        print(json.dumps([row._asdict() for row in rows]))
    else:
        cells = [
            [row.name, row.address, ", ".join(map(str, row.agents)), row.state] for row in rows
        ]
        shown = Table(["peer", "address", "agents", "state"], cells, frozenset({0, 1, 2, 3}))
        screen.print(shown.terminal())
    if not all(row.fits for row in rows):
        raise typer.Exit(1)
