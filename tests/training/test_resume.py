"""Every algorithm, stopped after an epoch and taken up by another process's worth of objects, gives
the records and the state of a run that was never stopped, bit for bit."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from parley.algorithms import ALGORITHMS
from parley.experiment import Experiment
from parley.store import checkpoint
from parley.training.events import EpochDone
from parley.training.problem import Problem, problem
from parley.training.record import Record
from parley.training.trainer import Trainer
from parley.wire.local import Local
from parley.wire.placement import spread

EPOCHS = 4
UPDATES = ["ngc+adamw", "dpsgd+clip+lion", "dpsgd+sam"]
NAMES = [
    *ALGORITHMS,
    *UPDATES,
    "ngc+qgm",
    "compngc+choco",
    "tracking+adagossip",
    "ngc+choco+push-sum",
]
OPTIONS: dict[str, dict[str, Any]] = {
    "fedavg": {"local_steps": 4},  # from one epoch into the next
    "swarmsgd": {"local_steps": 4},
    "proxskip": {"local_steps": 2},
    "qgm": {"local_steps": 2},  # ngc+qgm takes none
    "choco": {"local_steps": 4},  # a round is longer than an epoch
    "skewscout": {"travels": 2, "tolerance": 0.5},
}
TIMES = {"seconds", "gradients_per_second", "peak_memory_mb"}


def experiment_of(name: str) -> Experiment:
    return Experiment.of(
        algorithm=name, model="logistic", agents=4, topology="chain", epochs=EPOCHS, lr=0.2,
        lr_decay="exponential:0.5", fraction=0.05, test_fraction=0.1, batch=10, gossip_rounds=1,
        engine="loop", partition="skew:1", **OPTIONS.get(name, {}),
    )  # fmt: skip


@cache
def data() -> Problem:
    return problem(experiment_of("dpsgd"))


def run_of(name: str) -> Trainer:
    return Trainer(experiment_of(name), data(), Local(spread(data().topology, 1)))


def measured(run: Trainer, until: int = EPOCHS) -> list[Record]:
    """Trains up to an epoch; what was measured, without times."""
    found = []
    for event in run.events():
        if isinstance(event, EpochDone):
            assert event.record is not None
            found.append({k: v for k, v in event.record.items() if k not in TIMES})
            if event.epoch == until:
                break
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_taken_up_again_is_the_run_that_was_never_stopped(
    name: str, tmp_path: Path
) -> None:
    whole = run_of(name)
    expected = measured(whole)
    assert whole.steps_per_epoch == 3 and len(expected) == EPOCHS

    first = run_of(name)
    got = measured(first, until=2)
    checkpoint.save(tmp_path, 2, first.state, first.transport, first.about())
    second = run_of(name)
    second.restore(*checkpoint.load(tmp_path, 2, second.state, second.transport))
    got += measured(second)

    assert got == expected
    kept = checkpoint.flat(second.state)
    assert kept.keys() == checkpoint.flat(whole.state).keys()
    for field, value in checkpoint.flat(whole.state).items():
        assert torch.equal(kept[field], value), field
    assert second.about()["samples"] == whole.about()["samples"]
