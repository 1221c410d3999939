"""Whatever stops a run, resuming it gives exactly the numbers it would have had."""

import random
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from parley import graphs
from parley.algorithms import CompNGC
from parley.errors import ParleyError
from parley.graphs import Topology
from parley.store import checkpoint
from parley.wire.local import Local
from parley.wire.placement import Placement, spread
from tests import small
from tests.processes import Command, recorded, records

EPOCHS = 24
RUN = (
    "train", "--algorithm", "compngc", "--momentum", "0.9", "--agents", "5", "--epochs", EPOCHS,
    "--batch", "64", "--partition", "iid", "--gossip-rounds", "1", "--json",
)  # fmt: skip
"""A compressed algorithm, whose errors are part of its state."""

ABOUT = {"epoch": 3, "seconds": 1.5, "samples": 70}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def saved(run: Path, topology: Topology | None = None, epoch: int = 3) -> tuple[Any, Local]:
    topology = topology or graphs.ring(4)
    hood = small.hood(topology)
    _, state = small.trajectory(CompNGC(), hood, 2)
    checkpoint.save(run, epoch, state, hood.transport, ABOUT)
    assert isinstance(hood.transport, Local)
    return state, hood.transport


def equal(a: Any, b: Any) -> bool:
    one, other = checkpoint.flat(a), checkpoint.flat(b)
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


class TestFiles:
    def test_what_is_saved_is_loaded(self, tmp_path: Path) -> None:
        state, transport = saved(tmp_path)
        template = state._replace(
            x_AD=torch.zeros_like(state.x_AD),
            gradient=type(state.gradient)(*map(torch.zeros_like, state.gradient)),
        )
        loaded = checkpoint.load(tmp_path, 3, template, transport)
        assert equal(loaded.state, state)
        assert state.gradient.e_ID.abs().max() > 0
        assert loaded.about == ABOUT
        assert loaded.sent.keys() == transport.sent.keys()
        for kind, value in transport.sent.items():
            assert torch.equal(loaded.sent[kind], value)
            assert (value > 0).all() or kind == "evaluation", "nothing was sent, so nothing is seen"

    @pytest.mark.parametrize("worker_of", [(0, 0, 1, 1), (1, 0, 1, 2), (3, 2, 1, 0)])
    def test_another_placement_finds_its_rows(
        self, tmp_path: Path, worker_of: tuple[int, ...]
    ) -> None:
        """Written by several workers, read by one, and the other way round."""
        state, whole = saved(tmp_path)
        topology = whole.topology
        order = [topology.edges[e] for r in whole.edges.incoming_of for e in r]
        samples = 0.0
        for here in range(max(worker_of) + 1):
            part = Local(Placement(topology, worker_of, here))
            agents = list(part.placement.agents)
            edges = [order.index(topology.edges[e]) for r in part.edges.incoming_of for e in r]
            e_AD, e_ID = state.gradient
            mine = state._replace(
                x_AD=state.x_AD[agents],
                gradient=type(state.gradient)(e_AD[agents], e_ID[edges]),
                update=type(state.update)(state.update.v_AD[agents]),
            )
            loaded = checkpoint.load(tmp_path, 3, mine, part)
            assert equal(loaded.state, mine)
            samples += loaded.about["samples"]
            for kind, value in part.sent.items():
                value.copy_(whole.sent[kind][agents])
            checkpoint.save(tmp_path, 4, mine, part, ABOUT | {"samples": len(agents)})
            assert checkpoint.newest(tmp_path, part) == 4
            assert checkpoint.newest(tmp_path, whole) == (4 if here == max(worker_of) else 3)
        assert samples == pytest.approx(70)
        back = checkpoint.load(tmp_path, 4, state, whole)
        assert equal(back.state, state)
        assert back.about["samples"] == pytest.approx(4)

    def test_an_epoch_that_only_some_workers_wrote_is_passed_over(self, tmp_path: Path) -> None:
        state, whole = saved(tmp_path, epoch=3)
        half = Local(Placement(whole.topology, (0, 0, 1, 1), 1))
        checkpoint.save(tmp_path, 4, state, half, ABOUT)
        assert checkpoint.epochs_present(tmp_path) == [3, 4]
        assert checkpoint.newest(tmp_path, whole) == 3
        checkpoint.drop_after(tmp_path, 3)
        assert checkpoint.epochs_present(tmp_path) == [3]

    def test_the_two_newest_are_kept(self, tmp_path: Path) -> None:
        for epoch in range(1, 6):
            saved(tmp_path, epoch=epoch)
            checkpoint.prune(tmp_path, epoch)
        assert checkpoint.epochs_present(tmp_path) == [4, 5]
        saved(tmp_path, epoch=6)
        checkpoint.prune(tmp_path, 5)  # a slower worker does not yet count what a faster one wrote
        assert checkpoint.epochs_present(tmp_path) == [4, 5, 6]

    def test_stale_and_foreign_files_do_no_harm(self, tmp_path: Path) -> None:
        state, transport = saved(tmp_path)
        for name in ("epoch-000003/worker-0.partial", "epoch-000009/worker-0.partial"):
            path = tmp_path / "checkpoint" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"half")
        (tmp_path / "checkpoint" / "epoch-old").mkdir()
        assert checkpoint.newest(tmp_path, transport) == 3
        saved(tmp_path)
        assert not (tmp_path / "checkpoint/epoch-000003/worker-0.partial").exists()
        assert equal(checkpoint.load(tmp_path, 3, state, transport).state, state)

    def test_every_flipped_byte_is_noticed(self, tmp_path: Path) -> None:
        state, transport = saved(tmp_path, graphs.ring(3))
        (path,) = tmp_path.rglob("*.safetensors")
        whole = path.read_bytes()
        generator = random.Random(0)
        header = 8 + int.from_bytes(whole[:8], "little")
        places = [*range(0, header, 3), *generator.sample(range(header, len(whole)), 150)]
        for place in places:
            changed = bytearray(whole)
            changed[place] ^= 1 << generator.randrange(8)
            path.write_bytes(changed)
            self.refused(path, state, transport)
        for length in [0, 1, 7, 8, 40, header, header + 1, len(whole) - 1]:
            path.write_bytes(whole[:length])
            self.refused(path, state, transport)
        path.write_bytes(whole)
        assert equal(checkpoint.load(tmp_path, 3, state, transport).state, state)

    def refused(self, path: Path, state: Any, transport: Local) -> None:
        with pytest.raises(ParleyError) as caught:
            checkpoint.load(path.parents[2], 3, state, transport)
        words = str(caught.value)
        assert words.startswith(f"checkpoint: {path} is damaged (")
        assert words.endswith(f"remove {path.parent} to continue from the checkpoint before it")

    def test_another_graph(self, tmp_path: Path) -> None:
        state, _ = saved(tmp_path, graphs.ring(4))
        other = Local(spread(graphs.star(4), 1))
        errors = state.gradient
        cut = state._replace(gradient=errors._replace(e_ID=errors.e_ID[:6]))
        with pytest.raises(
            ParleyError, match="has nothing for edge 0 -> 2: it is from a different"
        ):
            checkpoint.load(tmp_path, 3, cut, other)

    def test_another_model(self, tmp_path: Path) -> None:
        state, transport = saved(tmp_path)
        with pytest.raises(ParleyError, match=r"from a different model or algorithm \(x_AD\)"):
            checkpoint.load(tmp_path, 3, state._replace(x_AD=state.x_AD[:, 1:]), transport)

    def test_one_of_an_earlier_version(self, tmp_path: Path) -> None:
        """Its states were flat: v_AD, where it is update.v_AD now."""
        state, transport = saved(tmp_path)

        class Flat(NamedTuple):
            x_AD: Tensor
            v_AD: Tensor

        checkpoint.save(tmp_path, 3, Flat(state.x_AD, state.update.v_AD), transport, ABOUT)
        with pytest.raises(ParleyError, match=r"cannot be resumed \(it was written by an earlier"):
            checkpoint.load(tmp_path, 3, state, transport)

    def test_a_state_whose_fields_share_memory(self, tmp_path: Path) -> None:
        state, transport = saved(tmp_path)
        shared = state._replace(update=state.update._replace(v_AD=state.x_AD))
        checkpoint.save(tmp_path, 3, shared, transport, ABOUT)
        assert equal(checkpoint.load(tmp_path, 3, state, transport).state, shared)

    def test_a_field_without_axes(self, tmp_path: Path) -> None:
        class State(NamedTuple):
            x_AD: Tensor
            count: Tensor

        with pytest.raises(
            TypeError, match="count: the name of a state's field must end in its axes"
        ):
            transport = Local(spread(graphs.ring(3), 1))
            checkpoint.save(tmp_path, 1, State(torch.ones(3, 2), torch.ones(3)), transport, ABOUT)

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoint").write_text("a file")
        with pytest.raises(ParleyError, match="cannot be written"):
            saved(tmp_path)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def uninterrupted(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    command = Command(logs, *RUN, "--out", out)
    assert command.wait() == 0, command.err
    assert [r["epoch"] for r in records(out)] == list(range(1, EPOCHS + 1))
    return out


def killed_until_done(logs: Path, out: Path, signals: list[int], *more: object) -> list[int]:
    """Starts the run, ends it after some epochs by the next of the signals, resumes it, and so on.

    Returns the exit codes.
    """
    generator = random.Random(str(out.name))
    codes: list[int] = []
    resume: list[str] = []
    while True:
        command = Command(logs, *RUN, "--out", out, *more, *resume)
        goal = recorded(out) + generator.randrange(2, EPOCHS // len(signals))
        if len(codes) < len(signals) and command.until(lambda: recorded(out) >= goal):  # noqa: B023
            # At any moment: within a step, an evaluation, or while a file is written.
            command.process.join(generator.random() * 0.03)
            command.send(signals[len(codes)])
        codes.append(command.wait())
        assert command.nothing_left()
        if codes[-1] == 0:
            return codes
        assert "Traceback" not in command.err
        resume = ["--resume"]


def test_killed_at_any_moment_it_ends_with_the_same_numbers(
    logs: Path, tmp_path: Path, uninterrupted: Path
) -> None:
    signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL]
    out = tmp_path / "killed"
    codes = killed_until_done(logs, out, [*signals])
    assert len(codes) > 1, "the run was over before any signal came"
    for number, code in zip(signals, codes[:-1], strict=False):
        assert code in (-number, 128 + number)
    assert records(out) == records(uninterrupted)


def test_a_complete_run_just_shows_its_summary(logs: Path, uninterrupted: Path) -> None:
    before = contents(uninterrupted)
    command = Command(logs, *RUN, "--out", uninterrupted, "--resume")
    assert command.wait() == 0
    assert command.err == ""
    assert command.summary["loss"] == records(uninterrupted)[-1]["loss"]
    assert contents(uninterrupted) == before


def test_damage_is_named_nothing_is_changed_and_the_remedy_works(
    logs: Path, uninterrupted: Path
) -> None:
    """Also with a record that was cut off, an unfinished file, and no summary."""
    out = uninterrupted
    (out / "summary.json").unlink()
    with (out / "records.jsonl").open("a") as file:
        file.write('{"epoch": 25, "st')
    (out / "checkpoint" / f"epoch-{EPOCHS:06d}" / "worker-7.partial").write_bytes(b"half")
    expected = records(out)
    newest = checkpoint.folder(out, EPOCHS) / "worker-0.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[-3] ^= 16
    newest.write_bytes(damaged)
    before = contents(out)
    command = Command(logs, *RUN, "--out", out, "--resume")
    assert command.wait() == 2
    words = command.error()
    assert words.startswith(f"checkpoint: {newest} is damaged (")
    assert f"remove {newest.parent} to continue" in words
    assert contents(out) == before

    for path in newest.parent.iterdir():
        path.unlink()
    newest.parent.rmdir()
    command = Command(logs, *RUN, "--out", out, "--resume")
    assert command.wait() == 0, command.err
    assert records(out) == expected
    assert command.summary["loss"] == expected[-1]["loss"]


@pytest.mark.parametrize("said", [[-1], [10**12], [2, 3]])
def test_a_worker_that_says_what_cannot_be_is_named(tmp_path: Path, said: list[int]) -> None:
    """It would be asked again without end."""
    saved(tmp_path)

    class Liar(Local):
        def gather(self, values_A: Tensor) -> Tensor:
            rows = super().gather(values_A)
            rows[3] = said.pop(0) if len(said) > 1 else said[0]
            return rows

    with pytest.raises(ParleyError, match=r"agent 3 \(worker 0\) reported a checkpoint"):
        checkpoint.newest(tmp_path, Liar(spread(graphs.ring(4), 1)))
