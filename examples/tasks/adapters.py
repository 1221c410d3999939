"""Adapters: three authors adapt a language model that was trained on other texts."""

import random
from functools import cache

from language_model import LENGTH, SITES, TOKENS, pairs, show, site
from language_model import OPTIONS as OF_LETTERS
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import parley
from parley.models.text import NextToken

__all__ = ["OPTIONS", "SITES", "network", "show", "site"]

PUBLIC = (
    ("The road", "Our street", "The old house", "A new bridge", "The school", "This town"),
    ("was built", "has been painted", "is seen from the hill", "opened again", "needs repair"),
    ("last summer", "for the children", "by the river", "with stone and timber", "before noon"),
)
"""Parts of the public sentences that the network is pretrained on."""
OPTIONS = {
    **OF_LETTERS,
    "lora": "r=8,alpha=16,targets=all-linear",
    "algorithm": "dpsgd+adamw",
    "lr": 0.01,
}


def fresh() -> nn.Module:
    """A small `transformers` network, built from its config; a token is a letter."""
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2 * LENGTH,
    )
    return NextToken(LlamaForCausalLM(config))


@cache
def base() -> parley.Result:
    """The network after training on public texts, before any author has seen it."""
    draws = random.Random(0)
    written = (" ".join(draws.choice(part) for part in PUBLIC) for _ in range(150))
    text = pairs(". ".join(written) + ". ")
    options = {"algorithm": "dpsgd+adamw", "lr": 0.003, "epochs": 8, "evaluate_every": 8}
    return parley.train(fresh, [text], progress=False, **{**OF_LETTERS, **options})


def network() -> nn.Module:
    """The network that the authors start from. Its weights are frozen."""
    return base().model()
