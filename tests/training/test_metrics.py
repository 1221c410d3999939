"""Every figure of a record against a computation of its own, in numpy or plain torch."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import parley
from parley import graphs, measures
from parley.compute.engine import LoopEngine
from parley.compute.goals import Goal
from parley.compute.task import Task
from parley.compute.trial import tried
from parley.data import Batches, Samples, Transform
from parley.neighbourhood import Neighbourhood
from parley.stopping import Callbacks
from parley.training import metrics
from parley.training.problem import Problem
from parley.training.reports import Reports
from parley.training.trainer import Trainer, asked
from parley.wire.guard import Guard
from parley.wire.local import Local
from parley.wire.placement import Placement, spread
from tests.small import CLASSES, FEATURES, samples

AGENTS, BATCH, EPOCHS = 5, 4, 3
FIELDS = {
    "epoch", "step", "lr", "loss", "loss_train", "accuracy_mean_model", "accuracy_own",
    "accuracy_own_min", "accuracy_own_max", "accuracy_after_gossip", "accuracy_agents",
    "distance_agents", "test_samples",
    "consensus_distance", "bytes_models", "bytes_cross_gradients", "seconds",
    "gradients_per_second", "peak_memory_mb",
}  # fmt: skip
HEADER = 32


def linear():
    torch.manual_seed(7)
    return nn.Linear(FEATURES, CLASSES)


def held_out():
    generator = torch.Generator().manual_seed(9)
    inputs = torch.randn(41, FEATURES, generator=generator) + 1
    return inputs, torch.randint(CLASSES, (41,), generator=generator)


def run(algorithm, **options):
    data = [(s.inputs.float(), s.targets) for s in samples(AGENTS)]
    return parley.train(
        model=linear, data=data, topology=parley.star(AGENTS), algorithm=algorithm,
        test=held_out(), epochs=EPOCHS, batch=BATCH, lr=0.3, dtype="float64", gossip_rounds=7,
        progress=False, **options,
    )  # fmt: skip


def score(x):
    """Loss and accuracy of a linear model given as one vector."""
    inputs, targets = (part.numpy().astype(float) for part in held_out())
    targets = targets.astype(int)
    weight, bias = x[: FEATURES * CLASSES].reshape(CLASSES, FEATURES), x[FEATURES * CLASSES :]
    logits = inputs @ weight.T + bias
    log_sum = np.log(np.exp(logits).sum(1))
    loss = (log_sum - logits[np.arange(len(targets)), targets]).mean()
    return loss, (logits.argmax(1) == targets).mean()


def test_scores_are_those_of_the_models():
    result = run("ngc", gamma=0.6)
    x = result.x_ND.numpy()
    last = result.records[-1]
    assert last.keys() == FIELDS
    assert last["test_samples"] == len(held_out()[1])
    loss, accuracy = score(x.mean(0))
    assert last["loss"] == pytest.approx(loss, abs=1e-12)
    assert last["accuracy_mean_model"] == accuracy
    own = [score(row)[1] for row in x]
    assert last["accuracy_own"] == pytest.approx(np.mean(own))
    assert (last["accuracy_own_min"], last["accuracy_own_max"]) == (min(own), max(own))
    assert last["accuracy_agents"] == pytest.approx(own, abs=1e-6)
    # Seven gossip rounds at the averaging rate of the run.
    w = parley.star(AGENTS).weights
    rounds = np.linalg.matrix_power(np.eye(AGENTS) + 0.6 * (w - np.eye(AGENTS)), 7)
    assert last["accuracy_after_gossip"] == pytest.approx(
        np.mean([score(row)[1] for row in rounds @ x])
    )
    distance = np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
    assert last["consensus_distance"] == pytest.approx(distance, abs=1e-12)
    apart = np.linalg.norm(x - x.mean(0), axis=1)
    assert last["distance_agents"] == pytest.approx(apart, rel=1e-5)
    summary = result.summary
    lists = {"accuracy_agents", "distance_agents"}
    assert all(summary[k] == last[k] for k in FIELDS - {"epoch", *lists})
    assert not lists & set(summary)


D = FEATURES * CLASSES + CLASSES


@pytest.mark.parametrize("at_once", [1 << 24, 41 * CLASSES * 2])
def test_one_pass_scores_every_model_and_the_same_model_once(at_once, monkeypatch):
    monkeypatch.setattr(metrics, "MOST_OUTPUTS", at_once)
    inputs, targets = held_out()
    task = Task(linear(), dtype=torch.float64)
    engine = LoopEngine(tried(task, "linear", inputs[:4].double(), targets[:4], CLASSES))
    placement = Placement(graphs.ring(2), (0, 0), here=0)
    monkeypatch.setattr(metrics, "CHUNK", 41)
    test = metrics.TestSet(Samples(*held_out()), Transform(), engine, Local(placement))
    own_AE = engine.task.start() * torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    mean_E, asked = own_AE.mean(0), []
    evaluated = engine.predict
    monkeypatch.setattr(engine, "predict", lambda *a: asked.append(a[0]) or evaluated(*a))
    found = test.everything(own_AE, own_AE.flip(0), mean_E)
    assert len(asked) == 3 and test._together == (2 if at_once < 1 << 20 else at_once // 41 // 3)
    assert torch.equal(found.own_NM, test.everyone(own_AE))
    assert torch.equal(found.gossiped_NM, found.own_NM.flip(0))
    assert found.mean_M == test.score(mean_E) != found.own_NM[0].tolist()
    alone = test.everything(own_AE[:1], own_AE[:1], own_AE[0])
    assert alone.mean_M == alone.own_NM[0].tolist() == alone.gossiped_NM[0].tolist()


@pytest.mark.parametrize(
    ("algorithm", "options", "reply"),
    [
        ("dpsgd", {}, 0),
        ("ngc", {}, HEADER + 8 * D),
        ("ngc", {"alpha": 0}, 0),
        ("cga", {}, HEADER + 8 * D),
        ("compngc", {}, HEADER + 8 + (D + 7) // 8),
        ("compcga", {"scope": "tensor"}, HEADER + 2 * 8 + (D + 7) // 8),
    ],
)
def test_bytes_are_messages_times_their_length(algorithm, options, reply):
    records = run(algorithm, **options).records
    steps_per_epoch = -(-max(len(s) for s in samples(AGENTS)) // BATCH)
    # A star of five agents has eight directed edges. Evaluation and its gossip do not count.
    messages = 8 / AGENTS
    assert len(records) == EPOCHS
    for epoch, record in enumerate(records, start=1):
        steps = epoch * steps_per_epoch
        assert record["step"] == steps
        assert record["bytes_models"] == pytest.approx(steps * messages * (HEADER + 8 * D))
        assert record["bytes_cross_gradients"] == pytest.approx(steps * messages * reply)


def make_run(algorithm, **options):
    experiment = parley.Experiment.of(
        algorithm=algorithm, agents=AGENTS, epochs=EPOCHS, batch=BATCH, lr=0.3, dtype="float64",
        topology="star", gossip_rounds=1, **options,
    )  # fmt: skip
    everyone = samples(AGENTS)
    problem = Problem(
        parley.star(AGENTS), linear, everyone, everyone[0], Transform(), ("0", "1", "2")
    )
    return Trainer(experiment, problem, Local(spread(problem.topology, 1))), everyone


@pytest.mark.parametrize("bias_norms", ["off", "run"])
@pytest.mark.parametrize(("algorithm", "own", "edges"), [("dpsgd", 1, 0), ("ngc", 1, 1)])
def test_samples_are_counted_for_every_gradient_of_training(algorithm, own, edges, bias_norms):
    worker, everyone = make_run(algorithm, bias_norms=bias_norms)
    events = list(worker.events())
    expected = 0
    batches = Batches(everyone, range(AGENTS), BATCH, Transform(), seed=0)
    for step in range(worker.steps):
        for size, degree in zip(batches.at(step).sizes, parley.star(AGENTS).degrees, strict=True):
            expected += size * (own + edges * degree)
    assert worker.about()["samples"] == expected
    last = events[-1].record
    rate = last["gradients_per_second"] * worker.seconds
    assert rate == pytest.approx(expected, rel=1e-3)


def test_the_loss_of_training_is_the_mean_over_steps_and_agents():
    worker, _ = make_run("dpsgd")
    losses, records = [], []
    for event in worker.events():
        if hasattr(event, "loss"):
            losses.append(event.loss)
        elif hasattr(event, "record"):
            records.append(event.record)
    per_epoch = len(losses) // EPOCHS
    assert len(records) == EPOCHS and per_epoch > 1
    for epoch, record in enumerate(records):
        mean = np.mean(losses[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert record["loss_train"] == pytest.approx(mean)


@pytest.mark.parametrize("topology", [parley.star(AGENTS), parley.directed_ring(AGENTS)])
def test_bias_norms_are_those_of_the_definition(topology):
    agents = range(AGENTS)
    hood = Neighbourhood(
        Local(spread(topology, 1)), LoopEngine(Task(linear(), dtype=torch.float64))
    )
    everyone = samples(AGENTS)
    batch = Batches(everyone, agents, BATCH, Transform(), 0, dtype=torch.float64).at(0)
    x = torch.randn(AGENTS, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def gradient(model, data):
        """Of agent `model`'s parameters on agent `data`'s batch."""
        module = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
        nn.utils.vector_to_parameters(x[model], module.parameters())
        n = batch.sizes[data]
        loss = nn.functional.cross_entropy(module(batch.inputs[data, :n]), batch.targets[data, :n])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, module.parameters())])

    g = {pair: gradient(*pair) for pair in itertools.product(agents, agents)}
    printed, as_run = ([], []), ([], [])
    for i in agents:
        # ε: the models of those that send to i, on i's data. ω: i's model where i sends it to.
        heard = [g[j, i] - g[i, i] for j in topology.neighbours(i)]
        answered = [g[i, j] - g[i, i] for j in agents if i in topology.neighbours(j)]
        for kind, differences in enumerate((heard, answered)):
            printed[kind].append(float(sum(differences).norm()) / (len(differences) + 1))
            ones = [float(d.abs().sum()) / D for d in differences]
            as_run[kind].append(np.mean(ones))
    for form, expected in (("printed", printed), ("run", as_run)):
        found = metrics.bias_norms(x, batch, hood, form)
        for kind, norms in enumerate(expected):
            assert found[:, kind].tolist() == pytest.approx(norms, abs=1e-12)
    assert int(hood.transport.sent["models"].sum()) == 0  # measuring is not training


def test_bias_norms_are_recorded_on_request():
    records = run("ngc", bias_norms="printed").records
    assert records[-1].keys() == FIELDS | {"epsilon_norm", "omega_norm"}
    # At equal models there is no model variance; here they have been trained apart.
    assert all(r["epsilon_norm"] > 0 and r["omega_norm"] > 0 for r in records)


def test_peak_memory_is_that_of_this_process():
    record = run("dpsgd").records[-1]
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    peak = int(status.read_text().partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    assert record["peak_memory_mb"] == pytest.approx(peak, rel=0.05)


class Liar(Local):
    """Worker 0 of two; the other says of its own test samples what `lie` makes of the truth."""

    def __init__(self, placement, clock=None, guard=None):
        super().__init__(placement, clock, guard)
        self.lie = lambda values: values

    def each(self, values):
        return [values, self.lie(values.clone())]

    def broadcast(self, values, agent):
        return values


LIES = {
    "all right, and more": lambda said: torch.where(said > -1, 1e6, said).to(said.dtype),
    "fewer than none": lambda said: -said - 1,
    "no number": lambda said: said * torch.nan if said.is_floating_point() else said - 10**6,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_worker_cannot_forge_scores_through_its_own_test_samples(lie, caplog):
    """Its share is left out, and it is named; the others' scores are those on the rest."""
    test = Samples(*held_out())
    placement = Placement(graphs.ring(4), (0, 0, 1, 1), here=0, numbers=(0, 1, 5, 6))
    engine = LoopEngine(Task(linear(), dtype=torch.float64))
    shared = metrics.TestSet(test, Transform(), engine, Local(placement))
    transport = Liar(placement, guard=Guard(torch.float64))
    own = metrics.OwnTestSets(test, Transform(), engine, transport)
    assert own.count == 2 * len(test)
    x_D = engine.task.start()
    x_AD = torch.stack([x_D, x_D + 0.3])
    honest = own.score(x_D), own.everyone(x_AD), own.confusion(x_D, CLASSES)
    torch.testing.assert_close(torch.tensor(honest[0]), torch.tensor(shared.score(x_D)))
    transport.lie = LIES[lie]
    torch.testing.assert_close(torch.tensor(own.score(x_D)), torch.tensor(honest[0]))
    torch.testing.assert_close(own.everyone(x_AD), honest[1])
    assert torch.equal(own.confusion(x_D, CLASSES), honest[2] // 2), "those of this worker"
    assert transport.guard.counts == {5: 3}, "the first agent of the other worker"
    assert "agent 5 (worker 1) reported" in caplog.text


def test_a_worker_cannot_claim_any_number_of_test_samples():
    placement = Placement(graphs.ring(4), (0, 0, 1, 1), here=0)
    engine = LoopEngine(Task(linear(), dtype=torch.float64))
    for count in (-1, 1 << 60):
        transport = Liar(placement, guard=Guard(torch.float64))
        transport.lie = lambda said, count=count: torch.tensor(count)
        own = metrics.OwnTestSets(Samples(*held_out()), Transform(), engine, transport)
        assert own.count == len(held_out()[1])
        assert transport.guard.counts == {2: 1}


class Twin(Liar):
    """The other worker has the same models and samples."""

    def gather(self, values_A):
        return torch.cat([values_A, values_A])


def with_auroc():
    """A task whose metrics need all outputs in one place (AUROC) and sums (F1)."""
    goal = Goal(measures=measures.parse("classification", "auroc,f1,accuracy"))
    task = Task(linear(), dtype=torch.float64, goal=goal)
    inputs, targets = held_out()
    task = tried(task, "linear", inputs[:4].double(), targets[:4], CLASSES)
    return LoopEngine(task)


@pytest.mark.parametrize("lie", LIES)
def test_nor_any_other_metric(lie):
    placement = Placement(graphs.ring(4), (0, 0, 1, 1), here=0, numbers=(0, 1, 5, 6))
    engine, test = with_auroc(), Samples(*held_out())
    alone = metrics.TestSet(test, Transform(), engine, Local(placement))
    transport = Twin(placement, guard=Guard(torch.float64))
    own = metrics.OwnTestSets(test, Transform(), engine, transport, None, (20, 21))
    x_D = engine.task.start()
    x_AD = torch.stack([x_D, x_D + 0.3])
    expected = torch.tensor(alone.score(x_D))
    assert expected.isfinite().all() and len(expected) == 4
    torch.testing.assert_close(torch.tensor(own.score(x_D)), expected)
    honest = own.everyone(x_AD)
    transport.lie = LIES[lie]
    torch.testing.assert_close(torch.tensor(own.score(x_D)), expected)
    torch.testing.assert_close(own.everyone(x_AD), honest)
    assert transport.guard.counts == {5: 2}


def test_targets_and_outputs_that_cannot_be_are_left_out():
    placement = Placement(graphs.ring(4), (0, 0, 1, 1), here=0)
    engine, test = with_auroc(), Samples(*held_out())
    x_D = engine.task.start()
    expected = torch.tensor(metrics.TestSet(test, Transform(), engine, Local(placement)).score(x_D))
    transport = Twin(placement, guard=Guard(torch.float64))
    transport.lie = lambda said: said + 99 if said.dtype == torch.int64 and said.ndim else said
    own = metrics.OwnTestSets(test, Transform(), engine, transport, None, (20, 21))
    assert own.count == len(test) and transport.guard.counts == {2: 1}
    torch.testing.assert_close(torch.tensor(own.score(x_D)), expected)
    transport = Twin(placement, guard=Guard(torch.float64))
    own = metrics.OwnTestSets(test, Transform(), engine, transport, None, (20, 21))
    transport.lie = lambda said: said * torch.nan if said.shape[-1] == CLASSES else said
    torch.testing.assert_close(torch.tensor(own.score(x_D)), expected)
    assert transport.guard.counts == {2: 1}


def test_what_workers_report_about_themselves(caplog):
    """Numbers that cannot be end no run, and count for nothing."""
    run, _ = make_run("dpsgd")
    transport = Liar(Placement(run.transport.topology, (0, 0, 0, 1, 1), here=0))
    transport.guard = Guard(torch.float64)
    for lie in (torch.nan, -7.0, torch.inf):
        transport.lie = lambda said, lie=lie: torch.full_like(said, lie)
        assert Reports(transport, 0).over_workers("samples", 20.0) == 20
    assert transport.guard.counts == {3: 3, 4: 3}
    assert "agent 3 (worker 1) reported samples of nan" in caplog.text


@pytest.mark.parametrize("lie", [torch.nan, -7.0, torch.inf])
def test_bias_norms_that_cannot_be_are_left_out(lie, monkeypatch):
    run, _ = make_run("ngc", bias_norms="printed")
    honest = run.record()
    run.transport.guard = Guard(torch.float64)
    measured = metrics.bias_norms

    def forged(*given):
        norms_N2 = measured(*given)
        norms_N2[4] = lie
        return norms_N2

    monkeypatch.setattr(metrics, "bias_norms", forged)
    record = run.record()
    assert run.transport.guard.counts == {4: 2}
    for name in ("epsilon_norm", "omega_norm"):
        assert 0 <= record[name] < 10 * (honest[name] + 1)


def test_only_the_first_worker_says_when_to_stop():
    """Another that says so as well, or says anything else, is not heard."""
    run, _ = make_run("dpsgd")
    callbacks = Callbacks(on_epoch=lambda epoch: epoch == 2)
    transport = Liar(Placement(run.transport.topology, (0, 0, 0, 1, 1), here=0))
    for lie in (1.0, -1.0, torch.nan, 1e300):
        transport.lie = lambda said, lie=lie: torch.full_like(said, lie)
        answers = [asked(callbacks, "on_epoch", epoch, transport) for epoch in (1, 2)]
        assert answers == ["", "on_epoch returned True"]
