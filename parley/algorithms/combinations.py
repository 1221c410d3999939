"""Combinations by name: ``ngc+qgm``, ``dpsgd+adamw``, ``compngc+choco``, ``tracking+sign``.

A name is one or more parts joined by ``+``, in any order, at most one of each kind. What is not
named is as in D-PSGD: the agent's own gradient, SGD with momentum, gossip; ``dpsgd`` may say so. A
codec may be the last part: it sets `codec`, and selects CHOCO's rule if no averaging is named.
"""

import re
from typing import Any

from parley.algorithms.adagossip import AdaptiveGossip
from parley.algorithms.adam import Adam, AdamW
from parley.algorithms.cga import Projection
from parley.algorithms.choco import DifferenceGossip
from parley.algorithms.clip import Clip
from parley.algorithms.compcga import CompressedProjection
from parley.algorithms.compngc import CompressedClustering
from parley.algorithms.deepsqueeze import CompensatedGossip
from parley.algorithms.dpsgd import DPSGD
from parley.algorithms.lion import Lion
from parley.algorithms.ngc import Clustering
from parley.algorithms.parts import Gossip, Part
from parley.algorithms.qgm import QuasiGlobal
from parley.algorithms.recipe import PLAIN, Named, Recipe
from parley.algorithms.sam import SharpnessAware
from parley.algorithms.sgp import PushSum
from parley.algorithms.tracking import Tracking
from parley.errors import BadValue, unknown_name
from parley.wire.codec import EXAMPLES

KINDS: dict[str, tuple[str, tuple[type[Part], ...]]] = {
    "gradient": (
        "gradient",
        (Clustering, CompressedClustering, Projection, CompressedProjection, SharpnessAware),
    ),
    "correction": ("correction", (Tracking,)),
    "clipping": ("clipping", (Clip,)),
    "update": ("update", (QuasiGlobal, Adam, AdamW, Lion)),
    "averaging": (
        "averaging",
        (Gossip, DifferenceGossip, CompensatedGossip, AdaptiveGossip),
    ),
    "debias": ("de-biasing", (PushSum,)),
}
"""The parts with a name, by the field of a recipe that they are for, with the word for it. A
combination's name has them in this order."""

PARTS = {part.word: part for _, parts in KINDS.values() for part in parts}
CODECS = [example.partition(":")[0] for example in EXAMPLES]


def part_kind(word: str) -> str:
    """What kind of part it is.

    >>> part_kind("qgm"), part_kind("push-sum")
    ('update', 'de-biasing')
    """
    return next(kind for kind, parts in KINDS.values() if PARTS[word] in parts)


def compose(name: str) -> Named:
    """The recipe of the parts in `name`.

    >>> named = compose("qgm+ngc")
    >>> named.name, named(alpha=0.5, mu=0.8).label
    ('ngc+qgm', 'NGC + QGM α=0.5')
    """
    words = [word.strip() for word in name.split("+")]
    plain = PLAIN in words
    words = [word for word in words if word != PLAIN]
    codec = next((w for w in words if w not in PARTS and w.partition(":")[0] in CODECS), None)
    found: dict[str, type[Part]] = {}
    for word in (w for w in words if w != codec):
        if word not in PARTS:
            raise unknown_name("algorithm", word, [*PARTS, *CODECS])
        part = PARTS[word]
        field = next(field for field, (_, parts) in KINDS.items() if part in parts)
        if field in found:
            both = f"{found[field].word} and {word} are both the {part_kind(word)} rule"
            raise BadValue("algorithm", name, f"at most one {part_kind(word)} rule", both)
        found[field] = part
    if codec and "averaging" not in found:
        found["averaging"] = DifferenceGossip
    chosen = [part for part in PARTS.values() if part in found.values()]
    for part in chosen if plain else ():
        if part.alone and part is not QuasiGlobal:
            because = f"dpsgd means own gradients with gossip, and {part.word} is another choice"
            raise BadValue("algorithm", name, "+".join(w for w in words), because)
    parts: dict[str, Any] = {field: part() for field, part in found.items()}
    if codec:
        parts["averaging"] = found["averaging"](codec=codec)
    end = [codec] if codec else []
    bare = not codec and not any(part.alone for part in chosen)
    titles = [DPSGD.title] * bare + [part.title for part in chosen] + end
    return Named(
        "+".join([PLAIN] * bare + [part.word for part in chosen] + end),
        " + ".join(titles),
        Recipe(**parts),
        f"Combines {', '.join(titles)}.",
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
