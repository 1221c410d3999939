"""Combinations by name: ``ngc+qgm``, ``dpsgd+adamw``, ``compngc+choco``, ``tracking+sign``.

A name is one or more parts joined by ``+``, in any order, at most one of each kind. What is not
named is as in D-PSGD: the agent's own gradient, SGD with momentum, gossip; ``dpsgd`` may say so. A
codec may be the last part: it sets `codec`, and selects CHOCO's rule if no averaging is named. A
part of the user's own is ``module:Class``.
"""

import re
from collections.abc import Sequence
from copy import copy
from functools import cache, partial
from typing import Any, Literal

from pydantic import create_model

from parley.algorithms.adagossip import AdaGossip, AdaptiveGossip
from parley.algorithms.adam import Adam, AdamW
from parley.algorithms.base import LocalSteps
from parley.algorithms.beer import BEER
from parley.algorithms.cga import CGA, Projection
from parley.algorithms.choco import CHOCO, DifferenceGossip
from parley.algorithms.clip import Clip
from parley.algorithms.compcga import CompCGA, CompressedProjection
from parley.algorithms.compngc import CompNGC, CompressedClustering
from parley.algorithms.deepsqueeze import CompensatedGossip, DeepSqueeze
from parley.algorithms.dpsgd import DPSGD
from parley.algorithms.lion import Lion
from parley.algorithms.ngc import NGC, Clustering
from parley.algorithms.parts import (
    SGD,
    AveragingRule,
    ClippingRule,
    ConservingRule,
    Correction,
    CrossGradientRule,
    Debias,
    Gossip,
    GradientRule,
    Own,
    Part,
    TellingRule,
    UpdateRule,
)
from parley.algorithms.qgm import QGM, QuasiGlobal
from parley.algorithms.quantized import Quantized
from parley.algorithms.recipe import Combination, Parts, kinds_of, no_local_steps
from parley.algorithms.sam import SharpnessAware
from parley.algorithms.sgp import SGP, PushSum
from parley.algorithms.sparsepush import SparsePush
from parley.algorithms.tracking import GradientTracking, Tracking
from parley.errors import BadValue, unknown_name
from parley.user_code import check_allowed, imported, is_code
from parley.wire.codec import EXAMPLES

PARTS: dict[str, type[Part]] = {
    part.word: part
    for part in (
        *(Clustering, CompressedClustering, Projection, CompressedProjection, SharpnessAware),
        *(Tracking, Clip),
        *(QuasiGlobal, Adam, AdamW, Lion),
        *(Gossip, DifferenceGossip, CompensatedGossip, AdaptiveGossip),
        PushSum,
    )
}
"""The parts with a name, in the order of their slots."""

NAMED: tuple[type[Combination], ...] = (
    *(DPSGD, NGC, CompNGC, CGA, CompCGA, QGM, GradientTracking),
    *(Quantized, CHOCO, DeepSqueeze, AdaGossip, BEER, SGP, SparsePush),
)
"""Combinations with a name of their own."""

CODECS = [example.partition(":")[0] for example in EXAMPLES]
PLAIN = DPSGD.name
"""What stands in a name for everything that the other words say nothing about."""
PLAINEST = DPSGD().parts


def part_kind(word: str) -> str:
    """What kind of part it is.

    >>> part_kind("qgm"), part_kind("push-sum")
    ('update', 'de-biasing')
    """
    return PARTS[word].slot.replace("debias", "de-biasing")


def compose(name: str) -> type[Combination]:
    """The class of algorithms made of the parts in `name`.

    >>> kind = compose("qgm+ngc")
    >>> kind.name, kind(alpha=0.5, mu=0.8).label
    ('ngc+qgm', 'NGC + QGM α=0.5')
    """
    words = [word.strip() for word in name.split("+")]
    codec = next((w for w in words if w not in PARTS and w.partition(":")[0] in CODECS), "")
    found: dict[str, tuple[str, type[Part]]] = {}
    for word in (w for w in words if w not in (PLAIN, codec)):
        part = _part(word)
        if part.slot in found:
            both = f"{found[part.slot][0]} and {word} are both the {part.slot} rule"
            raise BadValue("algorithm", name, f"at most one {part.slot} rule", both)
        found[part.slot] = word, part
    if codec and "averaging" not in found:
        found["averaging"] = DifferenceGossip.word, DifferenceGossip
    for _, part in found.values() if PLAIN in words else ():
        if part.alone and part is not QuasiGlobal:
            because = f"dpsgd means own gradients with gossip, and {part.word} is another choice"
            valid = "+".join(word for word in words if word != PLAIN)
            raise BadValue("algorithm", name, valid, because)
    return combined(tuple(found[slot] for slot in Parts._fields if slot in found), codec)


def _part(word: str) -> type[Part]:
    """The part of that name, or the user's own."""
    if word in PARTS:
        return PARTS[word]
    if not is_code(word):
        raise unknown_name("algorithm", word, [*PARTS, *CODECS])
    check_allowed(word, field="algorithm")
    part = imported(word, "algorithm", "module:Class")
    if not (isinstance(part, type) and issubclass(part, Part) and hasattr(part, "slot")):
        because = "it is not a subclass of a rule of parley.algorithms.parts"
        raise BadValue("algorithm", word, "a class of a part, or one of the parts", because)
    return part


@cache
def combined(chosen: tuple[tuple[str, type[Part]], ...], codec: str = "") -> type[Combination]:
    """The class of algorithms made of these parts, each with its word. It has all their
    hyper-parameters as fields."""
    parts = tuple(part for _, part in chosen)
    bare = not codec and not any(part.alone for part in parts)
    end = [codec] if codec else []
    titles = [DPSGD.title] * bare + [part.title or part.__name__ for part in parts] + end
    name = "+".join([PLAIN] * bare + [word for word, _ in chosen] + end)
    kinds = kinds_of(parts)
    _check_fit(name, kinds)
    fields: dict[str, Any] = {}
    for slot in ("update", "averaging", "gradient", "correction", "clipping", "debias"):
        for option, field in kinds[slot].options().items() if slot in kinds else ():
            if option in fields:
                because = f"two of its parts have an option {option}"
                raise BadValue("algorithm", name, "parts with different options", because)
            fields[option] = (field.annotation, copy(field))
        if slot == "averaging" and not no_local_steps(kinds):
            fields["local_steps"] = (LocalSteps, 1)
    if codec and "codec" not in fields:
        because = f"{kinds['averaging'].__name__} encodes nothing"
        raise BadValue("algorithm", name, f"the name without {codec}", because)
    if codec:
        fields["codec"][1].default = codec
    made = create_model(name, __base__=Combination, **fields)
    made.name, made.title, made.__doc__ = name, " + ".join(titles), f"Combines {', '.join(titles)}."
    made.again = partial(combined, chosen, codec)
    made.contain(parts)
    return made


def _check_fit(name: str, kinds: dict[str, type[Part]]) -> None:
    """Refuses parts that cannot work together, and says why."""
    gradient, averaging = kinds["gradient"], kinds["averaging"]
    around = issubclass(gradient, CrossGradientRule)
    if around and not issubclass(averaging, TellingRule):
        because = f"{gradient.word} needs the neighbours' models, "
        because += f"but {averaging.word} sends only parts of them"
        valid = f"{gradient.word} with gossip, choco or adagossip"
        raise BadValue("algorithm", name, valid, because)
    if "debias" in kinds and gradient.needs == "symmetric":
        because = f"{gradient.word} needs symmetric weights, for which push-sum has no effect"
        valid = "push-sum with an agent's own gradient, ngc or compngc"
        raise BadValue("algorithm", name, valid, because)
    if "debias" in kinds and not issubclass(averaging, ConservingRule):
        because = "push-sum relies on the sum of all models, "
        because += f"which {averaging.word} does not preserve"
        valid = "push-sum with gossip, choco or deepsqueeze"
        raise BadValue("algorithm", name, valid, because)


def Recipe(
    *,
    gradient: GradientRule = PLAINEST.gradient,
    correction: Correction | None = None,
    clipping: ClippingRule | None = None,
    update: UpdateRule = PLAINEST.update,
    averaging: AveragingRule = PLAINEST.averaging,
    debias: Debias | None = None,
    gradient_at: Literal["own", "mixed"] = "own",
    local_steps: int = 1,
) -> Combination:
    """The algorithm that is made of these parts, whatever it is called.

    >>> Recipe(correction=Tracking(), averaging=DifferenceGossip()).title
    'BEER'
    >>> Recipe(gradient=Clustering(alpha=0.5)) == NGC(alpha=0.5)
    True
    """
    every = (gradient, correction, clipping, update, averaging, debias)
    parts = [part for part in every if part is not None]
    values = {name: value for part in parts for name, value in part}
    given = {name for part in parts for name in part.model_fields_set}
    kind = _kind_of(parts, values)
    options = {
        name: value
        for name, value in values.items()
        if name in kind.options() and (name in given or kind.options()[name].default != value)
    }
    if gradient_at != "own":
        options["gradient_at"] = gradient_at
    if local_steps != 1:
        options["local_steps"] = local_steps
    return kind(**options)


def _kind_of(parts: Sequence[Part], values: dict[str, Any]) -> type[Combination]:
    """A class from the table whose parts are these and whose fixed options have these values, or
    else one named after the parts."""
    kinds = kinds_of([type(part) for part in parts])
    for kind in NAMED:
        fixed = {
            n: f for part in parts for n, f in part.options().items() if n not in kind.options()
        }
        if kind.kinds == kinds and all(values[n] == f.default for n, f in fixed.items()):
            return kind
    return combined(
        tuple(
            (part.word or type(part).__name__.lower(), type(part))
            for part in parts
            if type(part) not in (Own, SGD)
            and (type(part) is not Gossip or values["codec"] != "dense")
        )
    )


def named_with(spec: str, field: str) -> tuple[str, dict[str, str]]:
    """A name, and the settings that are written after it.

    >>> named_with("choco:codec=topk:0.01:lr=0.1", "algorithms")
    ('choco', {'codec': 'topk:0.01', 'lr': '0.1'})
    """
    # A value, or the codec at the end of a name, may itself contain a colon: codec=topk:0.01.
    name, *settings = re.split(r":(?![\d.,\s]*(?:warmup|to|per)=)(?=[^:=]*=)", spec)
    pairs = [setting.partition("=")[::2] for setting in settings]
    if not all(key and value for key, value in pairs):
        raise BadValue(field, spec, "name or name:option=value:option=value")
    written = [key.strip().replace("-", "_") for key, _ in pairs]
    for key in written:
        if written.count(key) > 1:
            raise BadValue(field, spec, "each option once", f"{key} is given twice")
        if key in ("name", "algorithm"):
            raise BadValue(field, spec, "the algorithm's name first, without a key")
    return name, dict(zip(written, (value.strip() for _, value in pairs), strict=True))
