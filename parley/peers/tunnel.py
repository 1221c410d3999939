"""TLS over a socket that never blocks, in pieces much larger than a record.

The standard library's `SSLSocket` makes one system call for every record of 16 KB that it writes
and two for every one that it reads. Here records gather in memory first, so that a message of a
megabyte takes a few calls.
"""

import socket
import ssl
from contextlib import suppress
from typing import cast

PIECE = 1 << 18
"""Bytes that are encrypted or received at a time: several records that stay in the cache."""


class Tunnel:
    """What one end encrypts and the other decrypts.

    Whatever cannot go on for want of room or of bytes raises `BlockingIOError`.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, serves: bool) -> None:
        self._sock = sock
        self._received, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._encrypted, server_side=serves)
        self._leaving = memoryview(b"")

    def shake_hands(self) -> bool:
        """Goes on with the handshake as far as it can; whether both ends know each other now."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                with suppress(BlockingIOError):
                    self.flush()
                try:
                    self._receive()
                except BlockingIOError:
                    return False
            except ssl.SSLError:
                with suppress(OSError):
                    self.flush()  # tells the other end what is wrong
                raise
        with suppress(BlockingIOError):
            self.flush()
        return True

    def certificate(self) -> bytes | None:
        """The one that the other end has proved to hold the key of."""
        return self._tls.getpeercert(binary_form=True)

    def version(self) -> str | None:
        """Of TLS."""
        return self._tls.version()

    @property
    def unsent(self) -> bool:
        """Whether something that is encrypted waits to be sent."""
        return bool(len(self._leaving) or self._encrypted.pending)

    def flush(self) -> None:
        """Sends what is encrypted."""
        while self.unsent:
            if not len(self._leaving):
                self._leaving = memoryview(self._encrypted.read())
            self._leaving = self._leaving[self._sock.send(self._leaving) :]

    def send(self, view: memoryview) -> int:
        """Encrypts some bytes and begins to send them; how many, once there is room for any."""
        self.flush()
        count = self._tls.write(view[:PIECE])
        with suppress(BlockingIOError):
            self.flush()
        return count

    def receive_into(self, view: memoryview) -> int:
        """Decrypts what has come; how many bytes, 0 if the other end has closed the connection."""
        read, most, count, more = self._tls.read, len(view), 0, 0
        while count < most:
            try:
                found = cast(int, read(most - count, view[count:]))
            except ssl.SSLWantReadError:
                if count:
                    break
                if more:  # and yet no data: others have their turn, whatever else it sends
                    raise BlockingIOError from None
                if not (more := self._receive()):
                    return 0
            else:
                if not found:
                    break
                count += found
        return count

    def _receive(self) -> int:
        if found := self._sock.recv(PIECE):
            return self._received.write(found)
        self._received.write_eof()
        return 0
