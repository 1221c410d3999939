"""Experiments and everything in them that is a number or a short text."""

import random
from pathlib import Path
from typing import Any

import numpy as np

import parley
from parley import graphs
from parley.algorithms import ALGORITHMS
from parley.data import partition as partitions
from parley.experiment import Experiment
from parley.wire import clock, codec
from tests.fuzz import damage

NUMBERS = ("-1", "0", "1", "2", "5", "0.5", "1e-9", "1e9", "1e300", "nan", "inf", "9" * 30, "x", "")
FIELDS = (*Experiment.model_fields, "variant", "codec", "alpha", "momentum", "gamma", "local_steps")


def options(source: random.Random, folder: Path) -> None:
    """Fields of an experiment with values of the wrong type and size."""
    given: dict[str, Any] = {"algorithm": source.choice([*ALGORITHMS, "ngc+qgm", "ngc+topk:0.1"])}
    for _ in range(source.randint(1, 4)):
        given[source.choice(FIELDS)] = source.choice(damage.VALUES)
    made = Experiment.of(**given)
    assert Experiment.from_toml(made.to_toml()) == made


def specs(source: random.Random, folder: Path) -> None:
    """Short texts with numbers in them: graphs, partitions, decays, networks, codecs."""

    def numbers(separators: str = ",") -> str:
        drawn = [source.choice(NUMBERS) for _ in range(source.randint(1, 3))]
        return source.choice(separators).join(drawn)

    kind = source.randrange(5)
    if kind == 0:
        name = source.choice([*graphs.names._FAMILIES, "spanning-tree:torus"])
        agents = source.choice([None, 1, 2, 5, 16])
        graphs.parse(f"{name}:{numbers(',x')}", agents, seed=source.choice([0, 2**63 - 1]))
    elif kind == 1:
        spec = f"{source.choice([*partitions.KINDS])}:{numbers()}"
        labels = np.arange(40) % 4
        partitions.partition(spec, labels, graphs.ring(4), 0)
    elif kind == 2:
        decay = f"{source.choice(['constant', 'step', 'exponential'])}:{numbers()}"
        epochs = source.choice([1, 1000, 10**6])
        made = Experiment.of(lr_decay=decay, epochs=epochs)
        assert made.lr_decay == decay
    elif kind == 3:
        names = source.choices([*clock.Link.__dataclass_fields__, "x"], k=2)
        spec = ",".join(f"{name}={source.choice(NUMBERS)}" for name in names)
        timed = clock.parse(spec, graphs.ring(3), 0)
        timed.send([(0, 1), (1, 2)], 1000, 0)
        assert np.isfinite(timed.seconds())
    else:
        name = source.choice(["dense", "fp16", "sign", "topk", "randomk", "qsgd"])
        codec.build(f"{name}:{numbers()}", [5, 7])


EXTREMES: dict[str, tuple[Any, ...]] = {
    "lr": (1e-20, 1e6),
    "seed": (0, 2**63 - 1),
    "batch": (1, 10**6),
    "gossip_rounds": (0, 3),
    "patience": (0.1, 31_536_000),
    "threads": (1, 1024),
    "weights": ("uniform", "metropolis"),
    "partition": ("iid", "skew:0", "dirichlet:1e-6", "dirichlet:1e9", "classes:10"),
    "topology": ("ring", "full", "chain", "matchings:1", "base:3", "one-peer-exponential"),
    "lr_decay": ("step:1e-300,0,1", "exponential:1e-300", "exponential:1e5"),
    "fraction": (1e-9, 1.0),
    "validation": (0.999999, 0.1),
    "test_fraction": (1e-9, 1.0),
    "model": ("mlp", "logistic"),
    "links": ("delay=1e6,bandwidth=1,drop=0.999999,spread=10", "uplink=1"),
    "dtype": ("float32", "float64"),
    "bias_norms": ("printed", "run"),
    "evaluate_every": (1, 10**6),
}


def runs(source: random.Random, folder: Path) -> None:
    """A small run with fields at the ends of what is valid: it trains, diverges or is refused."""
    kind = ALGORITHMS[source.choice([*ALGORITHMS])]
    given: dict[str, Any] = {"algorithm": kind.name}
    for name in source.sample([*EXTREMES], k=3):
        given[name] = source.choice(EXTREMES[name])
    for name, field in kind.options().items():
        ends = [
            value
            for limit in field.metadata
            for bound in ("ge", "le")
            if (value := getattr(limit, bound, None)) is not None
        ]
        if ends and source.random() < 0.5:
            given[name] = source.choice(ends)
    parley.train(agents=3, epochs=1, engine="loop", progress=False, **given)


TARGETS = {"options": options, "specs": specs, "runs": runs}
