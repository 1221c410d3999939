"""Combinations by name: ``ngc+qgm``, ``compngc+choco``, ``ngc+push-sum``, ``tracking+sign``.

A name is one or more parts joined by ``+``, in any order, at most one of each kind. What is not
named is D-PSGD's: the own gradient, SGD with momentum, gossip. A codec's spec may stand for the
last part: it sets `codec`, and averages by CHOCO's rule if no averaging is named.
"""

from functools import lru_cache
from types import new_class
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from parley.algorithms.adagossip import AdaptiveGossip
from parley.algorithms.base import Part
from parley.algorithms.cga import Projection
from parley.algorithms.choco import DifferenceGossip
from parley.algorithms.compcga import CompressedProjection
from parley.algorithms.compngc import CompressedClustering
from parley.algorithms.composed import SGD, CodecSpec, Composed, Gossip, Own
from parley.algorithms.deepsqueeze import CompensatedGossip
from parley.algorithms.ngc import Clustering
from parley.algorithms.qgm import QuasiGlobal
from parley.algorithms.sgp import PushSum
from parley.algorithms.tracking import Tracking
from parley.errors import BadValue, unknown_name
from parley.wire.codec import EXAMPLES

PartKind = Literal["gradient", "correction", "update", "averaging", "de-biasing"]


class Row(NamedTuple):
    """A part by name."""

    kind: PartKind
    part: type[Part]
    title: str


PARTS: dict[str, Row] = {
    "ngc": Row("gradient", Clustering, "NGC"),
    "compngc": Row("gradient", CompressedClustering, "CompNGC"),
    "cga": Row("gradient", Projection, "CGA"),
    "compcga": Row("gradient", CompressedProjection, "CompCGA"),
    "tracking": Row("correction", Tracking, "Tracking"),
    "qgm": Row("update", QuasiGlobal, "QGM"),
    "gossip": Row("averaging", Gossip, "Gossip"),
    "choco": Row("averaging", DifferenceGossip, "CHOCO"),
    "deepsqueeze": Row("averaging", CompensatedGossip, "DeepSqueeze"),
    "adagossip": Row("averaging", AdaptiveGossip, "AdaGossip"),
    "push-sum": Row("de-biasing", PushSum, "Push-sum"),
}
"""In the order in which a combination's name has them."""

CODECS = [example.partition(":")[0] for example in EXAMPLES]
DEFAULTS: dict[PartKind, type[Part]] = {"gradient": Own, "update": SGD, "averaging": Gossip}


def compose(name: str) -> type[Composed]:
    """The algorithm that is put together from the parts in `name`.

    >>> algorithm = compose("qgm+ngc")
    >>> algorithm.name, algorithm(alpha=0.5, mu=0.8).label
    ('ngc+qgm', 'NGC + QGM α=0.5')
    >>> compose("ngc+qgm") is algorithm
    True
    """
    words = [word.strip() for word in name.split("+")]
    codec = next((w for w in words if w not in PARTS and w.partition(":")[0] in CODECS), None)
    named: dict[PartKind, str] = {}
    for word in (w for w in words if w != codec):
        if word not in PARTS:
            raise unknown_name("algorithm", word, [*PARTS, *CODECS])
        kind = PARTS[word].kind
        if kind in named:
            both = f"{named[kind]} and {word} are both the {kind} rule"
            raise BadValue("algorithm", name, f"at most one {kind} rule", both)
        named[kind] = word
    if codec and "averaging" not in named:
        named["averaging"] = "choco"
    _check_fit(name, named)
    return _put_together(tuple(word for word in PARTS if word in named.values()), codec)


def _check_fit(name: str, named: dict[PartKind, str]) -> None:
    """Refuses parts that cannot work together, and says why."""
    gradient, averaging = named.get("gradient", ""), named.get("averaging", "")
    if gradient and averaging == "deepsqueeze":
        because = f"{gradient} needs the neighbours' models, of which deepsqueeze tells only parts"
        raise BadValue("algorithm", name, f"{gradient} with gossip, choco or adagossip", because)
    if "de-biasing" in named and gradient in ("cga", "compcga"):
        because = f"{gradient} needs symmetric weights, with which push-sum has nothing to do"
        raise BadValue("algorithm", name, "push-sum with the own gradient, ngc or compngc", because)
    if "de-biasing" in named and averaging == "adagossip":
        because = "adagossip does not keep the sum of all models, by which push-sum lives"
        raise BadValue("algorithm", name, "push-sum with gossip, choco or deepsqueeze", because)


@lru_cache
def _put_together(words: tuple[str, ...], codec: str | None) -> type[Composed]:
    rows = [PARTS[word] for word in words]
    chosen = {row.kind: row.part for row in rows}
    # Corrections and wrappers first: they stand before what they correct in the order of lookup.
    kinds: tuple[PartKind, ...] = ("de-biasing", "correction", "update", "averaging", "gradient")
    parts = [chosen.get(kind, DEFAULTS.get(kind)) for kind in kinds]
    end = [codec] if codec else []
    titles = [row.title for row in rows] + end
    name = "+".join([*words, *end])

    def body(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = __name__
        namespace["__doc__"] = f"Put together from {', '.join(titles)}."
        namespace["__annotations__"] = dict.fromkeys(("name", "title", "needs"), ClassVar[str])
        namespace |= {"name": name, "title": " + ".join(titles)}
        namespace["needs"] = _needs(chosen)
        if codec:
            namespace["__annotations__"]["codec"] = CodecSpec
            namespace["codec"] = Field(
                codec, validate_default=True, description="C, how values are written."
            )

    bases = (*[part for part in parts if part], Combination)
    made: type[Composed] = new_class(name, bases, {}, body)
    return made


def _needs(chosen: dict[PartKind, type[Part]]) -> str:
    if "de-biasing" in chosen:
        return "column-stochastic"
    return (
        "symmetric" if issubclass(chosen.get("gradient", Own), Projection) else "doubly-stochastic"
    )


class Combination(Composed):
    """A combination by name."""

    @property
    def label(self) -> str:
        """α is part of the name where it is not 1."""
        alpha = getattr(self, "alpha", 1)
        return self.title if alpha == 1 else f"{self.title} α={alpha:g}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Its class is made from its name, in whichever process.
        return _again, (self.name, self.model_dump(exclude_unset=True))


def _again(name: str, options: dict[str, Any]) -> Composed:
    return compose(name)(**options)
