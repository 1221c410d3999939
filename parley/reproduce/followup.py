"""The conventions of the papers that followed: larger graphs, Dirichlet partitions, 200 epochs.

Aketi, Hashemi and Roy, "Global update tracking" (NeurIPS 2023), and the work around it compare
methods on CIFAR-10 with 16 and 32 agents on rings, a torus, the Petersen and the Dyck graph, with
classes drawn from a Dirichlet distribution, at a learning rate of 0.1. These presets put NGC and
CompNGC beside D-PSGD, GUT and QGM under the same conditions. None of the figures are in the NGC
paper, so there is nothing to print beside the results.

>>> [preset.name for preset in follow_up_presets()][0]
'follow-up/resnet20/dirichlet-0.1/ring/16/dpsgd'
"""

from collections.abc import Iterator, Mapping
from typing import Any

from parley.reproduce.preset import Preset

TABLE = "follow-up"
MOMENTUM: Mapping[str, Any] = {"momentum": 0.9, "nesterov": False}
HYPER: Mapping[str, Mapping[str, Any]] = {
    "dpsgd": {"momentum": 0.0},
    "gut": {"momentum": 0.0, "mu": 0.9},
    "qgm": MOMENTUM,
    "ngc": {"alpha": 1.0, **MOMENTUM},
    "compngc": {"alpha": 1.0, **MOMENTUM},
}
"""For GUT and QGM as published. For NGC and CompNGC the same momentum: they have not been tuned."""
GRAPHS = {
    "ring/16": "ring",
    "ring/32": "ring",
    # What is called a torus there links every agent with those 1 and 4 places away.
    "torus/32": "circulant:1,4",
    "dyck/32": "dyck",
    "petersen/10": "petersen",
}
NETWORKS = {"resnet20": tuple(GRAPHS), "vgg11": ("ring/16", "ring/32")}


def follow_up_presets() -> Iterator[Preset]:
    """Every network, partition, graph and method."""
    for model, graphs in NETWORKS.items():
        for alpha in ("0.1", "0.01"):
            for graph in graphs:
                for method, hyper in HYPER.items():
                    yield Preset(
                        name=f"{TABLE}/{model}/dirichlet-{alpha}/{graph}/{method}",
                        table=TABLE,
                        data="cifar10",
                        model=model,
                        topology=GRAPHS[graph],
                        agents=int(graph.partition("/")[2]),
                        method=method,
                        partition=f"dirichlet:{alpha}",
                        epochs=200,
                        batch=32,
                        lr=0.1,
                        lr_decay="step",
                        hyper=hyper,
                    )
