"""The digits dataset, which works without a network.

``digits.npz`` holds the pixels (0 to 16) and labels of "Optical Recognition of Handwritten Digits"
by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998, CC BY 4.0), the test part,
which scikit-learn's `load_digits` returns too.
"""

from pathlib import Path

import numpy as np
import torch

from parley.data.samples import Data, Samples
from parley.data.transforms import standardise


def digits() -> Data:
    """1,797 digits of 8 x 8; a random fifth of each class is test data."""
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as held:
        pixels, labels = held["pixels"], held["labels"].astype(np.int64)
    everything = Samples(
        torch.from_numpy(pixels.reshape(-1, 1, 8, 8)).float() / 16,
        torch.from_numpy(labels),
    )
    # A fixed seed: the test set must not change with the seed of a run.
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    is_test = np.arange(len(order)) % 5 == 0
    train, test = (everything.take(np.sort(order[mask])) for mask in (~is_test, is_test))
    return Data("digits", train, test, tuple("0123456789"), standardise(train.inputs))
