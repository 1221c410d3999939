"""What is suspicious is what no honest agent sends, and its sender is named."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from parley import graphs
from parley.experiment import Experiment
from parley.training.problem import problem
from parley.training.trainer import Trainer
from parley.wire.codec import Dense, TopK
from parley.wire.guard import KNOWN, Arrived, Guard, Suspicious
from parley.wire.local import Local
from parley.wire.placement import Placement, spread

SIZE = 200
CODEC = Dense(SIZE)


def models(count: int, spread: float = 0.1) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    common = torch.randn(SIZE, generator=torch.Generator().manual_seed(7))
    return common + spread * torch.randn(count, SIZE, generator=generator)


def exchange(
    arrived_RD: Tensor, own_AD: Tensor, step: int = 0, what: str = "models", reply: bool = False
) -> Arrived:
    """Agents 10, 11, … of worker 1 send to agent 0."""
    wire_RB, own_AB = CODEC.encode(arrived_RD), CODEC.encode(own_AD)
    senders = range(10, 10 + len(arrived_RD))
    own_RB = None if reply else own_AB[:1].expand(len(wire_RB), -1)
    workers = [1] * len(wire_RB)
    return Arrived(what, step, CODEC, wire_RB, senders, workers, own_RB, own_AB)


def changed(x_RD: Tensor, row: int, value: Tensor) -> Tensor:
    x_RD = x_RD.clone()
    x_RD[row] = value
    return x_RD


BAD = {
    "nan": (torch.full((SIZE,), torch.nan), "sent a model that is not finite"),
    "1e30": (torch.full((SIZE,), 1e30), "sent a model that is not finite"),
    "1e6": (torch.full((SIZE,), 1e6), "times as long as usual"),
    "negated": (-models(1)[0], "that has nothing to do with its neighbours'"),
    "noise": (torch.randn(SIZE), "that has nothing to do with its neighbours'"),
    "ten times": (12 * models(1)[0], "times as long as usual"),
    "five times": (5 * models(1)[0], "that has nothing to do with its neighbours'"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("steps", [0, 3, KNOWN + 1])
def test_a_bad_model_is_noticed_at_once(bad: str, steps: int) -> None:
    """With a history or without, as long as there is an honest neighbour to compare with."""
    value, words = BAD[bad]
    guard = Guard(torch.float32, "stop")
    for step in range(steps):
        guard.inspect(exchange(models(2), models(2), step))
    with pytest.raises(Suspicious, match=rf"agent 11 \(worker 1\) .*, step {steps + 1}$") as caught:
        guard.inspect(exchange(changed(models(2), 1, value), models(2), steps))
    assert words in str(caught.value)
    assert (caught.value.agent, caught.value.worker, caught.value.drop) == (11, 1, False)


@pytest.mark.parametrize("bad", ["nan", "1e6", "negated", "noise"])
def test_the_only_neighbour(bad: str) -> None:
    """It has its own history against it."""
    guard = Guard(torch.float32, "drop")
    for step in range(KNOWN):
        guard.inspect(exchange(models(1), models(1), step))
    with pytest.raises(Suspicious, match="agent 10") as caught:
        guard.inspect(exchange(BAD[bad][0][None], models(1), KNOWN))
    assert caught.value.drop


def quiet(guard: Guard, steps: Sequence[Arrived]) -> None:
    for arrived in steps:
        guard.inspect(arrived)
    assert not guard.counts


def test_honest_models_and_gradients() -> None:
    guard = Guard(torch.float32, "stop")
    quiet(guard, [exchange(models(3, s / 50), models(2, s / 50), s) for s in range(40)])
    # Gradients and differences point anywhere, and vary much.
    for step in range(60):
        scale = 10 ** torch.rand(3, 1)
        some = torch.randn(3, SIZE) * scale
        quiet(guard, [exchange(some, torch.randn(2, SIZE) * 5, step, "cross_gradients", True)])
    # An agent with 30 times as many samples as another, where every sample counts equally.
    weighted = Guard(torch.float32, "stop")
    weighted.weigh({10: 30.0, 11: 1.0})
    some = torch.ones(2, SIZE) * torch.tensor([[30.0], [1.0]])
    quiet(weighted, [exchange(some, torch.ones(1, SIZE), 0, "cross_gradients", True)])
    with pytest.raises(Suspicious, match="agent 11"):
        weighted.inspect(exchange(some.flip(0), torch.ones(1, SIZE), 1, "cross_gradients", True))
    zeros = torch.zeros(2, SIZE)
    quiet(guard, [exchange(zeros, zeros, 60), exchange(torch.randn(2, SIZE), zeros, 61)])


def test_a_gradient_that_is_far_too_long() -> None:
    guard = Guard(torch.float32, "stop")
    for step in range(KNOWN):
        guard.inspect(
            exchange(torch.randn(2, SIZE), torch.randn(2, SIZE), step, "cross_gradients", True)
        )
    bad = changed(torch.randn(2, SIZE), 0, 1e4 * torch.randn(SIZE))
    with pytest.raises(Suspicious, match=r"agent 10 .* sent a gradient that is .* times as long"):
        guard.inspect(exchange(bad, torch.randn(2, SIZE), KNOWN, "cross_gradients", True))


def test_a_warning_is_given_once_and_all_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(torch.float32)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            guard.inspect(exchange(changed(models(2), 1, -models(1)[0]), models(2), step))
    assert guard.counts == {11: 5}
    [line] = caplog.messages
    assert line.startswith("suspicious: agent 11 (worker 1) sent a model that has nothing to do")
    assert guard.first.endswith("step 1")


def test_bytes_that_are_no_message() -> None:
    """Of several, the one that cannot be decoded is named, whatever the policy."""
    codec = TopK((SIZE,), 0.05)
    wire_RB = codec.encode(models(3))
    wire_RB[1, -10:] = 255
    arrived = Arrived("models", 4, codec, wire_RB, [7, 8, 9], [1, 2, 3], None, wire_RB[:1])
    with pytest.raises(Suspicious, match=r"agent 8 \(worker 2\) sent positions .*, step 5$"):
        Guard(torch.float32).inspect(arrived)


def apart(*distances: float) -> Tensor:
    """Models of length 1 at these distances from the first unit vector, as the guard measures."""
    angles = 2 * torch.tensor(distances, dtype=torch.float64).asin()
    made = torch.zeros(len(distances), SIZE)
    made[:, 0], made[:, 1] = angles.cos(), angles.sin()
    return made


HONEST: dict[str, list[tuple[Sequence[float], Sequence[float], str]]] = {
    # Distances of what arrives and of what is here, as agents with one class each have them in
    # the first steps at a high learning rate, or after many steps alone.
    "QGM": [((0.52, 0.1), (0.0,), "models"), ((0.53, 0.13), (0.0,), "models")],
    "momentum tracking": [((0.86, 0.36), (0.0,), "cross_gradients")],
    "DiLoCo": [((0.61,), (0.0, 0.3, 0.17), "models")],
    "SwarmSGD": [((0.54,), (0.0, 0.05), "models"), ((0.6,), (0.0, 0.0), "models")],
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_agents_that_are_far_apart(name: str) -> None:
    guard = Guard(torch.float32, "stop")
    for step, (there, here, what) in enumerate(HONEST[name]):
        arrived = exchange(apart(*there), apart(*here), step, what)
        arrived.workers = range(1, 1 + len(there))
        guard.inspect(arrived)


def test_agents_of_one_worker_do_not_vouch_for_each_other() -> None:
    """Both send the opposite, and long messages: compared with the others, not with each other."""
    for bad in (-models(1), 12 * models(1)):
        guard = Guard(torch.float32, "stop")
        sent = torch.cat([bad.expand(3, -1), models(1)])
        arrived = exchange(sent, models(2))
        arrived.workers = [1, 1, 1, 2]
        with pytest.raises(Suspicious, match="agent 10"):
            guard.inspect(arrived)


@pytest.mark.parametrize(
    "bad",
    [torch.full((SIZE,), torch.nan), -models(1)[0], 1e6 * models(1)[0]],
    ids=list("abc"),
)
def test_what_is_averaged_over_all_agents_is_looked_at(bad: Tensor) -> None:
    """As FedAvg does, and every evaluation: it comes along no edge."""
    placement = Placement(graphs.ring(6), (0, 0, 1, 1, 2, 2), here=0)
    guard = Guard(torch.float32, "stop")
    good = models(6).double()
    guard.inspect_rows("models", 0, good, placement)
    with pytest.raises(Suspicious, match=r"agent 4 \(worker 2\) sent a model .*, step 2"):
        guard.inspect_rows("models", 1, changed(good, 4, bad.double()), placement)
    # Numbers that steer an algorithm are no models.
    guard.inspect_rows("models", 1, torch.tensor([[1.0], [0], [0], [9], [0], [1e6]]), placement)


@pytest.mark.parametrize("name", ["fedavg", "central", "dpsgd"])
def test_a_run_looks_at_what_it_averages(name: str) -> None:
    """A transport without edges to others, whose gathered rows are not what they should be."""

    class Forged(Local):
        def gather(self, values_A: Tensor) -> Tensor:
            if values_A.is_floating_point() and values_A.ndim == 2 and values_A.shape[1] > 2:
                return changed(values_A, 3, torch.full(values_A.shape[1:], torch.inf))
            return values_A

    experiment = Experiment.of(
        algorithm=name, agents=4, epochs=1, batch=512, model="logistic", gossip_rounds=0
    )
    made = problem(experiment, range(4))
    transport = Forged(spread(made.topology, 1))
    run = Trainer(experiment, made, transport)
    elsewhere = replace(transport.placement, worker_of=(0, 0, 1, 1))
    guard = Guard(torch.float32, "stop")
    run.transport.guard = guard
    seen = guard.inspect_rows
    guard.inspect_rows = lambda *given: seen(*given[:3], elsewhere)  # type: ignore[method-assign]
    with pytest.raises(Suspicious, match=r"agent 3 \(worker 1\) sent a \w+ that is not finite"):
        list(run.events())
