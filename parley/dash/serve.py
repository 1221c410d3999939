"""Serving the page: a free port, the address that is printed, the browser, and Ctrl-C."""

import asyncio
import errno
import ipaddress
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from parley.dash.app import LOOPBACK, build
from parley.dash.runs import Runs
from parley.errors import BadValue

REQUEST_IN = 10.0
"""Seconds within which a client must have sent a complete request."""
MOST_CONNECTIONS = 200
"""Connections at a time; more are answered with 503."""
TRIES = 100
"""How many further ports to try after the requested one."""


class Brisk(H11Protocol):
    """Closes connections on which no request has been completed for a while.

    A client that opens many and sends little would hold all of them; the server waits forever.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """From now on a request is expected."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is expected."""
        self._looking.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        busy = self.cycle is not None and not self.cycle.response_complete
        now = self.loop.time()
        if busy:
            self._idle_since = now
        elif now - self._idle_since > REQUEST_IN:
            self.transport.abort()
            return
        self._looking = self.loop.call_later(REQUEST_IN / 4, self._look)


class _Server(uvicorn.Server):
    """Calls back once it is listening."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()


def serve(root: Path, host: str, port: int, show: bool | None, say: Callable[[str], None]) -> None:
    """Serves the page for the runs below `root` until it is interrupted.

    `show` opens it in a browser; None does so if someone seems to be at this machine.
    """
    listening = listen(host, port)
    address, found = listening.getsockname()[:2]
    if port not in (0, found):
        say(f"port {port} is in use; using the next free one")
    local = ipaddress.ip_address(address).is_loopback
    token = None if local else secrets.token_urlsafe(24)
    url = _url(address, found, token)
    server: _Server
    app = build(
        Runs(root), LOOPBACK | {host.lower()} if local else None, token, lambda: server.should_exit
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        http=Brisk,
        limit_concurrency=MOST_CONNECTIONS,
    )

    def ready() -> None:
        if not root.is_dir():
            say(f"{root} does not exist yet; runs will be shown as they appear")
        if not local:
            say("anyone with the full address can see this page; the connection is not encrypted")
        say(f"runs in {root}: {url}")
        say("press Ctrl-C to stop")
        if show if show is not None else local and _has_browser():
            webbrowser.open(_url("127.0.0.1" if not local else address, found, token))

    server = _Server(config, ready)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # the intended way to stop it
    finally:
        listening.close()
    say("ended")


def listen(host: str, port: int) -> socket.socket:
    """A socket at the port, or at the next free one."""
    try:
        kind, _, _, _, (address, *_) = socket.getaddrinfo(
            host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise BadValue("host", host, "a host name or address of this machine") from None
    problem: OSError | None = None
    for candidate in range(port, min(port + TRIES, 65536)) if port else (0,):
        made = socket.socket(kind, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((address, candidate))
            made.listen(128)
        except OSError as error:
            made.close()
            problem = error
            if error.errno == errno.EADDRNOTAVAIL:  # not an address of this machine, on any port
                break
            continue
        return made
    because = (problem.strerror if problem else "") or "not free"
    if problem is not None and problem.errno == errno.EADDRNOTAVAIL:
        raise BadValue("host", host, "a host name or address of this machine", because)
    raise BadValue(
        "port", port, f"a free port, or one followed by a free port within {TRIES}", because
    )


def _url(address: str, port: int, token: str | None) -> str:
    if ipaddress.ip_address(address).is_unspecified:
        address = socket.gethostname()
    shown = f"[{address}]" if ":" in address else address
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def _has_browser() -> bool:
    """Whether opening one would not take over the terminal."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(name in os.environ for name in screens)
