"""Parley from Python, with the user's own model, data, loss and graph."""

import warnings
from pathlib import Path

import datasets
import networkx as nx
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import parley
from parley import BadValue
from parley.compute import choose as engines
from parley.compute.task import Task, cross_entropy
from parley.errors import ParleyError
from parley.training.events import EpochDone, Started, StepDone

AGENTS = 4


class Net(nn.Module):
    """At the top level of a module, so that other processes can import it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Dropping(Net):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.second(self.dropout(torch.tanh(self.first(x))))


def halves(n=40, seed=0):
    """Two classes on two sides of a plane."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 3, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()


@pytest.fixture
def data():
    return [halves(30 + 10 * agent, seed=agent) for agent in range(AGENTS)]


def train(**options):
    return parley.train(**{"model": Net, "epochs": 2, "lr": 0.5, "progress": False} | options)


def error(**options):
    with pytest.raises(BadValue) as caught:
        train(**options)
    return str(caught.value)


def test_the_call_of_the_readme(data):
    result = parley.train(
        model=Net, data=data * 2, topology=parley.ring(8), algorithm=parley.NGC(alpha=1.0),
        epochs=5, lr=0.5, test=halves(seed=9), progress=False,
    )  # fmt: skip
    assert result.summary["algorithm"] == "ngc" and result.summary["model"] == "Net"
    assert (result.summary["agents"], result.summary["out"]) == (8, None)
    assert [r["epoch"] for r in result.records] == [1, 2, 3, 4, 5]
    assert result.summary["accuracy_mean_model"] > 0.85
    # The averaged model is the mean of the agents' models, and scores what the summary says.
    mean = nn.utils.parameters_to_vector(result.model().parameters())
    own = [nn.utils.parameters_to_vector(result.model(i).parameters()) for i in range(8)]
    assert torch.allclose(mean, torch.stack(own).mean(0), atol=1e-6)
    assert torch.equal(torch.stack(own), result.x_ND)
    inputs, targets = halves(seed=9)
    right = (result.model()(inputs).argmax(1) == targets).double().mean()
    assert result.summary["accuracy_mean_model"] == pytest.approx(float(right))


def test_a_class_a_factory_and_an_instance(data):
    def seeded():
        torch.manual_seed(0)
        return Net()

    given = seeded()
    before = nn.utils.parameters_to_vector(given.parameters()).clone()
    results = [train(model=m, data=data) for m in (given, seeded)]
    assert results[0].x_ND.equal(results[1].x_ND)
    assert nn.utils.parameters_to_vector(given.parameters()).equal(before)  # not touched
    train(model=given, data=data, dtype="float64")
    assert given.first.weight.dtype == torch.float32
    # A class is built under the run's own seed.
    assert train(data=data, seed=1).x_ND.equal(train(data=data, seed=1).x_ND)


def test_datasets_of_every_kind_are_the_same_data(data):
    as_dataset = [torch.utils.data.TensorDataset(*pair) for pair in data]
    as_arrays = [(inputs.numpy(), targets.tolist()) for inputs, targets in data]
    expected = train(data=data, test=data[0]).records[-1]["loss"]
    for kind in (as_dataset, as_arrays, tuple(data)):
        assert train(data=kind, test=kind[0]).records[-1]["loss"] == expected


def test_hugging_face_datasets():
    rng = np.random.default_rng(0)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["dark", "light"])}
    )

    def pictures(n):
        labels = [i % 2 for i in range(n)]
        images = [
            Image.fromarray((rng.integers(0, 100, (4, 4)) + 120 * label).astype(np.uint8))
            for label in labels
        ]
        return datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)

    result = train(
        model="logistic", data=[pictures(20) for _ in range(3)], test=pictures(30), epochs=30
    )
    assert result.summary["agents"] == 3 and result.summary["accuracy_mean_model"] > 0.9


def test_graphs_of_every_kind(data):
    path = nx.path_graph(AGENTS)
    as_graph = train(data=data, topology=path)
    assert as_graph.x_ND.equal(train(data=data, topology="chain").x_ND)
    assert as_graph.x_ND.equal(train(data=data, topology=parley.from_graph(path)).x_ND)
    named = train(topology=parley.star(3), model="logistic", data="digits", epochs=1)
    assert named.summary["agents"] == 3 and named.summary["topology"] == "star"
    # Weights of a topology's own are kept, and asked-for ones replace them.
    lazy = 0.5 * np.eye(AGENTS) + 0.5 * parley.ring(AGENTS).weights
    with_own = train(data=data, topology=parley.ring(AGENTS, weights=lazy))
    assert not with_own.x_ND.equal(train(data=data).x_ND)
    replaced = train(data=data, topology=parley.ring(AGENTS, weights=lazy), weights="metropolis")
    assert replaced.x_ND.equal(train(data=data).x_ND)


def test_an_own_loss_is_what_is_minimised(data):
    def brier(outputs, targets):
        right = nn.functional.one_hot(targets, outputs.shape[1])
        return (outputs.softmax(1) - right).square().sum(1)

    result = train(data=data, loss=brier)
    inputs, targets = (torch.cat(parts) for parts in zip(*data, strict=True))
    with torch.no_grad():
        loss = brier(result.model()(inputs), targets).mean()
    assert result.records[-1]["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert result.records[-1]["loss"] < result.records[0]["loss"]
    on_digits = train(model="logistic", data="digits", agents=3, epochs=1, loss=brier)
    assert on_digits.records[-1]["loss"] < 1  # Brier's; cross-entropy is above 2 after an epoch


@pytest.mark.parametrize(
    ("given", "functional", "options"),
    [
        (nn.CrossEntropyLoss(), "cross_entropy", {}),
        (nn.functional.cross_entropy, "cross_entropy", {}),
        (lambda o, t: nn.functional.cross_entropy(o, t), "cross_entropy", {}),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "cross_entropy", {"label_smoothing": 0.1}),
        (
            lambda o, t: nn.functional.cross_entropy(o, t, label_smoothing=0.1),
            "cross_entropy",
            {"label_smoothing": 0.1},
        ),
        (nn.MultiMarginLoss(margin=0.5), "multi_margin_loss", {"margin": 0.5}),
    ],
    ids=["module", "function", "lambda", "smoothed", "smoothed-lambda", "margin"],
)
@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_mean_loss_is_the_mean_of_its_samples(data, given, functional, options, engine):
    loss = getattr(nn.functional, functional)

    def each(outputs, targets):
        return loss(outputs, targets, reduction="none", **options)

    # Agents of different sizes, so that batches are padded and a mean over padding would show.
    uneven = [(x[: 20 + 7 * i], y[: 20 + 7 * i]) for i, (x, y) in enumerate(data)]
    mean, single = (train(data=uneven, loss=one, batch=16, engine=engine) for one in (given, each))
    assert mean.x_ND.allclose(single.x_ND, rtol=1e-5, atol=1e-6)
    inputs, targets = (torch.cat(parts) for parts in zip(*uneven, strict=True))
    with torch.no_grad():
        expected = loss(mean.model()(inputs), targets, **options)
    assert mean.summary["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_plain_cross_entropy_by_any_name_has_the_fast_engines():
    fast = engines.candidates(Task(nn.Sequential(nn.Linear(3, 2))))
    for loss in (nn.CrossEntropyLoss(), nn.functional.cross_entropy):
        assert engines.candidates(Task(nn.Sequential(nn.Linear(3, 2)), loss)) == fast
    weighted = nn.CrossEntropyLoss(weight=torch.ones(2))
    assert engines.candidates(Task(nn.Sequential(nn.Linear(3, 2)), weighted)) != fast


WEIGHTS = torch.tensor([0.5, 1.5])  # they add up to the number of classes


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.CrossEntropyLoss(reduction="sum"), "'CrossEntropyLoss' is not valid (it gives the sum"),
        (lambda o, t: nn.functional.cross_entropy(o, t, reduction="sum"), "(it gives the sum"),
        (nn.CrossEntropyLoss(weight=WEIGHTS), "class weights"),
        (lambda o, t: nn.functional.cross_entropy(o, t, weight=WEIGHTS), "class weights"),
        (nn.CrossEntropyLoss(ignore_index=1), "ignored classes"),
        (lambda o, t: (o - o.mean()).square().mean(), "not the mean"),
        (lambda o, t: o.sum(0), "for 3 samples it gives a tensor of shape [2]"),
        (lambda o, t: o.square().mean().reshape(1), "gives a tensor of shape [1]"),
        (lambda o, t: 1.0, "it gives a float"),
        (lambda o, t: (o.argmax(1) != t).float(), "it has no gradient"),
        (lambda o, t: o[:, 7], "index 7 is out of bounds"),
        (lambda o, t: (0 * o[:, 0]).log(), "it is -inf for the model's start"),
        (nn.MSELoss(), "for outputs of shape [3, 2]"),
        (3, "3 is not valid; valid: a function of (outputs, targets)"),
    ],
)
def test_a_loss_that_cannot_be_understood_is_refused(data, loss, words):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        message = error(data=data, loss=loss)
    assert not told, "the refusal says it"
    assert message.startswith("loss: ") and words in message and "valid: a " in message


def test_class_weights_weigh_samples(data):
    loss = nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none")
    result = train(data=data, loss=loss)
    inputs, targets = (torch.cat(parts) for parts in zip(*data, strict=True))
    with torch.no_grad():
        losses = nn.functional.cross_entropy(result.model()(inputs), targets, reduction="none")
    expected = (WEIGHTS[targets] * losses).sum() / len(targets)
    assert result.summary["loss"] == pytest.approx(float(expected), rel=1e-5)


def broken(value):
    model = nn.Linear(3, 2)
    model.weight.data[0] = value
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(3, 1), "(it gives one score, "),
        (nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), "(it gives one score, "),
        (nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (2, 3))), "of shape [4, 2, 3]"),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten(0)), "of shape [8]"),
        (nn.Linear(4, 2), "cannot be multiplied"),
        (nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(4, 2))), "(layer 1.0 (Linear): mat"),
        (nn.Flatten(), "it has none"),
        (broken(float("nan")), "NaN or infinity before any training"),
        (nn.LSTM(3, 2), "it gives a tuple"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_the_remedy(data, model, words):
    def yes_or_no(outputs, targets):
        return nn.functional.binary_cross_entropy_with_logits(outputs.flatten(), targets.float())

    for loss in (cross_entropy, yes_or_no):
        message = error(data=data, model=model, loss=loss)
        assert message.startswith("model: ") and words in message
        assert "; valid: a model " in message


def test_more_classes_than_scores_are_refused_and_fewer_are_not(data, tmp_path):
    ten = [(x, y + 8) for x, y in data]
    message = error(data=ten, model=nn.Linear(3, 5))
    assert "it gives 5 scores, but the data have 10 classes" in message
    assert message.endswith("takes inputs of shape [3] and gives 10 scores for each")
    model = nn.Linear(3, 5)
    model.bias.data[3:] = 9.0  # so that it answers with classes that there are not
    wide = train(data=data, model=model, epochs=1, lr=1e-6)
    matrix = torch.tensor(wide.about["confusion"]["best"]["matrix"])
    targets = torch.cat([y for _, y in data])
    assert matrix.tolist() == [[0, 0, int((targets == c).sum())] for c in (0, 1)]
    assert wide.summary["accuracy_mean_model"] == 0
    assert ">other<" in wide.report(tmp_path / "run.html").read_text()


def test_inputs_that_are_not_finite_are_refused(data):
    x, y = data[2]
    spoilt = x.clone()
    spoilt[1, 0] = float("nan")
    held = [*data[:2], (spoilt, y), *data[3:]]
    expected = "data: 'agent 2' is not valid (some are NaN or infinite); valid: finite inputs"
    assert error(data=held, test=data[0]) == expected
    assert error(data=data, test=(spoilt, y)) == expected.replace("agent 2", "test")


def test_every_worker_understands_a_mean_loss(data):
    one, two = (train(data=data, loss=nn.CrossEntropyLoss(), workers=n) for n in (1, 2))
    assert two.x_ND.allclose(one.x_ND, rtol=1e-5, atol=1e-6)
    assert two.summary["loss"] == pytest.approx(one.summary["loss"], rel=1e-5)
    with pytest.raises(ParleyError, match=r"it gives one score, .* 2 scores"):
        train(data=data, model=nn.Linear(3, 1), workers=2)


def test_without_test_data_all_training_data_is_measured(data):
    result = train(data=data)
    inputs, targets = (torch.cat(parts) for parts in zip(*data, strict=True))
    with torch.no_grad():
        right = (result.model()(inputs).argmax(1) == targets).double().mean()
    assert result.summary["accuracy_mean_model"] == pytest.approx(float(right))


def test_dropout_is_random_in_training_only_and_reproducible(data):
    torch.manual_seed(1)
    one = train(model=Dropping, data=data)
    torch.manual_seed(2)
    again = train(model=Dropping, data=data)
    assert one.x_ND.equal(again.x_ND) and one.records[-1]["loss"] == again.records[-1]["loss"]
    assert not one.x_ND.equal(train(model=Net, data=data).x_ND)
    model = one.model()
    assert not model.training and model(data[0][0]).equal(model(data[0][0]))


def test_batch_norm_is_welcome(data):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    result = train(model=model, data=data)
    assert bool((result.model()[1].running_var != 1).all())
    assert bool((model[1].running_var == 1).all())  # the user's own module is left alone


def test_everything_is_written_to_a_folder_and_resumed(data, tmp_path):
    whole = train(data=data, epochs=4, out=tmp_path / "whole")

    def stop(event):
        if isinstance(event, EpochDone) and event.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data=data, epochs=4, out=tmp_path / "run", watch=stop)
    resumed = train(data=data, epochs=4, out=tmp_path / "run", resume=True)
    assert resumed.x_ND.equal(whole.x_ND)
    times = {"seconds", "gradients_per_second", "peak_memory_mb"}
    for one, other in zip(resumed.records, whole.records, strict=True):
        assert {k: v for k, v in one.items() if k not in times} == {
            k: v for k, v in other.items() if k not in times
        }
    assert resumed.summary["out"] == str(tmp_path / "run")
    assert resumed.plot(tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_events_can_be_watched(data):
    events = []
    train(data=data, watch=events.append, batch=35)
    assert [type(e) for e in events] == [
        Started, StepDone, StepDone, EpochDone, StepDone, StepDone, EpochDone,
    ]  # fmt: skip
    assert (
        events[0].parameters == 3 * 8 + 8 + 8 * 2 + 2 and events[-2].step == events[-2].steps == 4
    )


def test_several_workers_give_the_same(data):
    alone = train(data=data, dtype="float64")
    spread = train(data=data, dtype="float64", workers=2)
    assert torch.allclose(spread.x_ND, alone.x_ND, rtol=0, atol=1e-12)
    keys = ("loss", "accuracy_own", "consensus_distance", "bytes_models")
    assert [spread.summary[k] for k in keys] == pytest.approx([alone.summary[k] for k in keys])
    assert "top level of a module" in error(model=lambda: Net(), data=data, workers=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topology": parley.ring(8)}, "data: '4 datasets' is not valid; valid: one for each of 8"),
        ({"agents": 6}, "data: '4 datasets' is not valid; valid: one for each of 6 agents"),
        ({"partition": "iid"}, "partition: 'iid' is not valid; valid: none together with your own"),
        ({"data": halves()[0]}, "data: 'Tensor' is not valid (it is a Tensor); valid: a name, or"),
        ({"data": []}, "data: [] is not valid; valid: one dataset per agent"),
        ({"data": [halves()[0]] * 4}, "data: 'agent 0' is not valid; valid: a dataset of pairs"),
        ({"test": (halves()[0],)}, "test: 'tuple' is not valid (data: 'agent 0' is not valid"),
        ({"test": (torch.zeros(2, 5), torch.zeros(2).long())}, "test: 'tuple' is not valid (its i"),
        ({"data": "digits", "test": halves()}, "test: 'tuple' is not valid; valid: only together"),
        ({"model": 3}, "model: 3 is not valid; valid: a name, an nn.Module, or a function"),
        ({"model": lambda: 3}, "model: '<lambda>' is not valid; valid: a callable that returns"),
        ({"model": nn.Linear(5, 2)}, "model: 'Linear' is not valid (mat1 and mat2 shapes cannot"),
        ({"model": nn.Linear(3, 1)}, "model: 'Linear' is not valid (it gives one score, where"),
        ({"topology": 3}, "topology: 3 is not valid; valid: a spec such as 'ring', a networkx"),
        ({"topology": nx.Graph([(0, 1), (2, 3)])}, "topology: 'graph' is not valid (agent 0 is cu"),
        ({"algorithm": 3}, "algorithm: 3 is not valid; valid: adagossip"),
        ({"alpah": 3}, "option: 'alpah' is not valid (did you mean 'alpha'?); valid: agents"),
        ({"algorithm": parley.DPSGD(), "alpha": 1}, "alpha: 1 is not valid (dpsgd has no such op"),
    ],
)
def test_every_mistake_is_one_line_that_says_what_is_valid(data, options, message, tmp_path):
    text = error(**{"data": data, "out": tmp_path / "run"} | options)
    assert text.startswith(message) and "\n" not in text
    assert not (tmp_path / "run").exists()


class TestLoad:
    def test_a_folder_gives_what_training_gave(self, tmp_path: Path) -> None:
        result = parley.train(agents=3, epochs=2, out=tmp_path / "run", progress=False)
        found = parley.load(tmp_path / "run")
        assert found.experiment == result.experiment
        assert (found.records, found.summary) == (result.records, result.summary)
        inputs = torch.rand(5, 1, 8, 8)
        assert torch.equal(found.model()(inputs), result.model()(inputs))
        assert torch.equal(found.model(agent=1)(inputs), result.model(1)(inputs))
        assert found.plot(tmp_path / "run.png").read_bytes()[:4] == b"\x89PNG"
        assert b"NGC" in found.report(tmp_path / "run.html").read_bytes()

    def test_your_own_model_is_given_again(self, tmp_path: Path) -> None:
        data = [(torch.randn(8, 3), torch.randint(2, (8,))) for _ in range(2)]
        own = nn.Linear(3, 2)
        out = tmp_path / "run"
        result = parley.train(own, data, epochs=1, out=out, progress=False)
        found = parley.load(out)
        with pytest.raises(BadValue, match=r"valid: model\(build\) with the nn.Module"):
            found.model()
        with pytest.raises(BadValue, match=r"bias has shape \[4\] in the model and \[2\] in"):
            found.model(nn.Linear(3, 4))
        inputs = torch.rand(4, 3)
        assert torch.equal(found.model(own)(inputs), result.model()(inputs))

    def test_mistakes(self, tmp_path: Path) -> None:
        with pytest.raises(BadValue, match="the folder of a run"):
            parley.load(tmp_path)
