"""The Hugging Face hub: no long waits when it is unreachable, and its optional libraries."""

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def is_id(name: str) -> bool:
    """Whether a string looks like a hub ID.

    >>> is_id("uoft-cs/cifar10"), is_id("a/b/c"), is_id("cifar10")
    (True, False, False)
    """
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


@contextmanager
def offline_unless_reachable(wanted: bool = True) -> Iterator[bool]:
    """Keeps the hub's clients from retrying for half a minute when there is no network.

    One request with a short timeout finds out; without an answer, only earlier downloads are used.
    It goes through the client's own session, so that proxies and mirrors are respected.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    # `datasets` copies the setting when it is imported.
    settings: list[Any] = [constants]
    if "datasets" in sys.modules:
        settings.append(importlib.import_module("datasets.config"))
    before = [module.HF_HUB_OFFLINE for module in settings]
    reachable = not any(before)
    if wanted and reachable:
        try:
            get_session().head(constants.ENDPOINT, timeout=5)
        except Exception:  # the type depends on the client's version (requests or httpx)
            reachable = False
            for module in settings:
                module.HF_HUB_OFFLINE = True
    try:
        yield reachable
    finally:
        for module, value in zip(settings, before, strict=True):
            module.HF_HUB_OFFLINE = value
