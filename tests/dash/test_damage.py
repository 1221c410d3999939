"""Damaged runs and half-open requests: the rest is shown."""

import json
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from parley.dash import series, serve
from parley.dash.app import build
from parley.dash.runs import Runs
from parley.dash.series import Series
from tests.fuzz.damage import SPECIAL

WHOLE = Path(__file__).parents[1] / "digests" / "folders" / "finished"

DAMAGE: dict[str, tuple[str, str]] = {
    "NaN in the summary": ("summary.json", '{"label": "x", "epochs": NaN}'),
    "NaN in the status": ("status.json", '{"state": "running", "step": NaN, "steps": Infinity}'),
    "huge numbers": ("status.json", f'{{"step": {"9" * 400}, "steps": {"9" * 400}}}'),
    "a huge number of agents": ("experiment.toml", f"agents = {'9' * 400}\nepochs = {'9' * 400}\n"),
    "nan in the experiment": ("experiment.toml", "agents = nan\nepochs = inf\n"),
    "dates": ("experiment.toml", "epochs = 2020-01-01\ndata = 2020-01-01T00:00:00Z\n"),
    "deep nesting": ("environment.json", "[" * 100_000),
    "deep tables": ("experiment.toml", "a = " + "{a = " * 5000),
    "a key of many parts": ("experiment.toml", "a." * 300_000 + "a = 1"),
    "a number of many digits": ("experiment.toml", f"agents = 0x{'f' * 10_000}"),
    "half of a letter": ("environment.json", '{"label": "\\ud800"}'),
    "bytes": ("experiment.toml", "\udcff\udcfe"),
    "numbers for tables": ("agents.json", '{"held": [1, 2], "edges": 3, "topology": "tree:x"}'),
    "a name that does not fit": ("agents.json", '{"edges": [[0, 1, 1e999]], "topology": "torus"}'),
}


@pytest.fixture(params=DAMAGE)
def root(request: Any, tmp_path: Path) -> Path:
    for name in ("damaged", "whole"):
        shutil.copytree(WHOLE, tmp_path / name)
    file, content = DAMAGE[request.param]
    (tmp_path / "damaged" / "summary.json").unlink()
    (tmp_path / "damaged" / file).write_bytes(content.encode(errors="surrogateescape"))
    return tmp_path


def test_one_damaged_folder_does_not_hide_the_others(root: Path) -> None:
    client = TestClient(build(Runs(root)), "http://localhost")
    answer = client.get("/api/runs")
    assert answer.status_code == 200
    rows = {row["id"]: row for row in answer.json()["runs"]}
    assert rows.keys() == {"damaged", "whole"}
    assert rows["whole"]["state"] == "finished"
    for run in rows:
        for what in ("run", "series"):
            assert client.get(f"/api/{what}", params={"run": run}).status_code == 200
    assert len(client.get("/api/series", params={"run": "whole"}).json()["x"]) == 2


@pytest.mark.parametrize("what", sorted(SPECIAL))
def test_what_is_no_file_does_not_hide_the_others(what: str, tmp_path: Path) -> None:
    for name in ("damaged", "whole"):
        shutil.copytree(WHOLE, tmp_path / name)
    for name in ("records.jsonl", "experiment.toml", "environment.json", "agents.json"):
        (tmp_path / "damaged" / name).unlink()
        SPECIAL[what](tmp_path / "damaged" / name)
    client = TestClient(build(Runs(tmp_path)), "http://localhost")
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0
    assert {row["id"] for row in client.get("/api/runs").json()["runs"]} == {"damaged", "whole"}
    for run in ("damaged", "whole"):
        for about in ("run", "series"):
            assert client.get(f"/api/{about}", params={"run": run}).status_code == 200
    if before:
        assert len(list(Path("/proc/self/fd").iterdir())) <= before, "a file was left open"


def test_what_cannot_be_shown_has_a_note(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else may be wrong with a folder."""
    row = Runs._row

    def failing(self: Runs, path: Path) -> Any:
        if path.name == "damaged":
            raise AssertionError("nobody has thought of this")
        return row(self, path)

    monkeypatch.setattr(Runs, "_row", failing)
    listed = Runs(root).listing()["runs"]
    assert {r["id"]: r["note"] for r in listed} == {"damaged": "its files are damaged", "whole": ""}
    assert listed[0].keys() == listed[1].keys()


def test_a_line_that_is_too_long_is_passed_over_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "LONGEST", 1000)
    path = tmp_path / "records.jsonl"
    good = json.dumps({"epoch": 1, "loss": 0.5}) + "\n"
    path.write_text(good + '{"epoch": 2, "x": "' + "x" * 5000)
    told = Series("run", path)
    assert told.told()["records"] == 1
    assert told.told()["damaged_lines"] == [2]
    read = told.bytes_read
    for _ in range(5):
        told.told()
    assert told.bytes_read == read, "it is not read again and again"
    with path.open("a") as file:
        file.write('y"}\n' + good.replace("1", "3"))
    assert told.told()["x"] == [1, 3]
    assert told.told()["damaged"] == 1


def test_a_long_line_that_is_being_written_is_read_once_for_each_change(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"epoch": 1, "x": "' + "x" * 2_000_000)
    told = Series("run", path)
    for _ in range(4):
        assert told.told()["records"] == 0
    assert told.bytes_read < 2_100_000
    with path.open("a") as file:
        file.write('"}\n')
    assert told.told()["x"] == [1]


def test_a_long_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "AT_ONCE", 1000)
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps({"epoch": k}) + "\n" for k in range(200)))
    told = Series("run", path)
    seen = [told.told()["records"] for _ in range(6)]
    assert seen == sorted(seen) and 0 < seen[0] < 200 == seen[-1]


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(serve, "REQUEST_IN", 0.5)
    listening = serve.listen("127.0.0.1", 0)
    config = uvicorn.Config(
        build(Runs(tmp_path)), http=serve.Brisk, lifespan="off", log_level="warning"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(20)
    listening.close()


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\nHost: loc", b"POST /api/runs HTTP/1.1\r\nHost: localhost\r\n"
     b"Content-Length: 100000\r\n\r\nx"],
    ids=["nothing", "half a request", "half a body"],
)  # fmt: skip
def test_half_open_requests_are_closed(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as held:
        held.sendall(said)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as other:
            other.sendall(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert other.recv(100).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        try:
            while held.recv(1000):
                pass
        except ConnectionResetError:
            pass
        assert time.monotonic() - began < 25, "closed, not left to the socket's timeout"


def test_a_folder_whose_name_is_no_text_does_not_hide_the_others(tmp_path: Path) -> None:
    shutil.copytree(WHOLE, tmp_path / "whole")
    try:
        shutil.copytree(WHOLE, tmp_path / "odd\udcff")
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    answer = TestClient(build(Runs(tmp_path)), "http://localhost").get("/api/runs")
    assert answer.status_code == 200
    notes = {row["id"]: row["note"] for row in answer.json()["runs"]}
    assert notes == {"whole": "", "odd?": "the name of its folder is not in UTF-8"}
