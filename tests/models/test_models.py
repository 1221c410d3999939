import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from parley.errors import BadValue
from parley.models import (
    MODELS,
    EvoNorm,
    build,
    check_inputs,
    options,
    replace_batchnorm,
    tokenizer,
)
from parley.models.blocks import Residual


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "values", "parameters"),
    [
        ("cnn5", (3, 32, 32), 10, {}, 76_010),
        ("cnn5", (3, 32, 32), 10, {"evonorm": "s0"}, 76_202),
        ("lenet5", (1, 28, 28), 10, {}, 61_706),
        ("vgg11", (3, 32, 32), 10, {}, 579_786),
        ("vgg11", (3, 32, 32), 10, {"evonorm": "s0"}, 580_474),
        ("resnet20", (3, 32, 32), 10, {}, 272_474),
        ("resnet20", (3, 32, 32), 100, {}, 278_324),
        ("mobilenetv2", (3, 32, 32), 10, {}, 2_296_922),
        ("resnet18", (3, 224, 224), 10, {}, 11_181_642),
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


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn5", (1, 8, 8)),
        ("cnn5", (3, 33, 47)),
        ("lenet5", (3, 12, 12)),
        ("lenet5", (3, 32, 32)),
        ("lenet5", (1, 13, 30)),
        ("vgg11", (1, 33, 70)),
        ("resnet20", (1, 28, 28)),
        ("resnet18", (3, 32, 47)),
        ("mobilenetv2", (1, 9, 20)),
    ],
)
def test_convolutional_models_fit_other_image_sizes(name, shape):
    assert build(name, shape, 4)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "shape", "least"),
    [
        ("lenet5", (1, 8, 8), "12 x 12"),
        ("cnn5", (3, 7, 9), "8 x 8"),
        ("cnn5", (64,), "8 x 8"),
        ("vgg11", (3, 31, 32), "32 x 32"),
        ("resnet18", (3, 28, 28), "32 x 32"),
        ("resnet20", (64,), "8 x 8"),
        ("mobilenetv2", (3, 4, 4), "8 x 8"),
    ],
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


@pytest.mark.parametrize("name", ["vgg11", "resnet20", "resnet18"])
def test_larger_networks_are_initialised_as_run(name):
    torch.manual_seed(0)
    model = build(name, (3, 32, 32), 10)
    for conv in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
        if conv.weight.numel() > 4000:
            std = math.sqrt(2 / (conv.kernel_size[0] ** 2 * conv.out_channels))
            assert conv.weight.std().item() == pytest.approx(std, rel=0.06)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    assert linear.weight.abs().max() <= linear.in_features**-0.5  # PyTorch's own


def test_shortcuts_are_where_shapes_change():
    for name, convolutional, plain in (("resnet20", 2, 7), ("resnet18", 3, 5)):
        blocks = [m for m in build(name, (3, 32, 32), 10) if isinstance(m, Residual)]
        kinds = [isinstance(block.shortcut, nn.Sequential) for block in blocks]
        assert (sum(kinds), len(kinds) - sum(kinds)) == (convolutional, plain)
    mobile = [m for m in build("mobilenetv2", (3, 32, 32), 10) if isinstance(m, Residual)]
    assert len(mobile) == 14  # 17 blocks, of which 3 halve the image
    x = torch.full((1, 1, 1, 1), -9.0)
    assert Residual(nn.Identity(), nn.Identity())(x) == -18  # no activation after the addition


def test_networks_end_in_maps_of_the_papers_size():
    sizes = []
    for name, side in (("resnet20", 32), ("mobilenetv2", 32), ("resnet18", 224)):
        model = build(name, (3, side, side), 10)
        index = next(i for i, m in enumerate(model) if isinstance(m, nn.AdaptiveAvgPool2d))
        with torch.no_grad():
            sizes.append(tuple(model[:index](torch.zeros(1, 3, side, side)).shape[1:]))
    assert sizes == [(64, 8, 8), (1280, 4, 4), (512, 7, 7)]


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
    with pytest.raises(BadValue, match="whole number from 1 to"):
        build("mlp", (4,), 2, hidden=0)
    for wrong in ("hf", "hf:"):
        with pytest.raises(BadValue, match="hf:FOLDER, or hf:OWNER/NAME"):
            build(wrong, (128,), 4)
    with pytest.raises(BadValue, match=r"'cnn5:9' is not valid.*valid: cnn5"):
        build("cnn5:9", (3, 32, 32), 10)
    assert {name: options("hf:x" if name == "hf" else name) for name in MODELS} == {
        "logistic": (),
        "mlp": ("hidden",),
        "lenet5": (),
        "cnn5": ("evonorm",),
        "vgg11": ("evonorm",),
        "resnet20": ("evonorm",),
        "resnet18": ("evonorm",),
        "mobilenetv2": ("evonorm",),
        "bert-mini": ("pretrained", "dropout", "vocabulary", "outputs"),
        "distilbert": ("pretrained", "dropout", "vocabulary", "outputs"),
        "hf": ("fresh", "dropout", "head"),
    }


def test_inputs_must_be_of_the_models_kind():
    images, texts = torch.zeros(2, 3, 8, 8), torch.zeros(2, 16, dtype=torch.int32)
    check_inputs("cnn5", images)
    check_inputs("hf:anything", texts)
    check_inputs("somebody's own", texts)
    with pytest.raises(BadValue, match=r"'cnn5'.*token IDs.*bert-mini"):
        check_inputs("cnn5", texts)
    with pytest.raises(BadValue, match=r"'hf:x'.*not text.*mlp"):
        check_inputs("hf:x", images)


def test_the_tokenizer_that_belongs_to_a_model():
    assert tokenizer("hf:folder/x", {}) == "folder/x"
    assert tokenizer("bert-mini", {"pretrained": "owner/name"}) == "owner/name"
    assert tokenizer("bert-mini", {}) is None and tokenizer("mlp", {"hidden": 3}) is None


def test_group_norm_takes_the_place_of_batch_norm():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU())
    model = nn.Sequential(inner, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(12))
    nn.init.uniform_(inner[1].weight)
    made = replace_batchnorm(model)
    assert isinstance(inner[1], nn.BatchNorm2d)  # the user's own module is left alone
    assert isinstance(made[0][1], nn.GroupNorm) and isinstance(made[3], nn.GroupNorm)
    assert made[0][1].num_groups == 6 and made[0][1].num_channels == 12
    assert torch.equal(made[0][1].weight, inner[1].weight)
    assert not list(made.buffers())
    assert replace_batchnorm(nn.BatchNorm1d(7)).num_groups == 1
    one = torch.randn(1, 3, 8, 8)
    both = torch.cat([one, torch.randn(3, 3, 8, 8)])
    assert torch.allclose(made(one)[0], made(both)[0], atol=1e-5)
    with pytest.raises(BadValue, match="LazyBatchNorm2d"):
        replace_batchnorm(nn.Sequential(nn.LazyBatchNorm2d()))
