"""One encrypted connection: certificates first, then TLS 1.3, then frames. Nothing ever blocks.

Both ends send their certificates in the clear (they are not secret) so that each can look up whose
it is before any work is done for a stranger, and can then demand exactly that certificate, or the
authority's signature on it, from the standard library's TLS: it takes nothing but trust anchors.
"""

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from parley.fabric.base import Buffer
from parley.peers.file import Peers
from parley.peers.frames import DATA, HEADER, HELLO, BadFrame, Frame
from parley.peers.keys import Identity
from parley.peers.mailbox import ENVELOPE, space
from parley.peers.tunnel import Tunnel

PREAMBLE = b"PARLEY\x00\x01"
"""What a connection begins with, and in which version of this protocol."""
SIZE = struct.Struct("<H")
MOST_CERTIFICATE = 8192
MOST_HELLO = 1 << 18
RECORD = 16384
"""Bytes of a TLS record: a frame's header goes into the first one."""
READS = 32
"""Pieces that are read before others have their turn."""


class Refused(Exception):
    """Whoever is at the other end is not let in, and why."""


class Security:
    """This peer's identity and whom it trusts."""

    def __init__(self, identity: Identity, peers: Peers, certificate: bytes) -> None:
        self.identity = identity
        self.peers = peers
        self.certificate = certificate
        self.preamble = PREAMBLE + SIZE.pack(len(certificate)) + certificate

    def context(self, certificate: bytes, serves: bool) -> ssl.SSLContext:
        """TLS 1.3 with whoever holds this certificate and nobody else."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.check_hostname = False  # names are those of peers.toml, not of DNS
        made.verify_mode = ssl.CERT_REQUIRED
        try:
            made.load_verify_locations(cadata=self.peers.authority or certificate)
        except ssl.SSLError:
            raise Refused("what it sent is not a certificate") from None
        try:
            made.load_cert_chain(self.identity.certificate, self.identity.key)
        except OSError as error:
            why = getattr(error, "reason", None) or error.strerror or str(error)
            raise Refused(f"the key of this peer itself cannot be used: {why}") from None
        if serves:
            made.num_tickets = 0
        return made


def rehearse(security: Security) -> None:
    """Shakes hands with itself, in memory, as either side: an `ssl.SSLError` or `Refused` says why
    others could not with this certificate, such as for its curve or for what it may be used."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    serves, calls = (security.context(security.certificate, serves) for serves in (True, False))
    ends = (calls.wrap_bio(one, other), serves.wrap_bio(other, one, server_side=True))
    for end in ends * 3:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()


class Connection:
    """A socket on its way to carrying frames, and then carrying them.

    Whoever owns it calls `readable` and `writable` when the socket is, and is told when it is
    encrypted and of frames.
    """

    def __init__(
        self,
        sock: socket.socket,
        security: Security,
        where: str,
        dialled: str | None,
        begun: float,
        on_encrypted: Callable[["Connection"], None],
        on_message: Callable[["Connection", int], memoryview],
        on_frame: Callable[["Connection", Frame, memoryview], None],
    ) -> None:
        self.sock = sock
        self.security = security
        self.where = where
        """The other end's address, for messages."""
        self.dialled = dialled
        """The peer that was dialled here; None: the other end did."""
        self.begun = begun
        self.heard = begun
        self.on_encrypted = on_encrypted
        self.on_message = on_message
        self.on_frame = on_frame
        self.name: str | None = None
        """Who is at the other end, once that is certain."""
        self.ready = False
        """Whether both have said hello."""
        self.limit = MOST_HELLO
        self.paused = False
        self.tunnel: Tunnel | None = None
        """What encrypts, once the certificates are known."""
        self.envelope = memoryview(bytearray(ENVELOPE.size))
        """Of the message that is arriving, or has just arrived."""
        self._stage = "preamble"
        self._claimed = b""
        self._early = bytearray()
        self._outgoing: deque[memoryview] = deque()
        self._header = memoryview(bytearray(HEADER.size))
        self._frame: Frame | None = None
        self._target = self._header
        self._filled = 0
        if dialled is not None:
            self._outgoing.append(memoryview(security.preamble))

    # --- writing ---------------------------------------------------------------------------

    def put(self, frame: Frame, parts: Sequence[Buffer] = ()) -> None:
        """Queues a frame; small parts share a record with what follows."""
        record, views = bytearray(frame.packed()), []
        for part in parts:
            view = memoryview(part).cast("B")
            room = RECORD - len(record)
            record += view[:room]
            if len(view) >= room:
                views += [memoryview(record), view[room:]]
                record = bytearray()
        views.append(memoryview(record))
        self._outgoing.extend(view for view in views if len(view))

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits to be sent."""
        if self.tunnel is not None and self.tunnel.unsent:
            return True
        return bool(self._outgoing) and self._stage != "tls"

    def writable(self) -> None:
        """Sends as much as the socket takes."""
        with suppress(BlockingIOError):
            if self.tunnel is not None:
                self.tunnel.flush()
            while self._outgoing and self._stage != "tls":
                view = self._outgoing[0]
                count = (self.tunnel or self.sock).send(view)
                if count < len(view):
                    self._outgoing[0] = view[count:]
                else:
                    self._outgoing.popleft()

    # --- reading ---------------------------------------------------------------------------

    def readable(self, now: float) -> bool:
        """Reads what there is; True if there may be more that the socket does not tell of."""
        if self._stage == "preamble":
            self._read_preamble()
        if self._stage == "tls":
            self._shake_hands()
        if self._stage != "frames":
            return False
        assert self.tunnel is not None
        for _ in range(READS):
            if self.paused:
                return False
            try:
                count = self.tunnel.receive_into(self._target[self._filled :])
            except BlockingIOError:
                return False
            if not count:
                raise ConnectionResetError("it closed the connection")
            self.heard = now
            self._filled += count
            if self._filled == len(self._target):
                self._filled_up()
        return True

    def _filled_up(self) -> None:
        """A header, an envelope or what it contains is complete."""
        if self._frame is None:
            self._frame = frame = Frame.read(self._header, self.limit)
            if not self.ready and frame.kind != HELLO:
                raise Refused("it did not say hello first")
            if frame.kind == DATA and frame.length < ENVELOPE.size:
                raise BadFrame("a message without an envelope")
            self._aim_at(self.envelope if frame.kind == DATA else space(frame.length))
        elif self._target is self.envelope:
            length = self._frame.length - ENVELOPE.size
            self._aim_at(self.on_message(self, length))
        else:
            frame, body, self._frame = self._frame, self._target, None
            self._target, self._filled = self._header, 0
            self.on_frame(self, frame, body)

    def _aim_at(self, target: memoryview) -> None:
        """Where the next bytes go."""
        self._target, self._filled = target, 0
        if not len(target):
            self._filled_up()

    def _read_preamble(self) -> None:
        """Whom the other end claims to be."""
        fixed = len(PREAMBLE) + SIZE.size
        while True:
            known = len(self._early) >= fixed
            length = SIZE.unpack_from(self._early, len(PREAMBLE))[0] if known else 0
            if known and not 0 < length <= MOST_CERTIFICATE:
                raise Refused("its certificate has an impossible length")
            wanted = fixed + length if known else fixed
            if known and len(self._early) == wanted:
                break
            try:
                got = self.sock.recv(wanted - len(self._early))
            except BlockingIOError:
                return
            if not got:
                raise ConnectionResetError("it closed the connection")
            self._early += got
            if not PREAMBLE.startswith(self._early[: len(PREAMBLE)]):
                raise Refused("it does not speak Parley's protocol")
        self._claimed = bytes(self._early[fixed:])
        self._begin_tls()

    def _begin_tls(self) -> None:
        holder = self.security.peers.holder(self._claimed)  # BadValue: nobody's
        if self.dialled is not None and holder != self.dialled:
            raise Refused(f"it has the certificate of {holder}, not of {self.dialled}")
        if holder == self.security.identity.name:
            raise Refused(f"it has the certificate of {holder}, as this peer has")
        self.name = holder
        serves = self.dialled is None
        context = self.security.context(self._claimed, serves)
        if serves:
            # A few hundred bytes into an empty buffer; were it full, this is no peer.
            if self.sock.send(self.security.preamble) < len(self.security.preamble):
                raise Refused("it does not read")
        elif self._outgoing:
            raise Refused("it answered before it was asked")
        self.tunnel = Tunnel(self.sock, context, serves)
        self._stage = "tls"

    def _shake_hands(self) -> None:
        assert self.tunnel is not None
        if not self.tunnel.shake_hands():
            return
        if self.tunnel.certificate() != self._claimed:
            raise Refused("it showed one certificate and used another")
        self._stage = "frames"
        self.on_encrypted(self)

    @property
    def encrypted(self) -> bool:
        """Whether the other end has proved that it holds its key, as far as TLS tells yet."""
        return self._stage == "frames"

    def close(self) -> None:
        """Without ceremony: what was not acknowledged is sent again elsewhere."""
        self.sock.close()
