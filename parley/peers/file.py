"""``peers.toml``: who takes part, where, with which agents, and by which key. The same for all.

experiment = "experiment.toml"

[[peer]]
name = "ward-a"
address = "a.example:7400"
agents = [0, 1]
key = "sha256:…"
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from pydantic import BaseModel, ConfigDict, ValidationError

from parley.errors import BadValue
from parley.experiment import read_file
from parley.peers import keys

FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")
ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:]+)\]|([^:\s\[\]]+)):(\d{1,5})")
FIELDS = {
    "experiment": "a path, such as experiment.toml",
    "revision": "a whole number from 1",
    "ca": "a path, such as consortium.crt",
    "revoked": "a list of fingerprints",
    "vacant": "a list of numbers, such as [4, 5]",
    "peer": "two or more tables [[peer]]",
    "signatures": "a table with the lines that parley peers sign has printed",
}
"""What each may be, for whoever has written something else."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Peer(BaseModel):
    """One organisation's part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    address: str | None = None
    """HOST:PORT that others can dial; left out: only this peer dials."""
    agents: tuple[int, ...]
    key: str | None = None
    """Fingerprint of its certificate, where there is no common authority."""
    removed: bool = False
    """Whether it no longer takes part; its line stays, so that others keep their numbers."""


class Peers(BaseModel):
    """All that ``peers.toml`` says; peers are numbered as they stand in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    revision: int = 1
    """Counts up whenever the group changes while it trains."""
    ca: str | None = None
    """Certificate of the authority that has signed every peer's."""
    revoked: tuple[str, ...] = ()
    """Fingerprints of certificates that no longer count."""
    vacant: tuple[int, ...] = ()
    """Agents that nobody has yet, or any longer."""
    peer: tuple[Peer, ...]
    signatures: dict[str, str] = {}
    """Who has agreed to this revision; see `parley.peers.revisions`."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a file; paths in it are relative to the file."""
        given = read_file(path, "peers")
        for field in ("experiment", "ca"):
            if isinstance(given.get(field), str):
                given[field] = str(path.parent / given[field])
        return cls.of(given)

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """From a table, checked."""
        try:
            made = cls(**given)
        except ValidationError as error:
            where = error.errors()[0]["loc"]
            if len(where) > 2:  # a field of one peer
                number, field = int(where[1]), str(where[2])
                raise _wrong(given, number, field, str(error.errors()[0]["msg"])) from None
            field = str(where[0])
            valid = FIELDS.get(field, f"{', '.join(cls.model_fields)}; nothing else")
            raise BadValue(field, given.get(field), valid) from None
        made._check()
        return made

    def _check(self) -> None:
        if len(self.peer) < 2:
            raise BadValue("peer", len(self.peer), "two or more tables [[peer]]")
        if self.revision < 1:
            raise BadValue("revision", self.revision, "a number from 1")
        if len(self.active) < 2:
            raise BadValue("peer", len(self.active), "two or more that are not removed")
        seen = {f"agent {agent}": "vacant" for agent in self.vacant}
        for peer in self.peer:
            keys.checked_name(peer.name, "peer.name")
            if peer.address is not None:
                address_of(peer.address)
            if not peer.agents or min(peer.agents) < 0 or len({*peer.agents}) < len(peer.agents):
                raise BadValue(
                    f"peer {peer.name}.agents", list(peer.agents), "different numbers from 0"
                )
            _check_key(peer, self.ca)
            marks = [f"the name {peer.name}"]
            marks += [f"the key {peer.key}"] if peer.key else []
            if not peer.removed:
                marks += [f"agent {agent}" for agent in peer.agents]
                marks += [f"the address {peer.address}"] if peer.address else []
            for mark in marks:
                if mark in seen:
                    where = "vacant lists" if seen[mark] == "vacant" else f"{seen[mark]} has"
                    raise BadValue("peer", peer.name, f"not {mark}, which {where}")
                seen[mark] = peer.name
        for fingerprint in self.revoked:
            if not FINGERPRINT.fullmatch(fingerprint):
                raise BadValue("revoked", fingerprint, "fingerprints, sha256: and 64 digits")

    def check_agents(self, agents: int) -> None:
        """Refuses unless these are the agents of the experiment, every one."""
        hosted = self.agents
        if strange := sorted(hosted - {*range(agents)}):
            because = f"the experiment has {agents} agents"
            raise BadValue("peer.agents", strange[0], f"0 to {agents - 1}", because)
        if missing := sorted({*range(agents)} - hosted):
            because = "every agent of the experiment needs a peer, or a place in vacant"
            raise BadValue("peer.agents", None, f"a peer with agent {missing[0]}", because)

    @property
    def names(self) -> tuple[str, ...]:
        """The peers' names, in the order of the file."""
        return tuple(peer.name for peer in self.peer)

    def number(self, name: str, field: str = "me") -> int:
        """A peer's place in the file."""
        if name not in self.names:
            raise BadValue(field, name, f"one of {', '.join(self.names)}")
        return self.names.index(name)

    @property
    def active(self) -> tuple[int, ...]:
        """The numbers of the peers that have not been removed."""
        return tuple(n for n, peer in enumerate(self.peer) if not peer.removed)

    @property
    def agents(self) -> set[int]:
        """All agents, those that are vacant included."""
        return {*self.vacant, *(agent for n in self.active for agent in self.peer[n].agents)}

    def worker_of(self) -> tuple[int, ...]:
        """The peer of every agent; -1: nobody's."""
        seat = {agent: n for n in self.active for agent in self.peer[n].agents}
        return tuple(seat.get(agent, -1) for agent in sorted(self.agents))

    @cached_property
    def authority(self) -> bytes | None:
        """The common authority's certificate, DER."""
        if self.ca is None:
            return None
        found = keys.read_certificate(Path(self.ca), "ca")
        if not keys.may_sign(x509.load_der_x509_certificate(found)):
            raise BadValue("ca", self.ca, "an authority's certificate", "it may not sign others")
        return found

    def content(self) -> bytes:
        """All that the file says, except where the experiment lies and who has signed."""
        said = self.model_dump(mode="json", exclude={"experiment", "ca", "signatures"})
        said["ca"] = keys.fingerprint(self.authority) if self.authority else None
        return json.dumps(said, sort_keys=True).encode()

    def digest(self) -> str:
        """The same wherever the same peers, keys and addresses are listed."""
        return hashlib.sha256(self.content()).hexdigest()

    def differs(self, said: Mapping[str, Any], grows: bool) -> str:
        """Why the file of a peer with this hello is not acceptable; where the group `grows`, one of
        another revision is."""
        if said.get("peers") == self.digest():
            return ""
        theirs, ours = said.get("revision"), self.revision
        if theirs == ours or not isinstance(theirs, int):
            return "its peers.toml differs from the one here"
        if not grows or said.get("checking"):
            return f"its peers.toml is revision {theirs}, the one here is revision {ours}"
        return ""

    def holder(self, certificate: bytes) -> str:
        """Whose certificate this is; an error that says why if it is nobody's.

        Where there is an authority, TLS has to check its signature as well.
        """
        mark = keys.fingerprint(certificate)
        if mark in self.revoked:
            raise BadValue("certificate", mark, "one that is not listed as revoked")
        if self.authority is None:
            for peer in self.peer:
                if peer.key == mark:
                    return self._present(peer.name)
            raise BadValue("certificate", mark, "one whose fingerprint is in peers.toml")
        try:
            name = keys.certificate_name(x509.load_der_x509_certificate(certificate))
        except ValueError:
            raise BadValue("certificate", mark, "a certificate in DER") from None
        if name not in self.names:
            raise BadValue("certificate", name, f"that of one of {', '.join(self.names)}")
        return self._present(name)

    def _present(self, name: str) -> str:
        if self.peer[self.number(name)].removed:
            because = f"revision {self.revision} of peers.toml removes it"
            raise BadValue("peer", name, "one that takes part", because)
        return name

    def check_links(self, edges: Sequence[tuple[int, int]]) -> None:
        """Refuses where two peers that must talk can neither dial the other."""
        for i, j in edges:
            one, other = self.peer[i], self.peer[j]
            if one.address is None and other.address is None:
                because = f"it is linked with {other.name}, which has none either"
                raise BadValue(f"peer {one.name}.address", None, "HOST:PORT", because)


def _check_key(peer: Peer, ca: str | None) -> None:
    field = f"peer {peer.name}.key"
    if ca is not None and peer.key is not None:
        raise BadValue(field, peer.key, "none", f"{ca} vouches for everyone")
    if ca is None and peer.key is None:
        valid = "the fingerprint that parley keys new printed, or one ca = FILE for all"
        raise BadValue(field, None, valid)
    if peer.key is not None and not FINGERPRINT.fullmatch(peer.key):
        raise BadValue(field, peer.key, "sha256: and 64 hexadecimal digits in lower case")


def _wrong(given: dict[str, Any], number: int, field: str, message: str) -> BadValue:
    tables = given.get("peer")
    table = tables[number] if isinstance(tables, list) else {}
    name = table.get("name", number) if isinstance(table, dict) else number
    value = table.get(field) if isinstance(table, dict) else table
    valid = {
        "name": "text", "address": "HOST:PORT", "agents": "a list of numbers, such as [0, 1]",
        "key": "text", "removed": "true or false",
    }.get(field, "name, address, agents, key and removed; nothing else")  # fmt: skip
    return BadValue(f"peer {name}.{field}", value, valid, "" if value is None else message)


def address_of(text: str, field: str = "peer.address") -> tuple[str, int]:
    """Host and port.

    >>> address_of("a.example:7400"), address_of("[::1]:80")
    (('a.example', 7400), ('::1', 80))
    """
    found = ADDRESS.fullmatch(text)
    if not found or not 0 < int(found[3]) < 65536 or not _is_name(found[1] or found[2]):
        raise BadValue(field, text, "HOST:PORT, such as a.example:7400 or [::1]:7400")
    return found[1] or found[2], int(found[3])


def _is_name(host: str) -> bool:
    """Whether a host can have that name: sockets raise odd errors for others."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable()


def listening(peer: Peer, listen: str | None) -> tuple[str, int] | None:
    """Where a peer awaits others: as asked, or at its port on every interface; on the loopback
    interface alone where its address is there. None: it only dials."""
    if listen is not None:
        return address_of(listen, "listen")
    if peer.address is None:
        return None
    host, port = address_of(peer.address)
    return (host if host in LOOPBACK else "", port)
