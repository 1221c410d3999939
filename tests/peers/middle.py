"""Somebody between two peers: passes bytes on, keeps a copy, and can cut or change them."""

import contextlib
import socket
import threading


class Middle:
    """Listens, and passes everything on to another port of this host, both ways."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.seen = bytearray()
        """Everything that has passed, in both directions."""
        self.streams: list[bytearray] = []
        """What each dialler has sent."""
        self.spoil_after: int | None = None
        """Changes one byte after so many more from the dialler."""
        self.cut_after: int | None = None
        """Closes the connection after so many more from the dialler."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()  # nobody is there yet
                continue
            self._open += [near, far]
            stream = bytearray()
            self.streams.append(stream)
            threading.Thread(target=self._pass, args=(near, far, stream), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, None), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, stream: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.seen += data
                if stream is not None:
                    stream += data
                    data = self._changed(data)
                target.sendall(data)
                if self.cut_after is not None and self.cut_after <= 0:
                    self.cut_after = None
                    break
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _changed(self, data: bytes) -> bytes:
        if self.spoil_after is not None:
            self.spoil_after -= len(data)
            if self.spoil_after < 0:
                self.spoil_after = None
                return bytes([data[0] ^ 1]) + data[1:]
        if self.cut_after is not None:
            kept = data[: max(0, self.cut_after)]
            self.cut_after -= len(data)
            return kept if self.cut_after <= 0 else data
        return data

    def close(self) -> None:
        for one in (self._listener, *self._open):
            one.close()
