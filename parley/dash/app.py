"""The web application: access, responses and live updates.

Everything is read-only. ``/api/events`` is a stream of server-sent events: the list of runs, then
changes to it, and updates on the runs that a page watches.
"""

import asyncio
import ipaddress
import json
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.charts.svg import stylesheet
from parley.dash.runs import NotThere, Refused, Row, Runs
from parley.dash.shown import drawn, names

log = logging.getLogger(__name__)

MOST_WATCHED = 12
"""Runs that one page can follow at a time."""
EVERY = 1.0
"""Seconds between looks at the files while a page is watching."""
REST = 4.0
"""After a look that took long, for how many times as long there is none."""
QUIET = 15.0
"""Seconds after which an idle stream sends a keep-alive."""

STATIC = {
    "charts.js": "text/javascript",
    "dash.js": "text/javascript",
    "base.css": "text/css",
    "dash.css": "text/css",
}
HEADERS = {
    # Charts set sizes and colours on their elements: styles, never scripts.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Admits only authorised requests.

    A page on another site can make a browser send requests here under a name of its own (DNS
    rebinding), so the requested name must be one of this machine's. If other machines can connect,
    a token is required too: once in the address, then in a cookie.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str] | None, token: str | None) -> None:
        self.app = app
        self.names = names
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(HTTPConnection(scope))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (refusal or self.app)(scope, receive, with_headers)

    def _refusal(self, asked: HTTPConnection) -> Response | None:
        if not self._is_ours(asked.headers):
            words = "This host name is not one of this machine's; use the address that was printed."
            return PlainTextResponse(words, 421)
        if self.token is None:
            return None
        cookie = f"parley-{(asked.scope.get('server') or ('', 0))[1]}"
        if self._is_token(asked.query_params.get("token", "")):
            welcome = RedirectResponse("/", 303)
            welcome.set_cookie(cookie, self.token, httponly=True, samesite="strict")
            return welcome
        if self._is_token(asked.cookies.get(cookie, "")):
            return None
        words = "A token is required: open the full address that parley dash printed."
        return PlainTextResponse(words, 403)

    def _is_token(self, given: str) -> bool:
        # Compared in constant time, so that it cannot be guessed letter by letter.
        return secrets.compare_digest(given.encode(), (self.token or "").encode())

    def _is_ours(self, headers: Headers) -> bool:
        name = _host_name(headers.get("host", ""))
        if self.names is not None:
            return name in self.names
        return _is_address(name) or name in own_names()


LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""The names under which a browser on this machine reaches it."""


def own_names() -> frozenset[str]:
    """The names under which others reach this machine."""
    name = socket.gethostname().lower()
    return LOOPBACK | {name, f"{name}.local", socket.getfqdn().lower()}


def _host_name(header: str) -> str:
    """The name in a Host header, without its port.

    >>> _host_name("localhost:8000"), _host_name("[::1]:8000"), _host_name("Example.com")
    ('localhost', '::1', 'example.com')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    """Whether a name is a numeric address, which cannot be rebound."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


Endpoint = Callable[[Request], Awaitable[Response]]


def _answering(endpoint: Endpoint) -> Endpoint:
    """Turns errors into plain-text responses."""

    async def wrapped(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refused as error:
            return JSONResponse({"error": str(error)}, 403)
        except NotThere as error:
            return JSONResponse({"error": str(error)}, 404)

    return wrapped


def build(
    runs: Runs,
    names: frozenset[str] | None = LOOPBACK,
    token: str | None = None,
    closing: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """The application for these runs.

    `names` are the host names it answers to (None: any address or name of this machine);
    `closing` tells streams that the server is shutting down.
    """

    async def page(request: Request) -> Response:
        return HTMLResponse(files("parley.dash").joinpath("page.html").read_text("utf-8"))

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name == "palette.css":
            return Response(stylesheet(), media_type="text/css")
        if name not in STATIC:
            return PlainTextResponse("not found", 404)
        return Response(files("parley.web").joinpath(name).read_bytes(), media_type=STATIC[name])

    async def listing(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(runs.listing))

    async def about(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(runs.about, _run(request)))

    async def series(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(runs.series, _run(request)))

    async def events(request: Request) -> Response:
        watched = list(dict.fromkeys(request.query_params.getlist("watch")))[:MOST_WATCHED]
        for run in watched:  # refused before the stream begins
            try:
                runs.folder(run)
            except NotThere:
                continue  # it may come back
        stream = Stream(runs, watched, request.query_params.get("against", ""))
        return StreamingResponse(stream.messages(closing), media_type="text/event-stream")

    routes = {"/api/runs": listing, "/api/run": about, "/api/series": series, "/api/events": events}
    app = Starlette(
        routes=[
            Route("/", page),
            Route("/static/{name}", static),
            *(Route(path, _answering(endpoint)) for path, endpoint in routes.items()),
        ]
    )
    return Guard(app, names, token)


def _run(request: Request) -> str:
    return request.query_params.get("run", "")


class Stream:
    """The updates for one page, each sent once."""

    def __init__(self, runs: Runs, watched: list[str], against: str = "") -> None:
        self.runs = runs
        self._against = against
        self._drawn: dict[str, str] = {}
        self._about: dict[str, dict[str, Any] | None] = dict.fromkeys(watched)
        self._series: dict[str, dict[str, Any] | None] = dict.fromkeys(watched)
        self._folder: dict[str, Any] = {}
        self._rows: dict[str, Row] | None = None

    async def messages(self, closing: Callable[[], bool]) -> AsyncIterator[str]:
        """Messages until the page is closed or the server shuts down."""
        yield "retry: 1000\n\n"
        silent = 0.0
        while not closing():
            began = time.monotonic()
            news = await run_in_threadpool(self.look)
            taken = time.monotonic() - began
            for kind, data in news:
                yield f"event: {kind}\ndata: {json.dumps(data)}\n\n"
            silent = 0.0 if news else silent + EVERY
            if silent >= QUIET:
                silent = 0.0
                yield ": still here\n\n"
            pause = EVERY + REST * taken  # training has the rest of the machine
            while pause > 0 and not closing():
                await asyncio.sleep(min(pause, 0.2))
                pause -= 0.2

    def look(self) -> list[tuple[str, Any]]:
        """What is new."""
        news: list[tuple[str, Any]] = []
        listed = self.runs.listing()
        rows = {row["id"]: row for row in listed["runs"]}
        folder = {name: listed[name] for name in ("root", "there", "note")}
        if self._rows is None:
            news.append(("runs", listed))
        else:
            changed = [row for key, row in rows.items() if self._rows.get(key) != row]
            gone = [key for key in self._rows if key not in rows]
            if changed or gone or self._folder != folder:
                news.append(("changes", {**folder, "changed": changed, "gone": gone}))
        self._rows, self._folder = rows, folder
        fresh = False
        for run in self._series:
            try:
                about, series = self.runs.about(run), self.runs.series(run)
            except (NotThere, Refused):
                continue
            if about is not self._about[run]:
                self._about[run] = about
                news.append(("about", about))
            if series is not self._series[run]:
                self._series[run] = series
                # Of the numbers a page needs those of agents alone: it may turn back their time.
                told = {name: v for name, v in series.items() if name not in ("x", "fields")}
                news.append(("series", told))
                fresh = True
        return [*news, *self._sections(rows)] if fresh else news

    def _sections(self, rows: dict[str, Row]) -> list[tuple[str, Any]]:
        """The sections whose drawings have changed, and the order of all of them."""
        there = [run for run, series in self._series.items() if series is not None and run in rows]
        called = dict(zip(there, names([rows[run] for run in there]), strict=True))
        try:
            made = drawn({called[run]: self.runs.recorded(run) for run in there}, self._against)
        except Exception as error:  # anything may be in these files, and the page has more to show
            log.warning("%s cannot be drawn: %s", ", ".join(there), type(error).__name__)
            made = {"damaged": '<p class="note">The files of a chosen run are damaged.</p>'}
        changed = {name: html for name, html in made.items() if self._drawn.get(name) != html}
        self._drawn = made
        return [("sections", {"order": list(made), "changed": changed, "names": called})]
