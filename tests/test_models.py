import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from parley.errors import BadValue
from parley.models import MODELS, EvoNorm, build, options, refuse_batch_statistics


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "values", "parameters"),
    [
        ("cnn5", (3, 32, 32), 10, {}, 76_010),
        ("cnn5", (3, 32, 32), 10, {"evonorm": "s0"}, 76_202),
        ("lenet5", (1, 28, 28), 10, {}, 61_706),
        ("logistic", (1, 8, 8), 10, {}, 650),
        ("logistic", (20,), 3, {}, 63),
        ("mlp", (1, 8, 8), 10, {}, 64 * 64 + 64 + 640 + 10),
        ("mlp", (1, 8, 8), 10, {"hidden": 5}, 64 * 5 + 5 + 50 + 10),
    ],
)
def test_parameter_counts_are_the_papers(name, shape, classes, values, parameters):
    model = build(name, shape, classes, **values)
    assert count(model) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, classes)
    refuse_batch_statistics(model)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn5", (1, 8, 8)),
        ("cnn5", (3, 33, 47)),
        ("lenet5", (3, 12, 12)),
        ("lenet5", (3, 32, 32)),
        ("lenet5", (1, 13, 30)),
    ],
)
def test_convolutional_models_fit_other_image_sizes(name, shape):
    assert build(name, shape, 4)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "shape", "least"),
    [("lenet5", (1, 8, 8), "12 x 12"), ("cnn5", (3, 7, 9), "8 x 8"), ("cnn5", (64,), "8 x 8")],
)
def test_too_small_images_are_refused(name, shape, least):
    with pytest.raises(BadValue) as error:
        build(name, shape, 10)
    for part in (name, str(shape), least):
        assert part in str(error.value)


def test_cnn5_is_initialised_as_run():
    torch.manual_seed(0)
    model = build("cnn5", (3, 32, 32), 10)
    convolutions = [m for m in model if isinstance(m, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [32, 32, 64, 64]
    for conv in convolutions[1:]:
        std = math.sqrt(2 / (9 * conv.out_channels))
        assert conv.weight.std().item() == pytest.approx(std, rel=0.05)
        assert conv.weight.mean().item() == pytest.approx(0, abs=0.05 * std)


def evonorm_loop(x, gamma, beta, v, groups):
    n, channels, height, width = x.shape
    per_group = channels // groups
    y = np.empty_like(x)
    for i, g in itertools.product(range(n), range(groups)):
        members = range(g * per_group, (g + 1) * per_group)
        values = [x[i, c, h, w] for c in members for h in range(height) for w in range(width)]
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        for c, h, w in itertools.product(members, range(height), range(width)):
            a = x[i, c, h, w]
            gate = min(max(a / 6 + 0.5, 0), 1) if v is None else 1 / (1 + math.exp(-v[c] * a))
            y[i, c, h, w] = a * gate / math.sqrt(variance + 1e-5) * gamma[c] + beta[c]
    return y


@pytest.mark.parametrize("form", ["hard-swish", "s0"])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_evonorm_is_its_formula(form, groups):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 8, 3, 2)) * 4  # reaches both ends of the clamp
    layer = EvoNorm(8, groups, form).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=8)))
    v = None if layer.v is None else layer.v.detach().numpy()
    expected = evonorm_loop(x, layer.gamma.detach().numpy(), layer.beta.detach().numpy(), v, groups)
    actual = layer(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("form", ["hard-swish", "s0"])
def test_evonorm_gradient(form):
    torch.manual_seed(0)
    layer = EvoNorm(4, 2, form).double()
    x = torch.randn(2, 4, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_evonorm_samples_do_not_mix():
    x = torch.randn(5, 16, 4, 4)
    layer = EvoNorm(16)
    torch.testing.assert_close(layer(x)[2:3], layer(x[2:3]))


def test_evonorm_refuses_nonsense():
    with pytest.raises(BadValue, match="divisor of the 12 channels"):
        EvoNorm(12)
    with pytest.raises(BadValue, match="hard-swish, s0"):
        build("cnn5", (3, 32, 32), 10, evonorm="relu")


def test_unknown_names_and_options():
    with pytest.raises(BadValue, match="did you mean 'lenet5'"):
        build("lenet", (1, 28, 28), 10)
    with pytest.raises(BadValue, match=r"'width' is not valid.*no options: lenet5 has none"):
        build("lenet5", (1, 28, 28), 10, width=2)
    with pytest.raises(BadValue, match="whole number from 1"):
        build("mlp", (4,), 2, hidden=0)
    assert {name: options(name) for name in MODELS} == {
        "logistic": (),
        "mlp": ("hidden",),
        "lenet5": (),
        "cnn5": ("evonorm",),
    }


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ],
)
def test_batch_statistics_are_refused(layer):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(layer))
    with pytest.raises(BadValue) as error:
        refuse_batch_statistics(model)
    for part in (type(layer).__name__, "1.0", "GroupNorm", "EvoNorm", "not parameters"):
        assert part in str(error.value)


@pytest.mark.parametrize("layer", [nn.InstanceNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4)])
def test_other_norms_are_welcome(layer):
    refuse_batch_statistics(nn.Sequential(layer))
