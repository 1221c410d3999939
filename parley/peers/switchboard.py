"""Sockets to other peers: listened at, dialled, read and written by one thread.

What the bytes mean is for the links to know. They are told when a connection is encrypted, of every
frame, of connections that have ended, and of the time.
"""

import logging
import re
import selectors
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any

from parley.errors import BadValue, ParleyError
from parley.peers import keys
from parley.peers.carrier import SHAKING_HANDS
from parley.peers.connection import Connection, Refused, Security
from parley.peers.file import Peers, address_of, listening
from parley.peers.frames import BadFrame
from parley.peers.links import Links

log = logging.getLogger(__name__)

MOST_HALF_OPEN = 128
"""Connections that have not proved who they are; of more, the oldest are closed."""
TICK = 0.05
"""Seconds between two looks at what is due."""
NUMBER = re.compile(r"\d+")
UNTIMELY = (9, 10)
"""What OpenSSL says of certificates that are not yet valid, and of those that no longer are."""
AGAIN = 60.0
"""Seconds for which the same complaint about the same address is not repeated."""


class Switchboard:
    """All connections of one peer, whoever they are with: a `parley.peers.links.Carrier`."""

    now = staticmethod(time.monotonic)

    def __init__(self, security: Security, listener: socket.socket | None) -> None:
        self.changed = threading.Condition()
        """Held while the owner is told of anything but a frame."""
        self.connections: dict[Connection, int] = {}
        """What each waits for, as selectors have it."""
        self.ending = False
        self.dialling: set[str] = set()
        """Peers whose addresses are being looked for."""
        self._security = security
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, None)
        self._near, self._far = socket.socketpair()
        self._far.setblocking(False)
        self._selector.register(self._far, selectors.EVENT_READ, None)
        self._again: set[Connection] = set()
        self._dialled: list[tuple[str, str, Any]] = []
        self._complaints: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._loop, name="parley-links", daemon=True)

    @property
    def listens(self) -> bool:
        """Whether others can dial this peer."""
        return self._listener is not None

    def start(self, owner: Links) -> None:
        """From now on bytes move, and the owner is told of every frame, of connections that are
        made and that end, and of the time."""
        self._owner = owner
        self._thread.start()

    def revise(self, peers: Peers) -> None:
        """From now on a newer ``peers.toml`` says who is let in."""
        self._security.peers = peers

    def wake(self) -> None:
        """There is something to do."""
        with suppress(OSError):
            self._near.send(b"\0")

    def read_on(self, connection: Connection) -> None:
        """A connection that was paused goes on."""
        self._again.add(connection)

    def end(self) -> None:
        """Sends what waits, as far as it can be, and closes everything."""
        with self.changed:
            self.ending = True
        self.wake()
        self._thread.join(5.0)

    # --- the thread --------------------------------------------------------------------------

    def _loop(self) -> None:
        ticked = 0.0
        try:
            while not self.ending:
                events = self._selector.select(0.0 if self._again else TICK)
                now = time.monotonic()
                for key, mask in events:
                    if key.fileobj is self._far:
                        with suppress(BlockingIOError):
                            self._far.recv(4096)
                    elif key.fileobj is self._listener:
                        self._accept(now)
                    else:
                        self._serve(key.data, mask, now)
                for connection in list(self._again):
                    self._serve(connection, selectors.EVENT_READ, now)
                if now - ticked > TICK:
                    ticked = now
                    with self.changed:
                        self._take_dialled(now)
                        self._owner.tick(now)
                for connection in list(self.connections):
                    self._flush(connection)
        except Exception as error:  # a fault of ours: nobody may wait for ever
            log.debug("links", exc_info=True)
            self._owner.fail(ParleyError(f"peers: the links have failed: {error!r}"))
        finally:
            self._shut()

    def _shut(self) -> None:
        for connection in list(self.connections):
            with suppress(OSError):
                if connection.ready:
                    connection.sock.settimeout(0.5)
                    connection.writable()
            self.drop(connection, "")
        with self.changed:
            self.ending = True
            dialled = [sock for _, _, sock in self._dialled if isinstance(sock, socket.socket)]
        for one in (self._listener, self._near, self._far, *dialled):
            if one is not None:
                one.close()
        self._selector.close()

    def _accept(self, now: float) -> None:
        assert self._listener is not None
        for _ in range(64):
            try:
                sock, where = self._listener.accept()
            except OSError:
                return
            half_open = [c for c in self.connections if not c.ready and c.dialled is None]
            if len(half_open) >= MOST_HALF_OPEN:
                hosts = [c.where.rpartition(":")[0] for c in half_open]
                crowd = max(set(hosts), key=hosts.count)
                first = next(c for c, h in zip(half_open, hosts, strict=True) if h == crowd)
                self._complain(crowd, "it opens connections and says nothing")
                self.drop(first, "")
            self._adopt(sock, f"{where[0].removeprefix('::ffff:')}:{where[1]}", None, now)

    def _adopt(self, sock: socket.socket, where: str, dialled: str | None, now: float) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        owner = self._owner
        connection = Connection(
            sock, self._security, where, dialled, now, owner.encrypted, owner.place, owner.came
        )
        self.connections[connection] = selectors.EVENT_READ
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection, mask: int, now: float) -> None:
        """Reads and writes what can be; closes what is not as it should be."""
        if connection not in self.connections:
            self._again.discard(connection)
            return
        try:
            if mask & selectors.EVENT_WRITE:
                connection.writable()
            if mask & selectors.EVENT_READ:
                self._again.discard(connection)  # first: meanwhile somebody may let it read on
                if connection.readable(now):
                    self._again.add(connection)
        except (Refused, BadFrame, ParleyError, ssl.SSLError, OSError) as error:
            closed = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
            self.drop(connection, in_words(error), closed)
        except Exception as error:
            if connection.ready:
                raise
            # Whatever a stranger has found that raises this: it ends no run.
            self.drop(connection, f"what it sent cannot be read ({type(error).__name__})")

    def _flush(self, connection: Connection) -> None:
        """Sends what waits, and asks to be told when more can be."""
        if connection not in self.connections:
            return
        try:
            if connection.wants_to_write:
                connection.writable()
        except (ssl.SSLError, OSError, Refused) as error:
            self.drop(connection, in_words(error), True)
            return
        interest = 0 if connection.paused else selectors.EVENT_READ
        if connection.wants_to_write:
            interest |= selectors.EVENT_WRITE
        before = self.connections[connection]
        if interest == before:
            return
        if not interest:
            self._selector.unregister(connection.sock)
        elif not before:
            self._selector.register(connection.sock, interest, connection)
        else:
            self._selector.modify(connection.sock, interest, connection)
        self.connections[connection] = interest

    # --- connections that end ------------------------------------------------------------------

    def drop(self, connection: Connection, why: str, quietly: bool = False) -> None:
        """Closes a connection and tells its owner; `quietly`: and nobody else."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._again.discard(connection)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        if connection.encrypted and not connection.ready:
            with suppress(OSError):
                connection.writable()  # whoever is turned away has a right to know by whom
        connection.close()
        with self.changed:
            self._owner.dropped(connection, why)
        if not why or quietly:
            return
        name = connection.name or connection.dialled
        if connection.ready:
            self._complain(f"the connection with {name}", why, "was cut")
            return
        host = connection.where.rpartition(":")[0]
        claim = f"{name} at {connection.where}" if connection.dialled else host
        if name and not connection.dialled:
            said = name if connection.encrypted else f"which claims to be {name}"
            claim = f"{host} ({said})"
        self._complain(claim, why)

    def _complain(self, who: str, why: str, what: str = "is not let in") -> None:
        """One line on who was not let in, now and then."""
        now = time.monotonic()
        kind = NUMBER.sub("N", why)  # the next time it may be another frame
        if now - self._complaints.get((who, kind), -AGAIN) < AGAIN:
            return
        if len(self._complaints) > 1000:
            self._complaints.clear()
        self._complaints[who, kind] = now
        log.warning("peers: %s %s: %s", who, what, why)

    # --- dialling ------------------------------------------------------------------------------

    def dials(self, name: str) -> bool:
        """Whether a connection to that peer is being made."""
        return name in self.dialling or any(c.dialled == name for c in self.connections)

    def dial(self, name: str, address: str) -> None:
        """Dials in a thread of its own, since finding an address can take its time."""
        self.dialling.add(name)
        where = address_of(address)

        def dial() -> None:
            found: Any
            try:
                found = socket.create_connection(where, timeout=SHAKING_HANDS)
            except (OSError, ValueError) as error:  # the latter of names that cannot be looked up
                found = f"{in_words(error)} at {where[0]}:{where[1]}"
            with self.changed:
                if self.ending and isinstance(found, socket.socket):
                    found.close()
                else:
                    self._dialled.append((name, address, found))
            self.wake()

        threading.Thread(target=dial, daemon=True).start()

    def _take_dialled(self, now: float) -> None:
        for name, address, found in self._dialled:
            self.dialling.discard(name)
            if isinstance(found, socket.socket):
                self._adopt(found, address, name, now)
            else:
                self._owner.not_dialled(name, str(found))
        self._dialled.clear()


def listening_socket(where: tuple[str, int]) -> socket.socket:
    """A socket that awaits others there."""
    try:
        made = _bound(where)
    except OSError as error:
        reason = error.strerror or str(error)
        shown = f"{where[0] or '0.0.0.0'}:{where[1]}"
        raise BadValue(
            "listen", shown, "an address of this host with a free port", reason
        ) from None
    made.setblocking(False)
    return made


def _bound(where: tuple[str, int]) -> socket.socket:
    if not where[0] and socket.has_dualstack_ipv6():
        # At every address of this host, of either kind; some hosts have the one kind only.
        with suppress(OSError):
            return socket.create_server(
                where, family=socket.AF_INET6, backlog=512, dualstack_ipv6=True
            )
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    return socket.create_server(where, family=family, backlog=512)


def in_words(error: Exception) -> str:
    """Why a connection ends, for a line that a user reads."""
    if isinstance(error, ssl.SSLCertVerificationError):
        clock = ", by the clock of this host" if error.verify_code in UNTIMELY else ""
        return f"its certificate does not hold: {error.verify_message}{clock}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        _, alert, told = reason.partition(" alert ")
        return f"it has turned this peer away: {told}" if alert else f"TLS failed: {reason}"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)


def over_tls(
    identity: keys.Identity,
    peers: Peers,
    listen: str | None = None,
    checking: bool = False,
    **how: Any,
) -> Links:
    """Links of a peer over sockets and TLS; `how` are further arguments of `Links`."""
    security = Security(identity, peers, keys.read_certificate(identity.certificate))
    where = listening(peers.peer[peers.number(identity.name)], listen)
    opened: socket.socket | None = None
    # Whoever only looks may do so beside a process that listens there already.
    with suppress(*[BadValue] * checking):
        opened = listening_socket(where) if where is not None else None
    carrier = Switchboard(security, opened)
    return Links(identity.name, peers, carrier, checking=checking, **how)
