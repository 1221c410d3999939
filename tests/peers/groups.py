"""Groups of peers for tests: keys, peers.toml and experiment.toml in a folder of their own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from parley.fabric.base import WorkerLost
from parley.peers import keys
from parley.peers.file import Peers
from parley.peers.links import Links
from tests.ports import free_ports

NAMES = ("ward-a", "ward-b", "ward-c", "ward-d", "ward-e")


def write_group(
    folder: Path,
    agents: Sequence[Sequence[int]] = ((0,), (1,), (2,)),
    experiment: Mapping[str, object] = {},
    addresses: Sequence[str | None] | None = None,
    names: Sequence[str] = NAMES,
) -> Path:
    """Keys, an experiment and the peers.toml that names them; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"agents": sum(map(len, agents)), **experiment}
    (folder / "experiment.toml").write_text(tomli_w.dumps(settings))
    if addresses is None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(agents))]
    tables = []
    for name, hosted, address in zip(names, agents, addresses, strict=False):
        table: dict[str, object] = {"name": name, "agents": list(hosted)}
        if address is not None:
            table["address"] = address
        tables.append({**table, "key": keys.new(name, folder).fingerprint})
    path = folder / "peers.toml"
    path.write_text(tomli_w.dumps({"experiment": "experiment.toml", "peer": tables}))
    return path


def taken(links: Links, name: str, lane: int, generation: int, number: int) -> memoryview:
    """A message that is waited for, as a fabric does."""
    began = links.now()
    while (body := links.take(name, lane, generation, number, 0.1)) is None:
        if (why := links.lost(name, began)) is not None:
            raise WorkerLost(f"peers: lost {name} ({why})")
    return body


def group(folder: Path, peers: int = 3) -> Peers:
    """A group with one agent for each peer."""
    return Peers.read(write_group(folder, [[n] for n in range(peers)]))
