"""Any peer may be killed, stopped or started again, the first included: the others go on, and all
end with the same records and the same account of who took part."""

import errno
import io
import json
import os
import shutil
import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import parley
from parley import user_code
from parley.errors import ParleyError
from parley.experiment import Experiment, read_file
from parley.files import write_atomically
from parley.peers import keys
from parley.peers.file import Peers
from parley.peers.join import join
from parley.peers.revisions import signed
from parley.store import checkpoint
from parley.training.events import Event, StepDone
from parley.training.problem import problem
from parley.watch import log
from tests import namespaces
from tests.faults import ATTACKS, HURRY, attack, lines, loaded, paced
from tests.peers.groups import NAMES, free_ports, write_group
from tests.peers.phases import BEFORE_TRAINING, PHASES, halt_at, stopped
from tests.processes import PATIENCE, process, until

OPTIONS = {"model": "logistic", "engine": "loop", "algorithm": "dpsgd", "epochs": 40, "batch": 64}
OPTIONS |= {"gossip_rounds": 1, "on_failure": "heal", "patience": 6.0}


def train(
    folder: Path, name: str, resume: bool, odd: str = "", place: str = "", own: str = "."
) -> None:
    """One peer, as slow as it must be for what is done to it; `odd`: one of `ATTACKS`, or that it
    becomes "slower" with every step, has test data of its "own test", or "killed" or "stopped" and
    one of `PHASES`. `place` is its
    namespace, `own` where it has its key and its peers.toml."""
    if place:
        namespaces.enter(place)
    if odd in ATTACKS:
        attack(odd)
    what, _, phase = odd.partition(" at ")
    if phase in PHASES:
        halt_at(phase, signal.SIGKILL if what == "killed" else signal.SIGSTOP)
    checkpoint.save_file = partial(written, checkpoint.save_file, folder / f"{name}.full")
    sys.stderr = io.TextIOWrapper((folder / f"{name}.err").open("ab"), line_buffering=True)
    log.show()
    os.environ[user_code.ALLOWED] = "tests.faults"
    peers = Peers.read(folder / own / "peers.toml")
    experiment = Experiment.of(**read_file(Path(peers.experiment)))
    places = {agent: str(folder / "data" / name) for agent in peers.peer[peers.number(name)].agents}
    load = partial(loaded, odd)
    if experiment.data == "own":
        load = partial(problem, places=places)
    watch = partial(slower if odd == "slower" else paced, folder)
    try:
        outcome = join(
            peers, experiment, name, folder / own, load, folder / name, resume,
            watch, file=folder / own / "peers.toml",
        )  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(outcome.summary))
    except ParleyError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(2)


def written(write: Any, full: Path, *given: Any) -> None:
    """Writes a file unless the disk is full."""
    if full.exists():
        raise OSError(errno.ENOSPC, "No space left on device")
    write(*given)


def slower(folder: Path, event: Event) -> None:
    """Takes twice as long with every step, until there is no need to."""
    if isinstance(event, StepDone):
        began = time.monotonic()
        while time.monotonic() - began < 0.05 * 2.0**event.step and not (folder / HURRY).exists():
            time.sleep(0.05)


class Trio:
    """Three peers in processes of their own."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        write_group(folder, [[0], [1], [2]], {**OPTIONS, **options})
        self.running: dict[str, Any] = {}

    def start_all(self, odd: str = "") -> None:
        """All three, of which the last is odd."""
        for name, how in zip(NAMES[:3], ("", "", odd), strict=True):
            self.start(name, odd=how)

    def start(self, name: str, resume: bool = False, odd: str = "", own: str = ".") -> None:
        self.running[name] = process(train, self.folder, name, resume, odd, "", own)

    def stop(self) -> None:
        for one in self.running.values():
            one.kill()
            one.join()

    def views(self, name: str) -> list[list[str]]:
        return [line["workers"] for line in lines(self.folder / name / "generations.jsonl")]

    def until_view(self, names: tuple[str, ...], members: list[str]) -> None:
        """Waits until these peers train in a view of these members."""

        def there() -> bool:
            return all(self.views(name)[-1:] == [members] for name in names)

        def over() -> bool:
            return any(self.running[name].exitcode is not None for name in names)

        assert until(there, over, pause=0.05), self.words()

    def end(self, names: Sequence[str] = NAMES[:3]) -> None:
        """All train to the end; checks that all tell the same story."""
        (self.folder / HURRY).touch()
        for name in names:
            self.running[name].join(PATIENCE)
            assert self.running[name].exitcode == 0, self.words()
        told = [lines(self.folder / name / "generations.jsonl") for name in names]
        assert told.count(told[0]) == len(names)
        records = [lines(self.folder / name / "records.jsonl") for name in names]
        assert records.count(records[0]) == len(names)
        epochs = read_file(self.folder / "experiment.toml")["epochs"]
        assert [record["epoch"] for record in records[0]] == list(range(1, epochs + 1))

    def words(self) -> str:
        found = sorted(self.folder.glob("*.err"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in found)


@pytest.fixture
def trio(tmp_path: Path) -> Any:
    made = Trio(tmp_path)
    made.start_all()
    yield made
    made.stop()


@pytest.mark.parametrize(("lost", "with_its_disk"), [("ward-a", False), ("ward-b", True)])
def test_the_others_go_on_without_a_lost_peer_and_it_comes_back(
    trio: Trio, lost: str, with_its_disk: bool
) -> None:
    """One is killed and its disk is gone, the other has no room left on its disk for a while."""
    everyone = list(NAMES[:3])
    others = tuple(name for name in everyone if name != lost)
    assert until(lambda: len(lines(trio.folder / "ward-c" / "records.jsonl")) > 0)
    full = trio.folder / f"{lost}.full"
    if with_its_disk:
        full.touch()
    else:
        trio.running[lost].kill()
    trio.running[lost].join(PATIENCE)
    trio.until_view(others, list(others))
    assert ("lost ward-b (it cannot write to its disk)" in trio.words()) == with_its_disk
    full.unlink(missing_ok=True)
    voted = json.loads((trio.folder / lost / "membership.json").read_text())["memory"]
    if not with_its_disk:
        shutil.rmtree(trio.folder / lost)
    trio.start(lost, resume=with_its_disk)
    trio.until_view(tuple(everyone), everyone)
    trio.end()
    assert trio.views(lost) == [everyone, list(others), everyone]
    kept = json.loads((trio.folder / lost / "membership.json").read_text())
    assert (kept["memory"] == voted) == with_its_disk  # or the view counts on a new one
    assert kept["views"][-1][2][everyone.index(lost)] == kept["memory"]


def test_a_peer_that_is_stopped_for_long_rejoins_by_itself(trio: Trio) -> None:
    everyone = list(NAMES[:3])
    assert until(lambda: len(lines(trio.folder / "ward-b" / "records.jsonl")) > 0)
    os.kill(trio.running["ward-c"].pid, signal.SIGSTOP)
    trio.until_view(("ward-a", "ward-b"), everyone[:2])
    os.kill(trio.running["ward-c"].pid, signal.SIGCONT)
    trio.until_view(tuple(everyone), everyone)
    trio.end()


def test_a_newcomer_joins_and_a_removed_peer_is_refused_by_signed_revisions(
    tmp_path: Path,
) -> None:
    """ward-c is removed, ward-d takes over its agent; two of three have signed."""
    trio = Trio(tmp_path)
    trio.start_all()
    try:
        assert until(lambda: len(lines(tmp_path / "ward-c" / "records.jsonl")) > 0)
        revise(tmp_path, 2, removed="ward-c", newcomer="ward-d", signers=["ward-a"])
        assert until(lambda: "signatures" in trio.words(), pause=0.1)  # one is not enough
        revise(tmp_path, 2, removed="ward-c", newcomer="ward-d", signers=["ward-a", "ward-b"])
        trio.start("ward-d")
        names = ["ward-a", "ward-b", "ward-d"]
        trio.until_view(tuple(names), names)
        trio.running["ward-c"].join(PATIENCE)
        assert trio.running["ward-c"].exitcode == 2
        assert "revision 2 of peers.toml removes ward-c" in (tmp_path / "ward-c.err").read_text()
        trio.start("ward-c", resume=True)  # with the new file, and then the others' refusal
        trio.running["ward-c"].join(PATIENCE)
        assert trio.running["ward-c"].exitcode == 2
        trio.end(names)
    finally:
        trio.stop()


def test_all_prepare_their_tables_as_at_the_start(tmp_path: Path) -> None:
    """Also a newcomer with other rows, and all of them in a run that is resumed with its rows."""
    first = np.random.default_rng(0).normal(50, 20, (4, 60))
    first[3] += 1000  # the newcomer's
    first[:, 0] = 40.0
    write_ages(tmp_path, first)
    options = {"target": "state", "labels": "healthy,ill"}
    trio = Trio(tmp_path, data="own", partition="own", data_options=options, batch=20)
    trio.start_all()
    try:
        trio.until_view(NAMES[:3], [*NAMES[:3]])
        revise(tmp_path, 2, removed="ward-c", newcomer="ward-d", signers=["ward-a", "ward-b"])
        trio.start("ward-d")
        names = ["ward-a", "ward-b", "ward-d"]
        trio.until_view(tuple(names), names)
        trio.stop()
        for name in names:
            trio.start(name, resume=True)
        trio.end(names)
        [form, *others] = [
            json.loads((tmp_path / name / "model.json").read_text())["input"]["table"]
            for name in names
        ]
        assert others == [form] * 2
        assert form["columns"][0]["mean"] == pytest.approx(first[:3].mean(), rel=1e-12)
        assert form["columns"][0]["std"] == pytest.approx(first[:3].std(), rel=1e-12)
    finally:
        trio.stop()


def write_ages(folder: Path, ages_NA: Any) -> None:
    """A table for each peer: people above 50 are ill."""
    for name, ages in zip(NAMES, ages_NA, strict=False):
        rows = [f"{age!r},{['ill', 'healthy'][age < 50]}" for age in ages.tolist()]
        (folder / "data" / name).mkdir(parents=True)
        for split in ("train", "test"):
            path = folder / "data" / name / f"{split}.csv"
            path.write_text("\n".join(["age,state", *rows]) + "\n")


def test_peers_continue_with_the_preparation_and_the_classes_of_a_run(tmp_path: Path) -> None:
    """One of them has nobody who is ill; none says anything about its own mean."""
    ages = np.random.default_rng(1).normal(50, 20, (3, 60))
    write_ages(tmp_path, ages)
    base, options = tmp_path / "base", {"target": "state"}
    given = {"agents": 2, "model": "logistic", "algorithm": "dpsgd", "epochs": 1, "seed": 0}
    data = str(tmp_path / "data" / "ward-a")
    parley.train(data=data, out=base, data_options=options, progress=False, **given)
    shutil.rmtree(tmp_path / "data")
    ages[2] = 30 + ages[2] / 100
    write_ages(tmp_path, ages + 2)
    more = {"init": str(base), "epochs": 2, "batch": 20}
    trio = Trio(tmp_path, data="own", partition="own", data_options=options, **more)
    (tmp_path / HURRY).touch()
    trio.start_all()
    try:
        trio.end()
    finally:
        trio.stop()
    kept = json.loads((base / "model.json").read_text())
    for name in NAMES[:3]:
        card = json.loads((tmp_path / name / "model.json").read_text())
        assert (card["input"], card["labels"]) == (kept["input"], ["healthy", "ill"])


def test_a_peer_that_sends_nonsense_is_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    trio = Trio(tmp_path, suspicious="drop")
    trio.start_all(odd="sends nan")
    try:
        trio.until_view(("ward-a", "ward-b"), ["ward-a", "ward-b"])
        trio.running["ward-c"].join(PATIENCE)
        assert trio.running["ward-c"].exitcode == 2
        said = (tmp_path / "ward-c.err").read_text()
        assert "the others continue without this peer: ward-" in said
        assert "reports of ward-c: suspicious: agent 2" in said
        trio.end(["ward-a", "ward-b"])
    finally:
        trio.stop()


def test_the_others_do_not_wait_for_a_peer_that_answers_ever_more_slowly(tmp_path: Path) -> None:
    trio = Trio(tmp_path)
    trio.start_all(odd="slower")
    try:
        trio.until_view(("ward-a", "ward-b"), ["ward-a", "ward-b"])
        assert until(lambda: "ward-c was lost; continuing without" in trio.words(), pause=0.1)
        trio.end()
    finally:
        trio.stop()


EARLY = ("agreement", "account")
MOMENTS = tuple(PHASES)[:-2] if "PARLEY_ROUNDS" in os.environ else EARLY
"""All of them take minutes."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_peer_that_is_killed_at_any_moment_comes_back(tmp_path: Path, moment: str) -> None:
    """It is started again at once, before the others have given it up or after."""
    # Until training begins the others wait for it, however long it takes on a busy machine.
    patience = 60.0 if moment in BEFORE_TRAINING else OPTIONS["patience"]
    trio = Trio(tmp_path, epochs=6, patience=patience)
    try:
        trio.start_all(odd=f"killed at {moment}")
        if moment in ("outputs", "summary"):
            (tmp_path / HURRY).touch()
        trio.running["ward-c"].join(PATIENCE)
        assert trio.running["ward-c"].exitcode == -signal.SIGKILL, trio.words()
        trio.start("ward-c", resume=True)
        trio.until_view(NAMES[:3], list(NAMES[:3]))
        trio.end()
    finally:
        trio.stop()


def test_a_peer_that_is_stopped_at_the_end_hears_that_it_is_over(tmp_path: Path) -> None:
    trio = Trio(tmp_path, epochs=2)
    try:
        (tmp_path / HURRY).touch()
        trio.start_all(odd="stopped at outputs")
        last = trio.running["ward-c"]
        assert until(lambda: stopped(last.pid), pause=0.05)
        summary = tmp_path / "ward-a" / "summary.json"
        assert until(summary.exists, pause=0.05)  # without the one that is stopped
        os.kill(last.pid, signal.SIGCONT)
        last.join(PATIENCE)
        assert last.exitcode == 2
        assert "the run has ended without this peer" in (tmp_path / "ward-c.err").read_text()
        trio.end(["ward-a", "ward-b"])
    finally:
        trio.stop()


def revise(
    folder: Path, revision: int, removed: str, newcomer: str, signers: Sequence[str]
) -> None:
    """Writes a newer peers.toml, in which a newcomer has the agents of one that is removed."""
    path = folder / "peers.toml"
    table = tomllib.loads(path.read_text())
    table.pop("signatures", None)
    kept = [peer for peer in table["peer"] if peer["name"] != newcomer]
    [old] = [peer for peer in kept if peer["name"] == removed]
    old["removed"] = True
    made = folder / f"{newcomer}.crt"
    identity = keys.find(newcomer, folder) if made.exists() else keys.new(newcomer, folder)
    fresh = {"name": newcomer, "agents": old["agents"], "key": identity.fingerprint}
    fresh["address"] = f"127.0.0.1:{free_ports(1)[0]}"
    table = {**table, "revision": revision, "peer": [*kept, fresh]}
    draft = Peers.of({**table, "experiment": str(folder / "experiment.toml")})
    own = {name: keys.find(name, folder) for name in signers}
    signatures = {n: signed(draft, one.certificate, one.key) for n, one in own.items()}
    write_atomically(path, tomli_w.dumps({**table, "signatures": signatures}))
