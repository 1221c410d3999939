"""Batches made by the compiled pass have every bit of those that torch makes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.compute import batching, kernels
from parley.data import Batches, Samples, Transform, batches

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.reason())


def same(inputs, index, transform, draws=None) -> None:
    asked = (inputs, index, transform, draws, torch.float32)
    found, expected = batching.gathered(*asked), batches.gathered(*asked)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 20), st.integers(1, 40)),
    normalised=st.booleans(),
    flip=st.booleans(),
    padding=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_every_bit_is_the_same(shape, normalised, flip, padding, seed):
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.integers(0, 256, (7, *shape), dtype=np.uint8))
    mean, std = (tuple(v) if normalised else () for v in rng.uniform(0.1, 1, (2, shape[0])))
    transform = Transform(mean, std, flip=flip, crop_padding=padding)
    same(inputs, rng.integers(0, len(inputs), 9), transform, transform.draw(rng, 9))


def test_all_256_values_of_a_byte():
    inputs = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(1, 3, -1, -1)
    transform = Transform((0.4914, 0.48, 0.44), (0.247, 0.243, 0.26), flip=True)
    same(inputs.contiguous(), np.array([0, 0]), transform, np.array([[0, 0, 0], [1, 0, 0]]))


def test_what_the_kernel_cannot_take_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(kernels, "library", lambda: pytest.fail("the kernel was called"))
    images = torch.randint(256, (4, 3, 6, 6), dtype=torch.uint8)
    index, plain = np.array([2, 0]), Transform((0.5,) * 3, (0.25,) * 3)
    flipping = Transform((0.5,) * 3, (0.25,) * 3, flip=True)
    draws = np.array([[1, 0, 0], [0, 0, 0]])
    same(images, index, plain)
    same(images.float() / 255, index, flipping, draws)
    same(images.mT, index, flipping, draws)
    resized = Transform(resized_crop=4)
    same(images, index, resized, resized.draw(np.random.default_rng(0), 2, (6, 6)))
    found = batching.gathered(images, index, flipping, draws, torch.float64)
    assert found.dtype == torch.float64


def test_nothing_outside_the_images_is_read():
    images = torch.zeros(4, 1, 6, 6, dtype=torch.uint8)
    few, flipping = np.zeros((1, 3), np.int64), Transform(flip=True)
    for index in ([4], [-1]):
        with pytest.raises(IndexError, match="of 4"):
            batching.gathered(images, np.array(index), flipping, few, torch.float32)
    with pytest.raises(ValueError, match="draws"):
        batching.gathered(images, np.array([0, 1]), flipping, few, torch.float32)


def test_batches_are_the_same_with_either():
    images = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    samples = [Samples(images[: 2 + k], torch.arange(2 + k)) for k in range(3)]
    transform = Transform((0.5,) * 3, (0.25,) * 3, flip=True, crop_padding=2)
    slow = Batches(samples, range(3), 3, transform, seed=1)
    fast = Batches(samples, range(3), 3, transform, seed=1, gather=batching.gathered)
    for step in range(4):
        for one, other in zip(slow.at(step)[:3], fast.at(step)[:3], strict=True):
            assert torch.equal(one, other)
