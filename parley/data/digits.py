"""The digits dataset that ships with scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from parley.data.samples import Data, Samples
from parley.data.transforms import standardise


def digits() -> Data:
    """scikit-learn's 1,797 digits of 8 x 8; a random fifth of each class is test data."""
    # Read as `sklearn.datasets.load_digits` does, which takes a second to import.
    package = find_spec("sklearn")
    assert package and package.origin, "Parley depends on scikit-learn"
    table = np.loadtxt(
        Path(package.origin).with_name("datasets") / "data/digits.csv.gz", delimiter=","
    )
    images, labels = table[:, :-1], table[:, -1].astype(np.int64)
    # Exact in float32: the pixels are whole numbers from 0 to 16.
    everything = Samples(
        torch.from_numpy(images.reshape(-1, 1, 8, 8) / 16).float(),
        torch.from_numpy(labels),
    )
    # A fixed seed: the test set must not change with the seed of a run.
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    is_test = np.arange(len(order)) % 5 == 0
    train, test = (everything.take(np.sort(order[mask])) for mask in (~is_test, is_test))
    return Data("digits", train, test, tuple("0123456789"), standardise(train.inputs))
