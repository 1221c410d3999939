"""How often a run is evaluated if the experiment does not say: the averaged model after every
epoch, the agents' own models only as often as a share of the work allows."""

import logging

import pytest

import parley
from parley.experiment import Experiment
from parley.stopping import parse_stop
from parley.training import frequency
from parley.training.frequency import PASSES, SHARE, Frequency, frequency_of, own_models_every
from parley.watch.progress import status

TINY = {"agents": 3, "model": "logistic", "batch": 50, "gossip_rounds": 2, "progress": False}
OWN = ("accuracy_own", "accuracy_own_min", "accuracy_own_max", "accuracy_after_gossip")
TIMES = ("seconds", "gradients_per_second", "peak_memory_mb")


@pytest.fixture
def much(monkeypatch):
    """Even the smallest evaluation counts as work, and own models are due every third epoch."""
    monkeypatch.setattr(frequency, "LITTLE", 0)
    monkeypatch.setattr(frequency, "SHARE", 0.0)
    monkeypatch.setattr(frequency, "SELDOM", 3)


def without_times(record):
    return {name: value for name, value in record.items() if name not in TIMES}


def test_own_models_are_evaluated_seldom_and_at_the_end(much):
    default = parley.train(**TINY, epochs=5).records
    explicit = parley.train(**TINY, epochs=5, evaluate_every=1).records
    assert [r["epoch"] for r in default] == [1, 2, 3, 4, 5]
    for found, whole in zip(default, explicit, strict=True):
        if found["epoch"] in (3, 5):
            assert without_times(found) == without_times(whole)
        else:
            assert [found[name] for name in OWN] == [None] * 4
            assert found["accuracy_agents"] == [None] * 3
            assert found.keys() == whole.keys()
            others = found.keys() - {*OWN, *TIMES, "accuracy_agents"}
            assert {name: found[name] for name in others} == {n: whole[n] for n in others}


def test_little_work_is_done_after_every_epoch():
    default = parley.train(**TINY, epochs=2).records
    assert all(record["accuracy_own"] is not None for record in default)


def test_a_run_that_ends_early_ends_with_all_models(much):
    stopped = parley.train(**TINY, epochs=5, stop_when="accuracy>=0.01").records
    assert [r["epoch"] for r in stopped] == [1] and stopped[0]["accuracy_own"] is not None
    asked = parley.train(**TINY, epochs=5, on_record=lambda r: r["epoch"] == 2).records
    assert [r["accuracy_own"] is not None for r in asked] == [False, True]


def test_a_condition_on_own_models_is_checked_after_every_epoch(much):
    records = parley.train(**TINY, epochs=5, stop_when="accuracy_own>=0.01").records
    assert [r["epoch"] for r in records] == [1]


def test_a_run_that_is_resumed_keeps_to_it(much, tmp_path):
    straight = parley.train(**TINY, epochs=5).records
    parley.train(**TINY, epochs=2, out=tmp_path)
    resumed = parley.train(**TINY, epochs=5, out=tmp_path, resume=True).records
    # The second record was once the last, and keeps what was measured for that.
    assert resumed[1]["accuracy_own"] is not None
    for place in (0, 2, 3, 4):
        assert without_times(resumed[place]) == without_times(straight[place])


def test_a_folder_with_the_former_default_is_resumed(tmp_path):
    parley.train(**TINY, epochs=1, evaluate_every=1, out=tmp_path)
    records = parley.train(**TINY, epochs=2, out=tmp_path, resume=True).records
    assert [r["epoch"] for r in records] == [1, 2]
    with pytest.raises(parley.ParleyError, match="they differ in evaluate_every"):
        parley.train(**TINY, epochs=2, evaluate_every=2, out=tmp_path, resume=True)


def test_what_is_left_out_is_said_once(much, caplog):
    with caplog.at_level(logging.INFO, logger="parley"):
        record = parley.train(**TINY, epochs=2).records[0]
        parley.train(**TINY, epochs=1, evaluate_every=1)
    assert caplog.text.count("the agents' own models after every 3 epochs and at the end") == 1
    assert "own" not in status(record) and "averaged, distance" in status(record)


@pytest.mark.parametrize("gradients", [1e5, 1.5e5, 1.8e5, 1e6])
@pytest.mark.parametrize("own", [6, 20, 200])
def test_evaluation_takes_its_share_or_is_as_seldom_as_it_gets(own, gradients):
    tested = 10_000
    every = own_models_every(own, tested, gradients, parameters=10**6)

    def share(epochs):
        return (tested + own * tested / epochs) / (PASSES * gradients)

    assert share(every) <= SHARE * (1 + 1e-9) or every == frequency.SELDOM
    assert every == 1 or share(every - 1) > SHARE


def test_cross_gradients_and_gossip_count():
    def every(**options):
        experiment = Experiment.of(data="fashion_mnist", model="lenet5", **options)
        return frequency_of(experiment, parse_stop(""), 20, 188, 10_000, 61_706)

    assert every(algorithm="ngc") == Frequency(1, 5)
    assert every(algorithm="ngc", gossip_rounds=0) == Frequency(1, 3)
    assert every(algorithm="dpsgd") == Frequency(1, 25)
    assert every(algorithm="ngc", agents=1, topology="full") == Frequency(1, 1)
    assert every(algorithm="dpsgd", evaluate_every=4) == Frequency(4, 4)
