"""The live page's server: what it lists, tells and pushes, and whom it refuses."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import parley
from parley.dash import runs as runs_module
from parley.dash.app import LOOPBACK, MOST_WATCHED, Stream, build, own_names
from parley.dash.graph import graph
from parley.dash.runs import NotThere, Refused, Runs
from parley.dash.serve import listen
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.store.folder import RunFolder
from parley.store.status import held
from tests.ports import free_ports
from tests.processes import Command

LOCAL = "http://127.0.0.1:8642"


@pytest.fixture(autouse=True)
def _look_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "SCAN_EVERY", 0.0)
    monkeypatch.setattr(runs_module, "REST", 0.0)


def write_run(path: Path, records: int = 3, **options: Any) -> RunFolder:
    """A run's folder as a run of so many epochs leaves it."""
    folder = RunFolder(path)
    folder.open(Experiment.of(**{"agents": 4, "epochs": 10, **options}), resume=False)
    for epoch in range(1, records + 1):
        folder.append(
            {
                "epoch": epoch,
                "loss": 1 / epoch,
                "accuracy_mean_model": 0.9,
                "distance_agents": [0.1 * epoch] * 4,
            }
        )
    return folder


def say(folder: RunFolder, **words: Any) -> None:
    (folder.path / "status.json").write_text(json.dumps(words))


def client(root: Path, **options: Any) -> TestClient:
    return TestClient(build(Runs(root), **options), base_url=LOCAL, follow_redirects=False)


def listed(root: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in Runs(root).listing()["runs"]}


# What is there


def test_runs_are_found_at_any_depth(tmp_path: Path) -> None:
    for name in ("one", "compare/ngc/seed-0", "compare/dpsgd/seed-1", "a/b/c/d"):
        write_run(tmp_path / name)
    (tmp_path / "compare/table.md").write_text("x")
    (tmp_path / "one/checkpoint/epoch-000001").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    write_run(tmp_path / ".hidden/run")
    found = listed(tmp_path)
    assert set(found) == {"one", "compare/ngc/seed-0", "compare/dpsgd/seed-1", "a/b/c/d"}
    row = found["compare/ngc/seed-0"]
    assert (row["group"], row["name"]) == ("compare", "ngc/seed-0")
    assert (row["label"], row["data"], row["agents"]) == ("NGC", "digits", 4)
    assert row["last"]["epoch"] == 3 and row["last"]["loss"] == pytest.approx(1 / 3)
    assert (found["one"]["group"], found["one"]["name"]) == ("", "one")


def test_the_folder_may_be_a_run_itself(tmp_path: Path) -> None:
    write_run(tmp_path / "mine")
    runs = Runs(tmp_path / "mine")
    (row,) = runs.listing()["runs"]
    assert (row["id"], row["name"]) == (".", "mine")
    assert runs.series(".")["x"] == [1, 2, 3]


def test_the_label_is_what_the_run_wrote_down_else_the_plain_name(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", algorithm="ngc", alpha=0.5)
    assert listed(tmp_path)["run"]["label"] == "NGC α=0.5"
    (folder.path / "environment.json").write_text('{"parley": "0.1.0"}')
    (folder.path / "experiment.toml").touch()
    assert listed(tmp_path)["run"]["label"] == "ngc"
    folder.finish({"label": "NGC α=0.5"})
    assert listed(tmp_path)["run"]["label"] == "NGC α=0.5"


def test_torch_is_not_needed(tmp_path: Path) -> None:
    """Importing it takes seconds and hundreds of megabytes."""
    write_run(tmp_path / "run")
    code = """
import sys
from pathlib import Path
from starlette.testclient import TestClient
from parley.dash.app import Stream, build
from parley.dash.runs import Runs
asked = TestClient(build(Runs(Path(sys.argv[1]))), base_url="http://127.0.0.1:8642")
assert asked.get("/api/runs").json()["runs"][0]["label"] == "NGC"
assert asked.get("/api/run", params={"run": "run"}).json()["graph"]["edges"]
assert asked.get("/api/series", params={"run": "run"}).json()["records"] == 3
assert "sections" in dict(Stream(Runs(Path(sys.argv[1])), ["run"]).look())
assert "torch" not in sys.modules and "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_folder_that_appears_later(tmp_path: Path) -> None:
    root = tmp_path / "later"
    asked = client(root)
    assert asked.get("/api/runs").json() == {
        "root": str(root), "there": False, "note": "", "runs": [],
    }  # fmt: skip
    write_run(root / "first", records=1)
    answer = asked.get("/api/runs").json()
    assert answer["there"] and [row["id"] for row in answer["runs"]] == ["first"]


def test_a_run_whose_experiment_is_damaged_or_of_another_version(tmp_path: Path) -> None:
    for name, text in (("damaged", "data = "), ("newer", 'warp = 9\nalgorithm = "hyper"\n')):
        folder = write_run(tmp_path / name)
        (folder.path / "experiment.toml").write_text(text)
        (folder.path / "environment.json").unlink()
    found = listed(tmp_path)
    assert found["damaged"]["note"] == "experiment.toml is damaged"
    assert (found["newer"]["label"], found["newer"]["note"]) == ("hyper", "")
    answer = client(tmp_path).get("/api/run", params={"run": "newer"}).json()
    assert answer["options"]["warp"] == 9 and answer["graph"]["places"] == []


def test_too_many_folders_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "MOST_FOLDERS", 3)
    for k in range(9):
        (tmp_path / f"{k}").mkdir()
    assert Runs(tmp_path).listing()["note"] == "only the first 3 folders are searched"


def test_the_last_record_is_found_behind_damage(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with (folder.path / "records.jsonl").open("ab") as file:
        file.write(b"\0" * 200_000 + b'\nnonsense\n{"epoch": 4, "lo')
    assert listed(tmp_path)["run"]["last"]["epoch"] == 3


# How it is doing

HERE = {"host": socket.gethostname(), "locked": True}
WHERE = {"step": 50, "steps": 100, "began": 0.0, "began_step": 0, "at": 10.0}


def state(tmp_path: Path, later: float = 1e6) -> dict[str, Any]:
    newest = max(p.stat().st_mtime for p in (tmp_path / "run").iterdir())
    (row,) = Runs(tmp_path, clock=lambda: newest + later).listing()["runs"]
    return {name: row[name] for name in ("state", "why", "done", "left")}


def test_finished(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    folder.finish({"loss": 1})
    assert state(tmp_path) == {"state": "finished", "why": "", "done": 1.0, "left": 0.0}


def test_running_and_died_are_told_apart_by_the_lock(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    say(folder, state="running", **HERE, **WHERE)
    with held(folder.path):
        assert state(tmp_path)["state"] == "running"
        assert state(tmp_path)["done"] == 0.5
    died = state(tmp_path, later=0.0)
    assert died["state"] == "died" and died["why"] == "its process ended without reporting why"
    assert died["left"] is None


def test_stopped_and_failed_say_so_until_resumed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    say(folder, state="failed", why="training has diverged", **HERE, **WHERE)
    failed = state(tmp_path)
    assert (failed["state"], failed["why"]) == ("failed", "training has diverged")
    say(folder, state="stopped", why="", **HERE, **WHERE)
    assert state(tmp_path)["state"] == "stopped"
    with held(folder.path):
        assert state(tmp_path)["state"] == "running"


@pytest.mark.parametrize("words", [{"host": "other", "locked": True}, {**HERE, "locked": False}])
def test_where_locks_cannot_be_seen_silence_counts(tmp_path: Path, words: dict[str, Any]) -> None:
    folder = write_run(tmp_path / "run")
    say(folder, state="running", **words, **WHERE)
    assert state(tmp_path, later=60)["state"] == "running"
    assert state(tmp_path, later=600)["state"] == "died"


def test_runs_of_older_versions(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    recent, old = state(tmp_path, later=60), state(tmp_path, later=600)
    assert (recent["state"], recent["done"], recent["left"]) == ("running", 0.3, None)
    assert (old["state"], old["done"]) == ("stopped", 0.3)


def test_time_left_is_that_of_the_rate_so_far(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    # 40 steps in 10 seconds since it was resumed; 50 are left, and it was 2 seconds ago.
    say(folder, state="running", **HERE, **{**WHERE, "began_step": 10})
    with held(folder.path):
        (row,) = Runs(tmp_path, clock=lambda: 12.0).listing()["runs"]
        assert row["left"] == round(50 * 10 / 40 - 2)
        say(folder, state="running", **HERE, step="x")
        (row,) = Runs(tmp_path, clock=lambda: 12.0).listing()["runs"]
        assert row["left"] is None


def test_a_damaged_status_or_summary(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder.path / "status.json").write_text("[1")
    (folder.path / "summary.json").write_text('{"half')
    assert state(tmp_path)["state"] == "stopped"


def test_a_real_run_while_active_and_after_it_was_killed(tmp_path: Path) -> None:
    long = ("train", "--agents=3", "--epochs=100000", "--evaluate-every=20")
    command = Command(tmp_path, *long, "--out", tmp_path / "runs/live")
    runs = Runs(tmp_path / "runs")

    def row() -> dict[str, Any]:
        rows = runs.listing()["runs"]
        return rows[0] if rows else {"state": "", "last": {}, "left": None}

    assert command.until(lambda: row()["left"] is not None and "epoch" in row()["last"])
    assert row()["state"] == "running" and 0 < row()["done"] < 1 and row()["left"] > 0
    about = runs.about("live")
    assert len(about["graph"]["places"]) == 3 and about["graph"]["edges"]
    frame = runs.series("live")["frames"][-1]
    assert len(frame["distance_agents"]) == len(frame["accuracy_agents"]) == 3
    command.send(signal.SIGKILL)
    command.wait()
    assert row()["state"] == "died"


# What is told


def test_series_of_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a run")
    asked = client(tmp_path)
    first = asked.get("/api/series", params={"run": "a run"}).json()
    assert first["x"] == [1, 2, 3] and first["fields"]["loss"] == [1, 0.5, 0.333333]
    assert first["frames"][-1]["distance_agents"] == pytest.approx([0.3] * 4)
    folder.append({"epoch": 4, "loss": 9})
    again = asked.get("/api/series", params={"run": "a run"}).json()
    assert (again["x"], len(again["frames"])) == ([1, 2, 3, 4], 3)


def test_a_stream_tells_each_thing_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    stream = Stream(Runs(tmp_path), ["run", "not-yet"])
    assert [kind for kind, _ in stream.look()] == ["runs", "about", "series", "sections"]
    assert stream.look() == []
    folder.append({"epoch": 4, "loss": 0.25})
    news = dict(stream.look())
    assert news.keys() == {"changes", "series", "sections"}
    assert [row["last"]["epoch"] for row in news["changes"]["changed"]] == [4]
    assert news["series"]["records"] == 4
    told = news["sections"]
    assert told["names"] == {"run": "NGC"} and "loss" in told["changed"]
    assert "graph" not in told["order"] and "0.25" in told["changed"]["loss"]
    write_run(tmp_path / "not-yet", records=1)
    news = stream.look()
    wanted = [("about", "not-yet"), ("series", "not-yet"), ("sections", None)]
    assert [(k, d.get("id")) for k, d in news[1:]] == wanted
    assert news[-1][1]["names"] == {"run": "NGC (run)", "not-yet": "NGC (not-yet)"}
    for path in (folder.path).iterdir():
        path.unlink()
    folder.path.rmdir()
    news = dict(stream.look())
    assert news["changes"]["gone"] == ["run"]
    assert stream.look() == []


def test_damage_is_told_when_it_happens(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    stream = Stream(Runs(tmp_path), ["run"])
    stream.look()
    with (folder.path / "records.jsonl").open("a") as file:
        file.write("nonsense\n")
    assert dict(stream.look())["series"]["damaged_lines"] == [4]


def test_curves_are_drawn_against_what_is_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "run").append({"epoch": 4, "loss": 0.25, "seconds": 2.5})
    for against, words in (("epoch", "over epoch:"), ("seconds", "over seconds of training:")):
        told = dict(Stream(Runs(tmp_path), ["run"], against).look())["sections"]
        assert words in told["changed"]["loss"], against


def test_what_cannot_be_drawn_does_not_end_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run")
    monkeypatch.setattr("parley.dash.app.drawn", lambda *_: 1 / 0)
    told = dict(Stream(Runs(tmp_path), ["run"]).look())
    assert "damaged" in told["sections"]["changed"]["damaged"] and "series" in told


def test_events_as_a_browser_gets_them(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    looks = iter([False, False, True])
    asked = client(tmp_path, closing=lambda: next(looks, True))
    answer = asked.get("/api/events", params={"watch": ["run"]})
    assert answer.headers["content-type"].startswith("text/event-stream")
    kinds = re.findall(r"^event: (\w+)$", answer.text, re.MULTILINE)
    assert kinds == ["runs", "about", "series", "sections"]
    data = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert data[2]["records"] == 3 and "<svg" in data[3]["changed"]["loss"]


def test_a_page_watches_only_so_many(tmp_path: Path) -> None:
    for k in range(MOST_WATCHED + 3):
        write_run(tmp_path / f"{k:02d}", records=1)
    looks = iter([False, False, True])
    asked = client(tmp_path, closing=lambda: next(looks, True))
    watch = [f"{k:02d}" for k in range(MOST_WATCHED + 3)]
    answer = asked.get("/api/events", params={"watch": watch})
    assert answer.text.count("event: series") == MOST_WATCHED


def test_two_hundred_runs(tmp_path: Path) -> None:
    """A list of bounded size, and nothing is read again that has not changed."""
    written = {path.name: path.read_text() for path in write_run(tmp_path / "one").path.iterdir()}
    for k in range(199):
        path = tmp_path / f"compare-{k % 4}/run-{k}"
        path.mkdir(parents=True)
        for name, text in written.items():
            (path / name).write_text(text)
    runs = Runs(tmp_path)
    listing = runs.listing()
    assert len(listing["runs"]) == 200
    assert len(json.dumps(listing)) < 200 * 900
    reads = []
    original = runs_module._read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_module, "_read", lambda path: reads.append(path) or original(path))
        patch.setattr(runs_module, "_last", lambda path: reads.append(path) or {})
        assert runs.listing() == listing
        assert reads == []
        RunFolder(tmp_path / "compare-1/run-5").append({"epoch": 3, "loss": 0.1})
        runs.listing()
        assert {path.parent.name for path in reads} == {"run-5"}


def test_the_graph_is_that_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("0 1\n1 2\n2 0\n2 3\n")
    for name, topology in (("named", "directed-ring"), ("file", f"file:{path}")):
        parley.train(
            agents=4, epochs=1, topology=topology, algorithm="dpsgd", out=tmp_path / name,
            progress=False,
        )  # fmt: skip
    named = Runs(tmp_path).about("named")["graph"]
    assert named["edges"] == [[3, 0], [0, 1], [1, 2], [2, 3]] and len(named["places"]) == 4
    assert named["drawing"].count('data-of="arrow"') == 4 and "samples" in named["drawing"]
    path.unlink()
    pairs = {tuple(sorted(e)) for e in Runs(tmp_path).about("file")["graph"]["edges"]}
    assert pairs == {(0, 1), (1, 2), (0, 2), (2, 3)}


def test_graphs_that_are_not_known_or_too_large(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0 1\n")
    options = {"agents": 2, "topology": f"file:{secret}"}
    assert "graph files named in a run are not opened" in graph(options, None)["note"]
    assert graph(options, None)["edges"] == [] and graph(options, None)["drawing"] == ""
    assert graph({"agents": 3}, {"edges": [[0, 9, 1.0]], "topology": "x"})["edges"] == []
    damaged = {"edges": "x", "topology": "torus:axb"}
    assert len(graph({"agents": 3, "topology": "ring"}, damaged)["edges"]) == 3, "the named one"
    assert graph({"agents": 3, "topology": "torus:axb"}, damaged)["note"]
    large = graph({"agents": 5000, "topology": "ring"}, None)
    assert large["note"] == "a graph of 5000 agents is too large to draw"
    dense = graph({"agents": 100, "topology": "full"}, None)
    assert dense["note"] == "4,950 edges are too many to draw" and dense["edges"] == []
    assert graph({"agents": "x"}, None)["places"] == []


# Whom it refuses


@pytest.mark.parametrize(
    "run",
    [
        "..", "../secret", "run/../../secret", "/etc", "link", "link/inner", "", "run\0x",
        "..\\secret", "run/./../..",
    ],
)  # fmt: skip
@pytest.mark.parametrize("what", ["/api/run", "/api/series"])
def test_nothing_outside_the_folder(tmp_path: Path, run: str, what: str) -> None:
    root = tmp_path / "runs"
    write_run(root / "run")
    write_run(tmp_path / "secret")
    write_run(tmp_path / "secret/inner")
    (root / "link").symlink_to(tmp_path / "secret")
    answer = client(root).get(what, params={"run": run})
    assert answer.status_code == 403
    assert "is not inside the runs folder" in answer.json()["error"]
    assert client(root).get("/api/events", params={"watch": run}).status_code == 403
    assert set(listed(root)) == {"run"}


def test_links_inside_a_run_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = write_run(root / "run")
    (tmp_path / "secret.json").write_text('{"epoch": 1, "loss": 123454321, "key": 1}\n')
    for name in ("records.jsonl", "environment.json", "status.json", "agents.json"):
        (folder.path / name).unlink(missing_ok=True)
        (folder.path / name).symlink_to(tmp_path / "secret.json")
    asked = client(root)
    texts = [asked.get(f"/api/{what}", params={"run": "run"}).text for what in ("run", "series")]
    assert "123454321" not in "".join([*texts, asked.get("/api/runs").text])


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    asked = client(tmp_path)
    for run in ("empty", "missing", "missing/too"):
        assert asked.get("/api/run", params={"run": run}).status_code == 404
    for path in ("/nothing", "/static/nothing.js", "/static/../app.py", "/static/..%2Fapp.py"):
        assert asked.get(path).status_code == 404
    assert asked.post("/api/runs").status_code == 405
    with pytest.raises(NotThere):
        Runs(tmp_path).folder("missing")
    with pytest.raises(Refused):
        Runs(tmp_path).folder("..")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", ""]
)
def test_a_foreign_name_is_refused(tmp_path: Path, host: str) -> None:
    """DNS rebinding: another site's name that leads to this address."""
    for path in ("/", "/api/runs", "/static/dash.js"):
        assert client(tmp_path).get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8642", "localhost:9", "[::1]:8642", "LOCALHOST"])
def test_this_machines_names_are_known(tmp_path: Path, host: str) -> None:
    assert client(tmp_path).get("/api/runs", headers={"host": host}).status_code == 200


def test_elsewhere_a_token_is_needed(tmp_path: Path) -> None:
    asked = client(tmp_path, names=None, token="secret-token")
    for path in ("/", "/api/runs", "/static/dash.js", "/?token=", "/?token=secret", "/api/events"):
        answer = asked.get(path)
        assert answer.status_code == 403 and "token" in answer.text
    wrong = {"cookie": "parley-8642=wrong"}
    assert asked.get("/api/runs", headers=wrong).status_code == 403
    welcome = asked.get("/?token=secret-token")
    assert (welcome.status_code, welcome.headers["location"]) == (303, "/")
    cookie = welcome.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert asked.get("/api/runs").status_code == 200
    for host in ("192.168.1.7:8642", f"{socket.gethostname()}:8642", "[fe80::1]:8642"):
        # The cookie is bound to the name; the names themselves are fine.
        answer = asked.get(
            "/api/runs", headers={"host": host, "cookie": "parley-8642=secret-token"}
        )
        assert answer.status_code == 200, host
    foreign = {"host": "evil.example", "cookie": "parley-8642=secret-token"}
    assert asked.get("/api/runs", headers=foreign).status_code == 421
    assert socket.gethostname().lower() in own_names() > LOOPBACK


def test_answers_may_not_be_used_elsewhere(tmp_path: Path) -> None:
    for path in ("/", "/api/runs", "/static/dash.js", "/missing"):
        headers = client(tmp_path).get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


# Serving


def test_a_port_that_is_taken_and_the_next_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with listen("127.0.0.1", port) as found:
            assert port < found.getsockname()[1] <= port + 100
    with listen("127.0.0.1", 0) as one, listen("127.0.0.1", 0) as other:
        assert one.getsockname()[1] != other.getsockname()[1]


@pytest.mark.parametrize("host", ["not a name", "203.0.113.7"])
def test_an_address_of_another_machine(host: str) -> None:
    with pytest.raises(BadValue, match=r"host: .* valid: a host name or address of this machine"):
        listen(host, 0)


def test_bad_flags(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for words, error in (
        (("--port", "x"), "port: 'x' is not valid; valid: a whole number from 0 to 65535"),
        (("--port", "70000"), "port: 70000 is not valid; valid: a whole number from 0 to 65535"),
        ((str(tmp_path / "file"),), "is not valid (it is a file); valid: a folder"),
    ):
        command = Command(tmp_path, "dash", *words)
        assert command.wait() == 2
        assert error in command.error()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Command, str]]:
    write_run(tmp_path / "runs/run")
    [port] = free_ports(1)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        command = Command(tmp_path, "dash", tmp_path / "runs", "--port", port, "--no-open")
        assert command.until(lambda: "press Ctrl-C to stop" in command.err), command.err
    assert f"port {port} is in use" in command.err
    yield command, re.findall(r"http://\S+", command.err)[0]
    command.send(signal.SIGKILL)
    command.wait()


def test_the_command_serves_and_ends_at_ctrl_c(served: tuple[Command, str]) -> None:
    """Also while a page is watching."""
    command, url = served
    assert url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(f"{url}api/runs", timeout=60) as answer:
        assert [row["id"] for row in json.load(answer)["runs"]] == ["run"]
    with urllib.request.urlopen(f"{url}api/events?watch=run", timeout=60) as stream:
        assert stream.readline() == b"retry: 1000\n"
        began = time.monotonic()
        command.send(signal.SIGINT)
        assert command.wait() == 0
        assert time.monotonic() - began < 60
    assert command.err.splitlines()[-1] == "ended"
    assert "Traceback" not in command.err and "Error" not in command.err
