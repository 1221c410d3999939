"""Recipes once more, slowly: what each word of a name such as ``ngc+clip+adamw`` does, in loops.

As `reference.py`, and for the same purpose: nothing here is shared with `parley`. One agent after
the other; every value is a flat float64 vector.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests import reference
from tests.field_reference import Problem, Vectors


def gradients(words: list[str], p: Problem, x: Vectors, k: int) -> Vectors:
    """What each agent steps along, before clipping and weight decay."""
    own = [p.grad(i, x[i], k) for i in range(p.n)]
    if "sam" in words:
        return [
            p.grad(i, x[i] + p.options["rho"] * own[i] / float(own[i].norm()), k)
            for i in range(p.n)
        ]
    if "ngc" in words:
        cross = {(j, i): p.grad(i, x[j], k) for i in range(p.n) for j in reference.senders(i, p.W)}
        return reference.ngc_gradients(own, cross, p.W, p.options["alpha"])
    return own


def clipped(g: Tensor, options: dict[str, Any]) -> Tensor:
    bound = options["clip"]
    if options["clip_by"] == "value":
        return torch.tensor([min(max(float(e), -bound), bound) for e in g], dtype=g.dtype)
    size = float(sum(float(e) ** 2 for e in g) ** 0.5)
    return g * (bound / size) if size > bound else g


class Update:
    """One agent's update rule."""

    def __init__(self, words: list[str], p: Problem) -> None:
        rules: dict[str, Callable[[Tensor, float], Tensor]] = {
            "adam": self.adam,
            "adamw": self.adam,
            "lion": self.lion,
            "qgm": self.quasi_global,
        }
        self.rule = next((rules[w] for w in words if w in rules), self.momentum)
        self.options = p.options
        self.m, self.v, self.t = torch.zeros_like(p.x0), torch.zeros_like(p.x0), 0
        decays = [
            float(p.options["decay_on"] == "all" or is_weight)
            for length, is_weight in zip(p.lengths, p.are_weights, strict=True)
            for _ in range(length)
        ]
        self.decays = p.options["weight_decay"] * torch.tensor(decays, dtype=p.x0.dtype)

    def step(self, g: Tensor, x: Tensor, eta: float) -> Tensor:
        """What to add to x."""
        if self.options["decoupled"]:
            return self.rule(g, eta) - eta * self.decays * x
        return self.rule(g + self.decays * x, eta)

    def momentum(self, g: Tensor, eta: float) -> Tensor:
        beta, nesterov = self.options["momentum"], self.options["nesterov"]
        step, self.v = reference.momentum_step(g, self.v, eta, beta, nesterov)
        return step

    def adam(self, g: Tensor, eta: float) -> Tensor:
        b1, b2 = self.options["beta1"], self.options["beta2"]
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        m_hat, v_hat = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        return -eta * m_hat / (v_hat**0.5 + self.options["epsilon"])

    def lion(self, g: Tensor, eta: float) -> Tensor:
        b1, b2 = self.options["beta1"], self.options["beta2"]
        between = b1 * self.m + (1 - b1) * g
        self.m = b2 * self.m + (1 - b2) * g
        return torch.tensor(
            [-eta if e > 0 else eta if e < 0 else 0.0 for e in between], dtype=g.dtype
        )

    def quasi_global(self, g: Tensor, eta: float) -> Tensor:
        beta = self.options["momentum"]
        m = beta * self.m + g
        return -eta * (g + beta * m if self.options["nesterov"] else m)

    def learn(self, old: Tensor, new: Tensor, eta: float) -> None:
        """What quasi-global momentum reads off the models."""
        if self.rule == self.quasi_global:
            mu = self.options["mu"]
            self.m = mu * self.m + (1 - mu) * (old - new) / eta


def run(name: str, p: Problem) -> list[Vectors]:
    """All iterates of the recipe, `result[k][i]`."""
    words = name.split("+")
    updates = [Update(words, p) for _ in range(p.n)]
    x = p.start()
    known = p.start()  # CHOCO's public copies
    weight = [1.0] * p.n  # push-sum's
    start, rates = x, 0.0  # of the round of local steps
    iterates = [x]
    for k in range(p.steps):
        eta = p.lr(k)
        rates += eta
        g = gradients(words, p, x, k)
        if "clip" in words:
            g = [clipped(g_i, p.options) for g_i in g]
        d = [updates[i].step(g[i], x[i], eta) for i in range(p.n)]
        if (k + 1) % p.options.get("local_steps", 1):  # nobody sends anything
            x = [x[i] + d[i] / weight[i] for i in range(p.n)]
            iterates.append(x)
            continue
        new, weight = averaged(words, p, x, d, known, weight)
        for i in range(p.n):
            updates[i].learn(start[i], new[i], rates)
        x = start = new
        rates = 0.0
        iterates.append(x)
    return iterates


def averaged(
    words: list[str], p: Problem, x: Vectors, d: Vectors, known: Vectors, weight: list[float]
) -> tuple[Vectors, list[float]]:
    """The models with their steps, averaged as the recipe says; and push-sum's weights."""
    gamma = p.options["gamma"]
    if "choco" in words:
        new = []
        for i in range(p.n):
            pull = torch.zeros_like(p.x0)
            for j in range(p.n):
                pull = pull + float(p.W[i, j]) * (known[j] - known[i])
            new.append(x[i] + d[i] + gamma * pull)
        for i in range(p.n):
            known[i] = known[i] + p.C(new[i] - known[i])
        return new, weight
    if "ngc" in words:  # mixes the models from before the step
        return [mixed + step for mixed, step in zip(p.gossip(x), d, strict=True)], weight
    if "push-sum" in words:
        half = p.gossip([weight[i] * x[i] + d[i] for i in range(p.n)])
        shares = [sum(float(p.W[i, j]) * weight[j] for j in range(p.n)) for i in range(p.n)]
        weight = [weight[i] + gamma * (shares[i] - weight[i]) for i in range(p.n)]
        return [half[i] / weight[i] for i in range(p.n)], weight
    return p.gossip([x[i] + d[i] for i in range(p.n)]), weight
