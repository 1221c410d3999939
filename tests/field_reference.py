"""The rest of the field once more, slowly: nested loops over agents, straight from the papers.

As `reference.py`, and for the same purpose: this file shares no code with `parley`. Each function
is one algorithm. Every agent's value is one flat float64 vector in a Python list.

    x[i]      agent i's parameters           W[i, j]   what i gives to j's value
    g[i]      its gradient on its own data   C(p)      what a receiver makes of p, compressed
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests import reference

Vectors = list[Tensor]


@dataclass
class Problem:
    """What all algorithms get."""

    x0: Tensor
    W: np.ndarray
    grad: Callable[[int, Tensor, int], Tensor]
    """Gradient at x of agent i's loss on its batch of step k."""
    accuracy: Callable[[int, Tensor, int], float]
    """Accuracy of x on agent i's batch of step k."""
    steps: int
    lr: Callable[[int], float]
    lengths: list[int]
    """Entries of each parameter tensor."""
    are_weights: list[bool]
    """Whether each has more than one dimension, as biases and norms have not."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.W)

    def start(self) -> Vectors:
        return [self.x0.clone() for _ in range(self.n)]

    def zeros(self) -> Vectors:
        return [torch.zeros_like(self.x0) for _ in range(self.n)]

    def gradients(self, x: Vectors, k: int) -> Vectors:
        decay = self.options.get("weight_decay", 0.0)
        return [self.grad(i, x[i], k) + decay * x[i] for i in range(self.n)]

    def mean_of(self, i: int, values: Vectors) -> Tensor:
        """Σ_j w_ij v_j."""
        total = torch.zeros_like(values[0])
        for j in range(self.n):
            total = total + float(self.W[i, j]) * values[j]
        return total

    def gossip(self, values: Vectors, gamma: float | None = None) -> Vectors:
        """v_i + γ Σ_j (w_ij - I_ij) v_j."""
        gamma = self.options["gamma"] if gamma is None else gamma
        return [values[i] + gamma * (self.mean_of(i, values) - values[i]) for i in range(self.n)]

    def C(self, p: Tensor) -> Tensor:
        """One scaled sign for each parameter tensor."""
        assert self.options["codec"] == "sign"
        return reference.compress(p, self.lengths)[0]

    def momentum(self, g: Tensor, v: Tensor, eta: float) -> tuple[Tensor, Tensor]:
        beta, nesterov = self.options["momentum"], self.options["nesterov"]
        return reference.momentum_step(g, v, eta, beta, nesterov)


def run(name: str, problem: Problem) -> list[Vectors]:
    """All iterates of the algorithm, `result[k][i]`."""
    rule = {n.replace("_", "-"): f for n, f in globals().items() if callable(f)}
    return rule[name.replace("+", "-and-")](problem)


def dmsgd(p: Problem) -> list[Vectors]:
    x, m = p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        mixed = p.gossip(x)
        new = []
        for i in range(p.n):
            step, m[i] = p.momentum(g[i], m[i], p.lr(k))
            new.append(mixed[i] + step)
        x = new
        iterates.append(x)
    return iterates


def qgm(p: Problem) -> list[Vectors]:
    beta, mu = p.options["momentum"], p.options["mu"]
    x, m_hat = p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        eta = p.lr(k)
        g = p.gradients(x, k)
        half = []
        for i in range(p.n):
            m = beta * m_hat[i] + g[i]
            half.append(x[i] - eta * (g[i] + beta * m if p.options["nesterov"] else m))
        new = p.gossip(half)
        for i in range(p.n):
            m_hat[i] = mu * m_hat[i] + (1 - mu) * (x[i] - new[i]) / eta
        x = new
        iterates.append(x)
    return iterates


def decentlam(p: Problem) -> list[Vectors]:
    x, m = p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        eta = p.lr(k)
        g = p.gradients(x, k)
        mixed = p.gossip([x[i] - eta * g[i] for i in range(p.n)])
        new = []
        for i in range(p.n):
            m[i] = p.options["momentum"] * m[i] + x[i] / eta - mixed[i] / eta
            new.append(x[i] - eta * m[i])
        x = new
        iterates.append(x)
    return iterates


def d2(p: Problem) -> list[Vectors]:
    """By what each agent's gradient is corrected by: the paper's 2x - x_old - η (g - g_old), where
    η is constant."""
    x, c = p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        eta, g = p.lr(k), p.gradients(x, k)
        new = p.gossip([x[i] - eta * (g[i] + c[i]) for i in range(p.n)])
        c = [(x[i] - new[i]) / eta - g[i] for i in range(p.n)]
        x = new
        iterates.append(x)
    return iterates


def gut(p: Problem) -> list[Vectors]:
    beta, mu, gamma = p.options["momentum"], p.options["mu"], p.options["gamma"]
    b = 1 + beta + (beta**2 if p.options["nesterov"] else 0.0)
    x, v = p.start(), p.zeros()
    x_old, delta_old, eta_old = p.start(), p.zeros(), 1.0
    iterates = [x]
    for k in range(p.steps):
        eta = p.lr(k)
        mixed = p.gossip(x)
        at = mixed if p.options["gradient_at"] == "mixed" else x
        new, delta = [], []
        for i in range(p.n):
            pull = sum(((float(p.W[i, j]) - float(i == j)) * x[j] for j in range(p.n)), 0 * x[i])
            old_pull = sum(
                ((float(p.W[i, j]) - float(i == j)) * x_old[j] for j in range(p.n)), 0 * x[i]
            )
            moved = sum((float(p.W[i, j]) * (x[j] - x_old[j]) for j in range(p.n)), 0 * x[i])
            delta.append(p.grad(i, at[i], k) - gamma / eta * pull)
            y = delta[i] - mu / eta_old * (moved + b * old_pull) - mu * delta_old[i]
            y = y + p.options["weight_decay"] * at[i]
            step, v[i] = p.momentum(y, v[i], eta)
            new.append(x[i] + step)
        x_old, delta_old, eta_old, x = x, delta, eta, new
        iterates.append(x)
    return iterates


def tracking(p: Problem) -> list[Vectors]:
    """As printed: y starts as the first gradient, and follows each later one."""
    x, v = p.start(), p.zeros()
    g = p.gradients(x, 0)
    y = [g_i.clone() for g_i in g]
    iterates = [x]
    for k in range(p.steps):
        half = []
        for i in range(p.n):
            step, v[i] = p.momentum(y[i], v[i], p.lr(k))
            half.append(x[i] + step)
        x = p.gossip(half)
        iterates.append(x)
        if k + 1 < p.steps:
            new = p.gradients(x, k + 1)
            mixed = p.gossip(y)
            y = [mixed[i] + new[i] - g[i] for i in range(p.n)]
            g = new
    return iterates


def momentum_tracking(p: Problem) -> list[Vectors]:
    x, u, c = p.start(), p.zeros(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        u = [p.options["momentum"] * u[i] + g[i] for i in range(p.n)]
        mixed = p.gossip(x)
        x = [mixed[i] - p.lr(k) * (u[i] - c[i]) for i in range(p.n)]
        difference = p.gossip([c[i] - u[i] for i in range(p.n)])
        c = [difference[i] + u[i] for i in range(p.n)]
        iterates.append(x)
    return iterates


def relaysgd(p: Problem) -> list[Vectors]:
    x, v = p.start(), p.zeros()
    pairs = [(i, j) for i in range(p.n) for j in range(p.n) if i != j and p.W[i, j] != 0]

    def behind(i: int, j: int) -> int:
        """The agents that are reached from i without going through j."""
        seen, todo = {i, j}, [i]
        while todo:
            at = todo.pop()
            for a, b in pairs:
                if a == at and b not in seen:
                    seen.add(b)
                    todo.append(b)
        return len(seen) - 1

    m = {(i, j): behind(i, j) * p.x0 for i, j in pairs}
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        half = []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i], v[i], p.lr(k))
            half.append(x[i] + step)
        sent = {}
        for i, j in pairs:
            sent[i, j] = half[i].clone()
            for a, b in pairs:
                if b == i and a != j:
                    sent[i, j] = sent[i, j] + m[a, b]
        m = sent
        x = []
        for i in range(p.n):
            total = half[i].clone()
            for a, b in pairs:
                if b == i:
                    total = total + m[a, b]
            x.append(total / p.n)
        iterates.append(x)
    return iterates


def quantized(p: Problem) -> list[Vectors]:
    """With the signs, which are rounding enough for the rule."""
    x, v = p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        half = []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i], v[i], p.lr(k))
            half.append(x[i] + step)
        sent = [p.C(h) for h in half]
        x = []
        for i in range(p.n):
            total = half[i]
            for j in range(p.n):
                share = float(p.W[i, j]) - float(i == j)
                total = total + p.options["gamma"] * share * sent[j]
            x.append(total)
        iterates.append(x)
    return iterates


def choco(p: Problem) -> list[Vectors]:
    gamma = p.options["gamma"]
    x, v, x_hat = p.start(), p.zeros(), p.start()
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        new = []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i], v[i], p.lr(k))
            pull = torch.zeros_like(p.x0)
            for j in range(p.n):
                pull = pull + float(p.W[i, j]) * (x_hat[j] - x_hat[i])
            new.append(x[i] + step + gamma * pull)
        x_hat = [x_hat[i] + p.C(new[i] - x_hat[i]) for i in range(p.n)]
        x = new
        iterates.append(x)
    return iterates


def deepsqueeze(p: Problem) -> list[Vectors]:
    gamma = p.options["gamma"]
    x, v, e = p.start(), p.zeros(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        half, sent = [], []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i], v[i], p.lr(k))
            half.append(x[i] + step)
            sent.append(p.C(half[i] + e[i]))
            e[i] = half[i] + e[i] - sent[i]
        x = []
        for i in range(p.n):
            total = half[i]
            for j in range(p.n):
                total = total + gamma * (float(p.W[i, j]) - float(i == j)) * sent[j]
            x.append(total)
        iterates.append(x)
    return iterates


def adagossip(p: Problem) -> list[Vectors]:
    gamma, beta2 = p.options["gamma"], p.options["smoothing"]
    x, v, x_hat, square = p.start(), p.zeros(), p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        half = []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i], v[i], p.lr(k))
            half.append(x[i] + step)
        x_hat = [x_hat[i] + p.C(half[i] - x_hat[i]) for i in range(p.n)]
        x = []
        for i in range(p.n):
            r = torch.zeros_like(p.x0)
            for j in range(p.n):
                r = r + float(p.W[i, j]) * (x_hat[j] - x_hat[i])
            square[i] = beta2 * square[i] + (1 - beta2) * r * r
            unbiased = square[i] / (1 - beta2 ** (k + 1))
            rates = [min(1.0, gamma / (float(u) ** 0.5 + 1e-8)) for u in unbiased]
            rate = torch.tensor(rates, dtype=torch.float64)
            x.append(half[i] + rate * r)
        iterates.append(x)
    return iterates


def beer(p: Problem) -> list[Vectors]:
    """The first gradients are V, and their messages are G before the first step."""
    gamma = p.options["gamma"]
    x, v, h = p.start(), p.zeros(), p.start()
    gradient = p.gradients(x, 0)
    tracked = [g.clone() for g in gradient]
    known = [p.C(t) for t in tracked]

    def pull(i: int, values: Vectors) -> Tensor:
        total = torch.zeros_like(p.x0)
        for j in range(p.n):
            total = total + float(p.W[i, j]) * (values[j] - values[i])
        return total

    iterates = [x]
    for k in range(p.steps):
        new = []
        for i in range(p.n):
            step, v[i] = p.momentum(tracked[i], v[i], p.lr(k))
            new.append(x[i] + gamma * pull(i, h) + step)
        h = [h[i] + p.C(new[i] - h[i]) for i in range(p.n)]
        x = new
        iterates.append(x)
        if k + 1 < p.steps:
            later = p.gradients(x, k + 1)
            tracked = [
                tracked[i] + gamma * pull(i, known) + later[i] - gradient[i] for i in range(p.n)
            ]
            known = [known[i] + p.C(tracked[i] - known[i]) for i in range(p.n)]
            gradient = later
    return iterates


def sgp(p: Problem) -> list[Vectors]:
    x, z, v, w = p.start(), p.start(), p.zeros(), [1.0] * p.n
    gamma = p.options["gamma"]
    iterates = [z]
    for k in range(p.steps):
        g = p.gradients(z, k)
        half = []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i], v[i], p.lr(k))
            half.append(x[i] + step)
        x = p.gossip(half)
        w = [
            w[i] + gamma * (sum(float(p.W[i, j]) * w[j] for j in range(p.n)) - w[i])
            for i in range(p.n)
        ]
        z = [x[i] / w[i] for i in range(p.n)]
        iterates.append(z)
    return iterates


def sparse_push(p: Problem) -> list[Vectors]:
    x, z, v, e, w = p.start(), p.start(), p.zeros(), p.zeros(), [1.0] * p.n
    gamma = p.options["gamma"]
    iterates = [z]
    for k in range(p.steps):
        g = p.gradients(z, k)
        half, sent = [], []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i], v[i], p.lr(k))
            half.append(x[i] + step)
            sent.append(p.C(half[i] + e[i]))
            e[i] = half[i] + e[i] - sent[i]
        x, new_w = [], []
        for i in range(p.n):
            total, weight = half[i], w[i]
            for j in range(p.n):
                share = gamma * (float(p.W[i, j]) - float(i == j))
                total, weight = total + share * sent[j], weight + share * w[j]
            x.append(total)
            new_w.append(weight)
        w = new_w
        z = [x[i] / w[i] for i in range(p.n)]
        iterates.append(z)
    return iterates


def fedavg(p: Problem) -> list[Vectors]:
    x, v = p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        new = []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i], v[i], p.lr(k))
            new.append(x[i] + step)
        if k % p.options["local_steps"] == p.options["local_steps"] - 1:
            server = sum(new, torch.zeros_like(p.x0)) / p.n
            new = [server.clone() for _ in range(p.n)]
        x = new
        iterates.append(x)
    return iterates


def kgt(p: Problem) -> list[Vectors]:
    x, c, start, rates = p.start(), p.zeros(), p.start(), 0.0
    tau = p.options["local_steps"]
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        x = [x[i] - p.lr(k) * (g[i] + c[i]) for i in range(p.n)]
        rates += p.lr(k)
        if k % tau == tau - 1:
            z = [(start[i] - x[i]) / rates for i in range(p.n)]
            mixed = p.gossip(z)
            c = [c[i] - z[i] + mixed[i] for i in range(p.n)]
            outer = p.options["outer_lr"]
            x = p.gossip([start[i] - outer * rates * z[i] for i in range(p.n)])
            start, rates = x, 0.0
        iterates.append(x)
    return iterates


def exact_diffusion(p: Problem) -> list[Vectors]:
    """The paper's correction x - ψ in units of gradients, c = (ψ - x) / η."""
    x, c = p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        eta, g = p.lr(k), p.gradients(x, k)
        psi = [x[i] - eta * g[i] for i in range(p.n)]
        x = p.gossip([psi[i] - eta * c[i] for i in range(p.n)])
        c = [(psi[i] - x[i]) / eta for i in range(p.n)]
        iterates.append(x)
    return iterates


def led(p: Problem) -> list[Vectors]:
    """The paper's y in units of gradients, y / (τη), with τη the sum of a round's rates."""
    x, y, rates, tau = p.start(), p.zeros(), 0.0, p.options["local_steps"]
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        x = [x[i] - p.lr(k) * g[i] - p.lr(k) * y[i] for i in range(p.n)]
        rates += p.lr(k)
        if k % tau == tau - 1:
            mixed = p.gossip(x)
            y = [y[i] + (x[i] - mixed[i]) / rates for i in range(p.n)]
            x, rates = mixed, 0.0
        iterates.append(x)
    return iterates


def proxskip(p: Problem) -> list[Vectors]:
    x, h, probability = p.start(), p.zeros(), 1 / p.options["local_steps"]
    iterates = [x]
    for k in range(p.steps):
        eta, g = p.lr(k), p.gradients(x, k)
        hat = [x[i] - eta * (g[i] - h[i]) for i in range(p.n)]
        coin = np.random.default_rng(np.random.SeedSequence([0, 7, k])).random()
        x = hat
        if coin < probability:
            x = p.gossip(hat)
            h = [h[i] + probability / eta * (x[i] - hat[i]) for i in range(p.n)]
        iterates.append(x)
    return iterates


def diloco(p: Problem) -> list[Vectors]:
    o, edges = p.options, [(i, j) for i in range(p.n) for j in range(i + 1, p.n) if p.W[i, j] != 0]
    x, phi, v = p.start(), p.start(), p.zeros()
    m, s = p.zeros(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        new = []
        for i in range(p.n):
            g = p.grad(i, x[i], k)
            m[i] = o["beta1"] * m[i] + (1 - o["beta1"]) * g
            s[i] = o["beta2"] * s[i] + (1 - o["beta2"]) * g * g
            m_hat, s_hat = m[i] / (1 - o["beta1"] ** (k + 1)), s[i] / (1 - o["beta2"] ** (k + 1))
            step = m_hat / (s_hat.sqrt() + o["epsilon"]) + o["weight_decay"] * x[i]
            new.append(x[i] - p.lr(k) * step)
        x = new
        if k % o["local_steps"] == o["local_steps"] - 1:
            draw = np.random.SeedSequence([0, 6, k // o["local_steps"]])
            partner = list(range(p.n))
            for e in np.random.default_rng(draw).permutation(len(edges)):
                i, j = edges[e]
                if partner[i] == i and partner[j] == j:
                    partner[i], partner[j] = j, i
            slow, fast = list(phi), list(x)
            x = []
            for i, j in enumerate(partner):
                middle = (slow[i] + slow[j]) / 2
                delta = middle - (fast[i] + fast[j]) / 2
                v[i] = o["outer_momentum"] * v[i] + delta
                x.append(middle - o["outer_lr"] * (delta + o["outer_momentum"] * v[i]))
            phi = x
        iterates.append(x)
    return iterates


def central(p: Problem) -> list[Vectors]:
    x, v = p.x0.clone(), torch.zeros_like(p.x0)
    iterates = [[x] * p.n]
    for k in range(p.steps):
        g = p.gradients([x] * p.n, k)
        step, v = p.momentum(sum(g, torch.zeros_like(p.x0)) / p.n, v, p.lr(k))
        x = x + step
        iterates.append([x] * p.n)
    return iterates


def swarmsgd(p: Problem) -> list[Vectors]:
    edges = [(i, j) for i in range(p.n) for j in range(i + 1, p.n) if p.W[i, j] != 0]
    x, v = p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        meeting = k // p.options["local_steps"]
        order = np.random.default_rng(np.random.SeedSequence([0, 6, meeting])).permutation(
            len(edges)
        )
        chosen: list[tuple[int, int]] = []
        for e in order:
            free = all(not set(edges[e]) & set(pair) for pair in chosen)
            if free and (p.options["pairs"] == "many" or not chosen):
                chosen.append(edges[e])
        new = list(x)
        for i in [agent for pair in chosen for agent in pair]:
            g = p.grad(i, x[i], k) + p.options["weight_decay"] * x[i]
            step, v[i] = p.momentum(g, v[i], p.lr(k))
            new[i] = x[i] + step
        if k % p.options["local_steps"] == p.options["local_steps"] - 1:
            for i, j in chosen:
                new[i] = new[j] = (new[i] + new[j]) / 2
        x = new
        iterates.append(x)
    return iterates


def skewscout(p: Problem) -> list[Vectors]:
    x, v = p.start(), p.zeros()
    interval, waited, lost = 1.0, 0, []
    iterates = [x]
    for k in range(p.steps):
        g = p.gradients(x, k)
        new = []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i], v[i], p.lr(k))
            new.append(x[i] + step)
        waited += 1
        if waited >= interval:
            waited, losses = 0, []
            for i in range(p.n):
                hosts = [j for j in range(p.n) if j != i and p.W[j, i] != 0]
                away = sum(p.accuracy(j, new[i], k) for j in hosts) / len(hosts)
                losses.append(p.accuracy(i, new[i], k) - away)
            lost.append(sum(losses) / p.n)
            new = p.gossip(new)
            if len(lost) == p.options["travels"]:
                small = sum(lost) / len(lost) <= p.options["tolerance"] + 1e-6
                interval = interval * 2 if small else interval / 2
                interval = min(max(interval, 1.0), p.options["longest"])
                lost = []
        x = new
        iterates.append(x)
    return iterates


# Combinations


def _clusters(p: Problem, own: Vectors, cross: dict[tuple[int, int], Tensor]) -> Vectors:
    """NGC's line 12, by the owner of the data: its rows of W are made to sum to 1."""
    alpha = p.options["alpha"]
    S = p.W / p.W.sum(1, keepdims=True)
    return reference.ngc_gradients(own, cross, S, alpha)


def ngc_and_qgm(p: Problem) -> list[Vectors]:
    beta, mu = p.options["momentum"], p.options["mu"]
    x, m_hat = p.start(), p.zeros()
    iterates = [x]
    for k in range(p.steps):
        eta = p.lr(k)
        own = [p.grad(i, x[i], k) for i in range(p.n)]
        cross = {(j, i): p.grad(i, x[j], k) for i in range(p.n) for j in reference.senders(i, p.W)}
        g = _clusters(p, own, cross)
        mixed = p.gossip(x)
        new = []
        for i in range(p.n):
            g[i] = g[i] + p.options["weight_decay"] * x[i]
            m = beta * m_hat[i] + g[i]
            new.append(mixed[i] - eta * (g[i] + beta * m if p.options["nesterov"] else m))
            m_hat[i] = mu * m_hat[i] + (1 - mu) * (x[i] - new[i]) / eta
        x = new
        iterates.append(x)
    return iterates


def compngc_and_choco(p: Problem) -> list[Vectors]:
    """Cross-gradients at what is known of the neighbours' models; both rounds compressed."""
    gamma = p.options["gamma"]
    scope = p.lengths if p.options["scope"] == "tensor" else [sum(p.lengths)]
    x, v, x_hat, e = p.start(), p.zeros(), p.start(), p.zeros()
    edges = [(j, i) for i in range(p.n) for j in reference.senders(i, p.W)]
    e_cross = {edge: torch.zeros_like(p.x0) for edge in edges}
    iterates = [x]
    for k in range(p.steps):
        own, cross = [], {}
        for i in range(p.n):
            sent, e[i] = reference.compress(p.grad(i, x[i], k) + e[i], scope)
            own.append(sent)
        for j, i in edges:
            value = p.grad(i, x_hat[j], k) + e_cross[j, i]
            cross[j, i], e_cross[j, i] = reference.compress(value, scope)
        g = _clusters(p, own, cross)
        new = []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i] + p.options["weight_decay"] * x[i], v[i], p.lr(k))
            pull = torch.zeros_like(p.x0)
            for j in range(p.n):
                pull = pull + float(p.W[i, j]) * (x_hat[j] - x_hat[i])
            new.append(x[i] + gamma * pull + step)
        x_hat = [x_hat[i] + p.C(new[i] - x_hat[i]) for i in range(p.n)]
        x = new
        iterates.append(x)
    return iterates


def ngc_and_push_sum(p: Problem) -> list[Vectors]:
    gamma = p.options["gamma"]
    x, z, v, w = p.start(), p.start(), p.zeros(), [1.0] * p.n
    iterates = [z]
    for k in range(p.steps):
        own = [p.grad(i, z[i], k) for i in range(p.n)]
        cross = {(j, i): p.grad(i, z[j], k) for i in range(p.n) for j in reference.senders(i, p.W)}
        g = _clusters(p, own, cross)
        mixed = p.gossip(x)
        new = []
        for i in range(p.n):
            step, v[i] = p.momentum(g[i] + p.options["weight_decay"] * z[i], v[i], p.lr(k))
            new.append(mixed[i] + step)
        w = [
            w[i] + gamma * (sum(float(p.W[i, j]) * w[j] for j in range(p.n)) - w[i])
            for i in range(p.n)
        ]
        x = new
        z = [x[i] / w[i] for i in range(p.n)]
        iterates.append(z)
    return iterates
