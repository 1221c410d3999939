"""A study of digits that takes seconds: two cells with published figures, and a curve."""

from pathlib import Path

import pytest

from parley.reproduce import study
from parley.reproduce.cells import Cell, cells
from parley.reproduce.study import Study

TEXT = """
seeds = 1
about = "Accuracies in percent."

[options]
data = "digits"
model = "logistic"
topology = "ring"
agents = 4
epochs = 4
batch = 32
lr = 0.1
lr_decay = "step"
weight_decay = 0.0
gossip_rounds = 51

[methods]
dpsgd = "dpsgd"
ngc = "ngc"

[variants.as-run]
options = { variant = "as-run" }

[variants.as-printed]
options = { variant = "as-printed" }

[choices]
gradient = { options = { gradient_at = "own" } }

[table]
published = ["accuracy_after_gossip", "accuracy_mean_model"]

[table.columns]
accuracy_after_gossip = "after gossip"
accuracy_mean_model = "averaged"
accuracy_own = "own"

[sections]
datasets = "Small ones"
figures = "Curves"

[settings."digits/logistic/ring/4"]
section = "datasets"
runs.dpsgd = { gamma = 1.0, momentum = 0.0, published = [50.0, 2.0] }
runs.ngc = { gamma = 1.0, momentum = 0.0, alpha = 1.0, published = [90.0, 2.0] }

[settings."figures/non-iid/5"]
section = "figures"
runs.ring = { method = "ngc", bias_norms = "run" }

[pictures."figures/epsilon/5"]
field = "epsilon_norm"
lines = { NGC = "figures/non-iid/5/ring" }

[data]
digits = { title = "Digits", samples = 1437, test = 360, shape = [1, 8, 8] }
"""


class Small:
    """The study, its file and its cells."""

    def __init__(self, folder: Path, text: str = TEXT) -> None:
        self.file = folder / "small.toml"
        self.file.write_text(text)
        self.study: Study = study.read(self.file)
        self.cells: list[Cell] = list(cells(self.study).values())


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("study"))
