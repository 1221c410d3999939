"""The training loop: when it measures, at which rate it learns, and what it learns in the end."""

import statistics

import pytest

import parley
from parley import BadValue
from parley.schedule import parse_schedule
from parley.training.problem import device_of, problem

TINY = {"agents": 3, "model": "logistic", "batch": 200, "gossip_rounds": 0, "progress": False}


@pytest.mark.parametrize(
    ("spec", "epochs", "factors"),
    [
        ("constant", 4, [1, 1, 1, 1]),
        ("step", 8, [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]),
        ("step", 3, [1, 1, 0.1]),  # 1.5 and 2.25 epochs: the first whole epoch from there
        ("step:0.5,0.25", 4, [1, 0.5, 0.5, 0.5]),
        ("exponential:0.5", 4, [1, 0.5, 0.25, 0.125]),
        ("exponential:0.981", 3, [1, 0.981, 0.981**2]),
    ],
)
def test_the_rate_over_time(spec, epochs, factors):
    found = [parse_schedule(spec).factor(epoch, 1, epochs) for epoch in range(epochs)]
    assert found == pytest.approx(factors, rel=1e-12)


@pytest.mark.parametrize(
    "spec",
    ["", "constant:1", "step:0.1", "step:0,0.5", "step:0.1,1.5", "step:x", "exponential",
     "exponential:0", "exponential:-1", "exponential:inf", "exponential:nan", "cosines"],
)  # fmt: skip
def test_a_rate_that_makes_no_sense_is_refused(spec):
    with pytest.raises(BadValue, match=r"lr_decay: '.*' is not valid; valid: constant, step"):
        parse_schedule(spec)


def test_the_decayed_rate_is_what_the_steps_use():
    whole = parley.train(**TINY, epochs=4, lr=0.5, lr_decay="step")
    assert [r["lr"] for r in whole.records] == pytest.approx([0.5, 0.5, 0.05, 0.005])
    # Up to where the rate falls, a constant rate gives the same; from there on it does not.
    constant = parley.train(**TINY, epochs=4, lr=0.5)
    same = [a["loss"] == b["loss"] for a, b in zip(whole.records, constant.records, strict=True)]
    assert same == [True, True, False, False]


@pytest.mark.parametrize(
    ("every", "epochs", "expected"), [(1, 3, [1, 2, 3]), (2, 5, [2, 4, 5]), (9, 4, [4])]
)
def test_evaluate_every(every, epochs, expected):
    result = parley.train(**TINY, epochs=epochs, evaluate_every=every)
    assert [r["epoch"] for r in result.records] == expected


def test_evaluating_does_not_change_what_is_trained():
    often = parley.train(**TINY, epochs=4, bias_norms="run")
    seldom = parley.train(**TINY, epochs=4, evaluate_every=4)
    assert often.x_ND.equal(seldom.x_ND)


def test_the_seed_decides_everything():
    one, again, other = (parley.train(**TINY, epochs=1, seed=s) for s in (1, 1, 2))
    assert one.x_ND.equal(again.x_ND) and not one.x_ND.equal(other.x_ND)


def test_divergence_names_the_agent_and_the_step():
    with pytest.raises(parley.ParleyError, match=r"loss: nan at agent \d, step \d of 3: training"):
        parley.train(**TINY | {"model": "mlp"}, epochs=1, lr=1e6, weight_decay=1e6)


def test_devices():
    assert device_of("cpu").type == "cpu"
    for name in ("tpu", "mps", "cuda:999", "cuda:x", ""):
        with pytest.raises(BadValue, match="device: "):
            device_of(name)


def test_ngc_beats_dpsgd_on_complete_skew():
    """Ten agents on a ring, one digit each; equal settings, and far outside the noise of seeds."""

    def accuracies(algorithm):
        runs = [
            parley.train(
                data="digits", model="mlp", agents=10, topology="ring", partition="skew:1",
                algorithm=algorithm, momentum=0.9, lr=0.1, epochs=10, evaluate_every=10,
                gossip_rounds=0, seed=seed, progress=False,
            ).summary
            for seed in range(3)
        ]  # fmt: skip
        return {k: [r[k] for r in runs] for k in ("accuracy_mean_model", "accuracy_own")}

    dpsgd, ngc = accuracies("dpsgd"), accuracies("ngc")
    for kind in dpsgd:
        gain = statistics.fmean(ngc[kind]) - statistics.fmean(dpsgd[kind])
        variances = [statistics.variance(values[kind]) for values in (dpsgd, ngc)]
        assert gain > 3 * statistics.fmean(variances) ** 0.5 and gain > 0.05, (dpsgd, ngc)


def test_a_share_of_the_test_samples_is_the_same_for_every_seed():
    seen = []
    for seed in (0, 1):
        experiment = parley.Experiment(model="logistic", test_fraction=0.1, seed=seed)
        part = problem(experiment)
        assert len(part.test) == 40  # of 360, at least 3.6 of each of 10 classes
        assert sum(len(samples) for samples in part.samples) == 1437  # all that is trained on
        seen.append(part.test.inputs)
    assert seen[0].equal(seen[1])
