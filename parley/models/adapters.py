"""Low-rank adapters: a network whose weights stay as they are, and small matrices beside them that
are learned.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021. A layer with the weights W
becomes W + (α / r) B A, where A and B have r rows and columns. Only A and B travel between agents.
The library `peft` puts them in.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from torch import nn

from parley.errors import BadValue, needed, unknown_name

ALL = "all-linear"
"""As targets: every linear layer but those that are trained in full and a language model's last."""
MOST_RANK = 65_536
SHOWN = 12
"""Layers that are named, at most, where some must be chosen."""


@dataclass(frozen=True)
class Lora:
    """What is adapted, and how."""

    r: int = 8
    """The rank of the adapters."""
    alpha: float = 16.0
    """Their scale is alpha / r."""
    dropout: float = 0.0
    """Of an adapter's inputs, in training."""
    targets: tuple[str, ...] = ()
    """The ends of the names of layers that get adapters; by default those that are usual for a
    network of `transformers`."""
    train: tuple[str, ...] = ()
    """Parts of the network that are trained in full, by name; by default the new head of a
    classifier."""


def parse_lora(spec: str) -> Lora | None:
    """Adapters as an experiment names them; None if it names none.

    >>> parse_lora("r=4,targets=q_proj,v_proj")
    Lora(r=4, alpha=8.0, dropout=0.0, targets=('q_proj', 'v_proj'), train=())
    >>> parse_lora("depth=4")
    Traceback (most recent call last):
    parley.errors.BadValue: lora: 'depth' is not valid; valid: alpha, dropout, r, targets, train
    """
    if not spec.strip():
        return None
    given: dict[str, list[str]] = {}
    key = ""
    for word in spec.split(","):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals and key in ("targets", "train"):
            given[key].append(name)  # one more of a list
            continue
        key = name
        if not equals or key in given:
            raise BadValue("lora", spec, "r=8,alpha=16,targets=q_proj,v_proj, each once")
        if key not in {field.name for field in fields(Lora)}:
            raise unknown_name("lora", key, [field.name for field in fields(Lora)])
        given[key] = [value]
    for name, values in given.items():
        if not all(values):
            raise BadValue(f"lora.{name}", ",".join(values), "a value, such as r=8")
    rank = _number("r", given.get("r", ["8"])[0], 1, MOST_RANK)
    if rank != int(rank):
        raise BadValue("lora.r", rank, "a whole number")
    alpha = _number("alpha", given["alpha"][0], 0, 1e6) if "alpha" in given else 2 * rank
    dropout = _number("dropout", given["dropout"][0], 0, 0.99) if "dropout" in given else 0.0
    lists = (tuple(given.get(name, ())) for name in ("targets", "train"))
    return Lora(int(rank), alpha, dropout, *lists)


def _number(name: str, value: str, least: float, most: float) -> float:
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if not least <= found <= most:
        raise BadValue(f"lora.{name}", value, f"a number from {least:g} to {most:g}")
    return found


def adapted(model: nn.Module, lora: Lora) -> nn.Module:
    """The model with adapters. Its own parameters are frozen, but for the parts that are trained in
    full. The adapters' start is drawn from torch's global generator, and changes no output."""
    peft = _library()
    whole = _trained_in_full(model, lora)
    targets = _targets(model, lora, whole)
    config = peft.LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it notices transposed layers, and says so
            made: nn.Module = peft.inject_adapter_in_model(config, model)
    except ValueError as error:
        because = (str(error).splitlines() or [""])[0][:200]
        raise BadValue("lora.targets", ", ".join(lora.targets), _choices(model), because) from error
    for name, parameter in made.named_parameters():
        if any(name == part or name.startswith(f"{part}.") for part in whole):
            parameter.requires_grad_(True)
    return made


def merged(model: nn.Module) -> nn.Module:
    """The model, changed so that its adapters are part of its own weights. It then has the layers
    and names that it had before; without adapters it stays as it is."""
    for name, layer in list(_adapted_layers(model)):
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
    return model


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, layer in model.named_modules():
        if hasattr(layer, "lora_A") and hasattr(layer, "get_base_layer"):
            yield name, layer


def _library() -> ModuleType:
    return needed("peft", "lora", "lora", "r=…", instead="none")


def _network(model: nn.Module) -> Any:
    """The network of `transformers` that the model is or contains, if any."""
    found = (m for m in model.modules() if hasattr(getattr(m, "config", None), "model_type"))
    return next(found, None)


def _trained_in_full(model: nn.Module, lora: Lora) -> tuple[str, ...]:
    names = [name for name, _ in model.named_modules() if name]
    for part in lora.train:
        if part not in names:
            valid = f"names of parts of the network, such as {', '.join(names[:SHOWN])}"
            raise BadValue("lora.train", part, valid, "it has no such part")
    if lora.train:
        return lora.train
    network = _network(model)
    if network is None or "SequenceClassification" not in type(network).__name__:
        return ()
    # Everything beside the encoder is the head, which is new: adapters would keep it at random.
    inside = next(name for name, module in model.named_modules() if module is network)
    children = (name for name, _ in network.named_children() if name != network.base_model_prefix)
    return tuple(f"{inside}.{name}" if inside else name for name in children)


def _targets(model: nn.Module, lora: Lora, whole: tuple[str, ...]) -> list[str]:
    network = _network(model)
    if lora.targets == (ALL,):
        last = (
            network.get_output_embeddings() if hasattr(network, "get_output_embeddings") else None
        )
        return [
            name
            for name, layer in _linear(model)
            if layer is not last and not any(f"{name}.".startswith(f"{p}.") for p in whole)
        ]
    if lora.targets:
        names = [name for name, _ in model.named_modules()]
        for target in lora.targets:  # of several, peft would leave out those that it does not find
            if not any(f".{name}".endswith(f".{target}") for name in names):
                raise BadValue("lora.targets", target, _choices(model), "it has no such layer")
        return list(lora.targets)
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    kind = getattr(getattr(network, "config", None), "model_type", "")
    if kind not in USUAL:
        because = "which layers to adapt is known only for some networks of transformers"
        raise BadValue("lora.targets", "", _choices(model), because)
    return list(USUAL[kind])


def _linear(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Layers that multiply by a matrix; those of GPT-2 have a type of their own."""
    for name, layer in model.named_modules():
        if name and (isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"):
            yield name, layer


def _choices(model: nn.Module) -> str:
    names = [name for name, _ in _linear(model)]
    ends = list(dict.fromkeys(n if n.rpartition(".")[2].isdigit() else n.rpartition(".")[2]
                              for n in names))  # fmt: skip
    listed = ", ".join(ends[:SHOWN]) + ", …" * (len(ends) > SHOWN)
    return f"{ALL}, or some of its layers: {listed or 'it has no linear ones'}"
