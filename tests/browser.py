"""A real browser for tests: Chromium without a window, what it complains of, and Axe.

    with browser() as chromium, page(chromium, url) as shown:
        shown.click("text=NGC")

Leaving `page` fails the test if the page wrote an error to the console, failed to load something,
or asked for anything outside the addresses it may use.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--force-color-profile=srgb", "--font-render-hinting=none",
)  # fmt: skip
PATIENCE = 60_000
"""Milliseconds that a busy machine may take for anything."""


def find_chromium() -> str | None:
    """The browser of this machine; ``PARLEY_CHROMIUM`` names another."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("PARLEY_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright; the test is skipped where either is missing."""
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium: install it (Debian: chromium), or set PARLEY_CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def page(
    chromium: Any,
    url: str,
    *,
    dark: bool = False,
    width: int = 1280,
    height: int = 900,
    allowed: tuple[str, ...] = (),
) -> Iterator[Any]:
    """A page in a fresh context; `allowed` are beginnings of addresses beside its own."""
    scheme = "dark" if dark else "light"
    context = chromium.new_context(
        color_scheme=scheme, viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE)
    shown = context.new_page()
    complaints: list[str] = []
    shown.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    shown.on(
        "console",
        lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    own = url if url.startswith("file:") else "/".join(url.split("/")[:3])

    def watch(request: Any) -> None:
        if not request.url.startswith((own, "data:", "blob:", *allowed)):
            complaints.append(f"asked for {request.url}")

    shown.on("request", watch)
    try:
        shown.goto(url, wait_until="load")
        yield shown
        assert not complaints, complaints
    finally:
        context.close()


def faults(shown: Any) -> list[str]:
    """What Axe finds wrong for people with disabilities, serious or worse, one line each."""
    axe = pytest.importorskip("axe_playwright_python")
    script = Path(axe.__file__).parent / "axe.min.js"
    shown.evaluate(script.read_text(encoding="utf-8") + "; undefined")
    found = shown.evaluate("() => axe.run({resultTypes: ['violations']})")
    return [
        f"{fault['id']} ({fault['impact']}): {node['target']} {node['failureSummary']}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


def overflow(shown: Any) -> int:
    """By how many pixels the page is wider than its window."""
    return int(
        shown.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
    )
