"""The hosts of one party as peers: all their keys, made in one place, and a folder to copy to each.

Organisations make their keys where they live. A party that owns all hosts need not: it has whatever
is on them anyway.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from parley.errors import BadValue
from parley.experiment import Experiment, read_file
from parley.files import read_text, write_atomically
from parley.peers import keys
from parley.peers.file import Peers, address_of

EXPERIMENT, PEERS = "experiment.toml", "peers.toml"


def named(addresses: Sequence[str]) -> list[str]:
    """What the hosts are called: as their addresses have it, or by numbers.

    >>> named(["a.example:7400", "b.example:7400"]), named(["127.0.0.1:1", "127.0.0.1:2"])
    (['a.example', 'b.example'], ['host-0', 'host-1'])
    """
    names = [address_of(address, "hosts")[0] for address in addresses]
    if len({*names}) == len(names) and all(map(keys.NAMES.fullmatch, names)):
        return names
    return [f"host-{number}" for number in range(len(addresses))]


def make(experiment: Path, addresses: Sequence[str], out: Path) -> Peers:
    """Writes ``peers.toml`` and the experiment to a folder, and to a folder in it for each host,
    with the host's key; the agents are spread evenly, in order."""
    agents = Experiment.of(**read_file(experiment)).agents
    text = read_text(experiment)  # as it stands: paths in it are relative to the copies
    if not 2 <= len(addresses) <= agents:
        because = "every host must have an agent"
        raise BadValue("hosts", len(addresses), f"2 to {agents} addresses HOST:PORT", because)
    if (out / PEERS).exists():
        raise BadValue("out", str(out), "another folder", f"it has a {PEERS}")
    names = named(addresses)
    parts = np.array_split(np.arange(agents), len(names))
    peers: list[dict[str, Any]] = [
        {
            "name": name,
            "address": address,
            "agents": part.tolist(),
            "key": keys.fingerprint(name.encode()),
        }
        for name, address, part in zip(names, addresses, parts, strict=True)
    ]
    group = {"experiment": EXPERIMENT, "peer": peers}
    Peers.of(group)  # before any key is written
    for peer in peers:
        peer["key"] = keys.new(peer["name"], out / peer["name"]).fingerprint
    for folder in (*(out / name for name in names), out):
        write_atomically(folder / EXPERIMENT, text)
        write_atomically(folder / PEERS, tomli_w.dumps(group))
    return Peers.read(out / PEERS)
