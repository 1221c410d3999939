"""Newer revisions of ``peers.toml``: who may agree to them, and which ones this peer knows.

The file that a peer is started with counts as it is. One that comes later, while others train, has
to be the next revision and must be signed: by the authority if there is one, otherwise by more than
half of the peers of the revision before it. A signature holds for one experiment. Numbers of peers
never change: newcomers are appended, and whoever leaves stays in the list as ``removed``.
"""

import base64
import binascii
import hashlib
import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from parley.cluster import handshake
from parley.errors import BadValue, NotWritten, ParleyError
from parley.experiment import Experiment, read_file
from parley.files import parse_json, read_text, write_atomically
from parley.peers import keys
from parley.peers.file import Peers
from parley.store.folder import REVISIONS
from parley.training.problem import topology_of

log = logging.getLogger(__name__)

PURPOSE = b"parley: a revision of peers.toml"
"""Signed as well, so that a signature can serve for nothing else."""
MOST = 100
"""Revisions that are taken from another peer at once."""
AUTHORITY = "ca"
"""Under which name an authority signs."""


@cache
def experiment_digest(path: str) -> str:
    """Of what an experiment says, wherever its files lie; as it was when it was first asked for."""
    table = read_file(Path(path))
    # A program may give these itself; then the file does not name them.
    own = "own" in (table.get("task"), table.get("loss"))
    given = ["metrics", "loss"] if own else ["metrics"]
    experiment = Experiment.of(**{**table, "from_python": given})
    said = handshake.plan(experiment, topology_of(experiment))
    del said["version"]  # the same for all who train, not for whoever signs
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _subject(peers: Peers) -> bytes:
    """What is signed: a revision of one experiment's peers counts for no other experiment."""
    return b"\n".join((PURPOSE, experiment_digest(peers.experiment).encode(), peers.content()))


def signed(peers: Peers, certificate: Path, key: Path) -> str:
    """A signature as it stands in the file: the certificate, a dot, and what its key has signed."""
    made = keys.read_key(key).sign(_subject(peers), ec.ECDSA(hashes.SHA256()))
    shown = keys.read_certificate(certificate)
    return ".".join(base64.b64encode(part).decode() for part in (shown, made))


def signer(peers: Peers, signature: str) -> bytes | None:
    """The certificate of whoever has signed; None if the signature does not hold."""
    try:
        shown, made = (base64.b64decode(part, validate=True) for part in signature.split("."))
        public = x509.load_der_x509_certificate(shown).public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return None
        public.verify(made, _subject(peers), ec.ECDSA(hashes.SHA256()))
    except (ValueError, binascii.Error, InvalidSignature, UnsupportedAlgorithm):
        return None
    return shown


def check_next(old: Peers, new: Peers) -> None:
    """Refuses a revision that does not follow the one before, or that too few have signed."""
    if new.revision != old.revision + 1:
        raise BadValue("revision", new.revision, f"{old.revision + 1}, the next one")
    if new.names[: len(old.names)] != old.names:
        valid = f"{', '.join(old.names)}, and newcomers behind them"
        because = "whoever leaves stays in the list, with removed = true"
        raise BadValue("peer", ", ".join(new.names), valid, because)
    for before, after in zip(old.peer, new.peer, strict=False):
        if before.removed and not after.removed:
            because = "it was removed; it can come back under another name"
            raise BadValue(f"peer {after.name}.removed", False, "true", because)
        if set(before.agents) != set(after.agents):
            raise BadValue(
                f"peer {after.name}.agents", list(after.agents), f"{list(before.agents)}, as before"
            )
    if new.agents != old.agents:
        odd = sorted(new.agents ^ old.agents)[0]
        because = f"agent {odd} is in one revision only; vacant lists those that nobody has"
        raise BadValue("peer.agents", sorted(new.agents), f"{sorted(old.agents)}", because)
    if missing := sorted(set(old.revoked) - set(new.revoked)):
        raise BadValue("revoked", list(new.revoked), f"{missing[0]} as well, as before")
    if old.authority is not None:
        _check_authority(old.authority, new)
    else:
        _check_majority(old, new)


def _check_authority(authority: bytes, new: Peers) -> None:
    if signer(new, new.signatures.get(AUTHORITY, "")) != authority:
        valid = "one by the authority, as parley peers sign --ca makes it"
        raise BadValue(f"signatures.{AUTHORITY}", _shown(new, AUTHORITY), valid)


def _check_majority(old: Peers, new: Peers) -> None:
    known = {old.peer[n].key: old.peer[n].name for n in old.active}
    agreed = set()
    for name, signature in sorted(new.signatures.items()):
        if name not in known.values():
            continue
        certificate = signer(new, signature)
        mark = keys.fingerprint(certificate) if certificate else ""
        if known.get(mark) == name and mark not in old.revoked:
            agreed.add(name)
    needed = len(old.active) // 2 + 1
    if len(agreed) < needed:
        names = ", ".join(old.peer[n].name for n in old.active)
        because = f"only {', '.join(sorted(agreed))}" if agreed else "none of them"
        raise BadValue(
            "signatures", ", ".join(sorted(new.signatures)) or None,
            f"those of at least {needed} of {names}",
            f"{because} signed what it says, for this experiment",
        )  # fmt: skip


def _number(table: dict[str, Any]) -> int:
    found = table.get("revision")
    return found if isinstance(found, int) else 0


def _table(peers: Peers) -> dict[str, Any]:
    return peers.model_dump(mode="json", exclude={"experiment", "ca"})


def _shown(peers: Peers, name: str) -> str | None:
    return f"{peers.signatures[name][:16]}..." if name in peers.signatures else None


class Revisions:
    """The revisions that a peer knows, the first one being that of its own file."""

    def __init__(self, first: Peers, folder: Path | None = None) -> None:
        """`folder` is the run's, if this peer may have been there before."""
        self._path = folder / REVISIONS if folder else None
        self.known = [first]
        experiment_digest(first.experiment)  # the file may be changed for a later run
        if self._path is not None and self._path.is_file():
            self._go_on(first, self._path)

    def _go_on(self, given: Peers, path: Path) -> None:
        try:
            tables = parse_json(read_text(path))
            self.known = [self._made(table, given) for table in tables]
            if not self.known:
                raise ValueError("no revision")
        except (ValueError, TypeError, KeyError, IndexError, BadValue) as error:
            why = f" ({error})" if isinstance(error, BadValue) else ""
            raise ParleyError(f"peers: {path} is damaged{why}") from None
        same = [known for known in self.known if known.revision == given.revision]
        if same and same[0].digest() != given.digest():
            because = f"it differs from the revision {given.revision} that this run knows"
            raise BadValue("revision", given.revision, "a higher number", because)
        if not same:
            self.add(given)

    @property
    def newest(self) -> Peers:
        """The one that counts."""
        return self.known[-1]

    def at(self, revision: int) -> Peers | None:
        """One of them, if it is known."""
        return next((known for known in self.known if known.revision == revision), None)

    def add(self, new: Peers) -> None:
        """Takes the next revision; an error that says why if it cannot be it."""
        check_next(self.newest, new)
        if self._path is not None and self._path.parent.is_dir():
            try:
                write_atomically(self._path, json.dumps([*self.tables(), _table(new)]) + "\n")
            except OSError as error:
                raise ParleyError(f"peers: {self._path} cannot be written ({error})") from None
        self.known.append(new)

    def tables(self) -> list[dict[str, Any]]:
        """All of them, for others, who have their own paths."""
        return [_table(one) for one in self.known]

    def later(self, tables: Any) -> list[Peers]:
        """What another peer tells: those that come after the newest here."""
        if not isinstance(tables, list):
            raise BadValue("revisions", type(tables).__name__, "a list")
        newest = self.newest.revision
        unknown = [t for t in tables if isinstance(t, dict) and _number(t) > newest]
        return [self._made(table, self.newest) for table in unknown[:MOST]]

    @staticmethod
    def _made(table: dict[str, Any], like: Peers) -> Peers:
        return Peers.of({**table, "experiment": like.experiment, "ca": like.ca})


class Watched:
    """A ``peers.toml`` that may be replaced by a newer revision while peers train."""

    LOOK = 1.0
    """Seconds between two looks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _stamp(path)
        self._due = 0.0

    def look(self, now: float, known: Peers, take: Callable[[Peers], None]) -> None:
        """Takes a newer revision if it is there, and says why not if it cannot be taken."""
        if now < self._due or (stamp := _stamp(self._path)) == self._seen:
            return
        self._due, self._seen = now + self.LOOK, stamp
        try:
            found = Peers.read(self._path)
            if found.revision > known.revision:
                take(found)
            elif found.digest() != known.digest():
                valid = f"{known.revision + 1} or the file as it was"
                raise BadValue("revision", found.revision, valid, "the file was changed")
        except NotWritten:
            raise
        except Exception as error:  # whatever the file has: a later one must be noticed too
            why = str(error) if isinstance(error, ParleyError) else repr(error)
            log.warning("peers: ignoring the new %s: %s", self._path, why)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
