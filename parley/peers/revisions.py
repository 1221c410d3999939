"""Newer revisions of ``peers.toml``: who may agree to them, and which ones this peer knows.

The file that a peer is started with counts as it is. One that comes later, while others train, has
to be the next revision and must be signed: by the authority if there is one, otherwise by more than
half of the peers of the revision before it. Numbers of peers never change: newcomers are appended,
and whoever leaves stays in the list as ``removed``.
"""

import base64
import binascii
import json
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from parley.errors import BadValue, ParleyError
from parley.files import write_atomically
from parley.peers import keys
from parley.peers.file import Peers

KEPT = "revisions.json"
"""In the run's folder: the revisions that this peer knows, once there is more than one."""
PURPOSE = b"parley: a revision of peers.toml\n"
"""Signed as well, so that a signature can serve for nothing else."""
AUTHORITY = "ca"
"""Under which name an authority signs."""


def signed(peers: Peers, certificate: Path, key: Path) -> str:
    """A signature as it stands in the file: the certificate, a dot, and what its key has signed."""
    made = keys.read_key(key).sign(PURPOSE + peers.content(), ec.ECDSA(hashes.SHA256()))
    shown = keys.read_certificate(certificate)
    return ".".join(base64.b64encode(part).decode() for part in (shown, made))


def signer(peers: Peers, signature: str) -> bytes | None:
    """The certificate of whoever has signed; None if the signature does not hold."""
    try:
        shown, made = (base64.b64decode(part, validate=True) for part in signature.split("."))
        public = x509.load_der_x509_certificate(shown).public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return None
        public.verify(made, PURPOSE + peers.content(), ec.ECDSA(hashes.SHA256()))
    except (ValueError, binascii.Error, InvalidSignature):
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
            f"those of at least {needed} of {names}", f"{because} signed what it says",
        )  # fmt: skip


def _shown(peers: Peers, name: str) -> str | None:
    return f"{peers.signatures[name][:16]}..." if name in peers.signatures else None


class Revisions:
    """The revisions that a peer knows, the first one being that of its own file."""

    def __init__(self, first: Peers, folder: Path | None = None) -> None:
        """`folder` is the run's, if this peer may have been there before."""
        self._path = folder / KEPT if folder else None
        self.known = [first]
        if self._path is not None and self._path.is_file():
            self._go_on(first, self._path)

    def _go_on(self, given: Peers, path: Path) -> None:
        try:
            tables = json.loads(path.read_text(encoding="utf-8"))
            self.known = [self._made(table, given) for table in tables]
        except (ValueError, TypeError, KeyError, IndexError):
            raise ParleyError(f"peers: {path} is damaged") from None
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
        self.known.append(new)
        if self._path is not None and self._path.parent.is_dir():
            write_atomically(self._path, json.dumps(self.tables()) + "\n")

    def tables(self) -> list[dict[str, Any]]:
        """All of them, for others, who have their own paths."""
        return [one.model_dump(mode="json", exclude={"experiment", "ca"}) for one in self.known]

    def later(self, tables: Any) -> list[Peers]:
        """What another peer tells: those that come after the newest here."""
        if not isinstance(tables, list):
            raise BadValue("revisions", type(tables).__name__, "a list")
        made = [self._made(table, self.newest) for table in tables if isinstance(table, dict)]
        return [one for one in made if one.revision > self.newest.revision]

    @staticmethod
    def _made(table: dict[str, Any], like: Peers) -> Peers:
        return Peers.of({**table, "experiment": like.experiment, "ca": like.ca})
