"""The algorithms once more, slowly: nested loops over agents, straight from the papers.

This file shares no code with `parley`: it is what the fast implementation is tested against.
Every agent's value is one flat float64 vector in a Python list.

    x^i       x[i]           agent i's parameters
    g^{ii}    own[i]         self-gradient: i's model on i's data
    g^{ji}    cross[j, i]    cross-gradient: j's model on i's data. At i it is the model-variant
                             one; i sends it back to j, where it is the data-variant one
    w_ij      W[i, j]        what i gives to j's value. The edge j -> i exists where it is not
                             zero: j sends its model to i, and i its cross-gradient back to j

Line numbers are those of the paper's Algorithm 1 (NGC) unless another one is named.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Grad = Callable[[int, Tensor, int], Tensor]
"""grad(i, x, k): gradient at x of agent i's loss on its batch of step k."""

Edge = tuple[int, int]

ALGORITHMS = ("dpsgd", "ngc", "compngc", "cga", "compcga")


def run(
    algorithm: str,
    x0: Tensor,
    W: np.ndarray,
    grad: Grad,
    steps: int,
    lr: Callable[[int], float],
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    gamma: float = 1.0,
    alpha: float = 1.0,
    gradient_at: Literal["own", "mixed"] = "own",
    qp_floor: float = 0.0,
    qp_scale: bool = False,
    per_tensor: Sequence[int] | None = None,
) -> list[list[Tensor]]:
    """All iterates, `result[k][i]` for k = 0 .. steps; `result[0]` is the start.

    `x0` is one start for all agents, [D], or one for each, [agents, D].
    """
    assert algorithm in ALGORITHMS, algorithm
    assert gradient_at in ("own", "mixed"), gradient_at
    W = np.asarray(W, dtype=np.float64)
    agents = range(len(W))
    D = x0.shape[-1]
    lengths = [D] if per_tensor is None else list(per_tensor)
    assert sum(lengths) == D, (lengths, D)

    start = x0.detach().to(torch.float64)
    x = [(start if start.ndim == 1 else start[i]).clone() for i in agents]
    v = [torch.zeros(D, dtype=torch.float64) for _ in agents]
    own_error = [torch.zeros(D, dtype=torch.float64) for _ in agents]
    cross_error: dict[Edge, Tensor] = {}
    for i in agents:
        for j in senders(i, W):
            cross_error[j, i] = torch.zeros(D, dtype=torch.float64)

    iterates = [x]
    for k in range(steps):
        # The point from which each agent steps, and at which its self-gradient is taken.
        p = gossip(x, x, W, gamma) if gradient_at == "mixed" else x

        own = [grad(i, p[i], k) for i in agents]  # line 4
        cross: dict[Edge, Tensor] = {}
        if algorithm != "dpsgd":
            for i in agents:  # lines 6-7; the neighbours' models are the unmixed ones
                for j in senders(i, W):
                    cross[j, i] = grad(i, x[j], k)

        if algorithm in ("compngc", "compcga"):  # CompNGC, lines 5-7 and 11-13
            for i in agents:
                own[i], own_error[i] = compress(own[i] + own_error[i], lengths)
                for j in senders(i, W):
                    cross[j, i], cross_error[j, i] = compress(
                        cross[j, i] + cross_error[j, i], lengths
                    )

        if algorithm == "dpsgd":
            g = own
        elif algorithm in ("ngc", "compngc"):
            g = ngc_gradients(own, cross, W, alpha)
        else:
            g = cga_gradients(own, cross, W, qp_floor, qp_scale, lengths)

        stepped: list[Tensor] = []
        for i in agents:  # lines 13-14
            step, v[i] = momentum_step(g[i] + weight_decay * p[i], v[i], lr(k), momentum, nesterov)
            stepped.append(p[i] + step)

        if gradient_at == "mixed":
            x = stepped
        elif algorithm == "dpsgd":  # D-PSGD, line 8: mixes the stepped models
            x = gossip(stepped, stepped, W, gamma)
        else:  # line 15: mixes the models from before the step
            x = gossip(stepped, x, W, gamma)
        iterates.append(x)
    return iterates


def senders(i: int, W: np.ndarray) -> list[int]:
    """The agents whose model agent i receives: N(i) - i of the paper."""
    return [j for j in range(len(W)) if j != i and W[i, j] != 0]


def receivers(i: int, W: np.ndarray) -> list[int]:
    """The agents that receive agent i's model, and reply with a cross-gradient."""
    return [j for j in range(len(W)) if j != i and W[j, i] != 0]


def gossip(to: list[Tensor], x: list[Tensor], W: np.ndarray, gamma: float) -> list[Tensor]:
    """to^i + γ Σ_j (w_ij - I_ij) x^j."""
    result: list[Tensor] = []
    for i in range(len(W)):
        total = torch.zeros_like(x[i])
        for j in range(len(W)):
            total = total + (float(W[i, j]) - (1.0 if i == j else 0.0)) * x[j]
        result.append(to[i] + gamma * total)
    return result


def momentum_step(
    g: Tensor, v: Tensor, eta: float, beta: float, nesterov: bool
) -> tuple[Tensor, Tensor]:
    """The step and the new momentum. Heavy-ball keeps η inside v, Nesterov outside."""
    if nesterov:
        v = beta * v + g
        return -eta * (g + beta * v), v
    v = beta * v - eta * g
    return v, v


def ngc_gradients(
    own: list[Tensor], cross: dict[Edge, Tensor], W: np.ndarray, alpha: float
) -> list[Tensor]:
    """Line 12. An edge has one weight, at both of its ends: for j -> i that is w_ij."""
    result: list[Tensor] = []
    for i in range(len(W)):
        model_variant = float(W[i, i]) * own[i]
        for j in senders(i, W):
            model_variant = model_variant + float(W[i, j]) * cross[j, i]
        data_variant = float(W[i, i]) * own[i]
        for j in receivers(i, W):
            data_variant = data_variant + float(W[j, i]) * cross[i, j]
        result.append((1 - alpha) * model_variant + alpha * data_variant)
    return result


def compress(p: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(δ, e): δ = (‖p‖₁ / d) sgn(p) of each tensor, and the error e = p - δ.

    sgn(0) is +1, since one bit has no third value.
    """
    delta: list[Tensor] = []
    for part in p.split(list(lengths)):
        scale = part.abs().sum() / len(part)
        delta.append(torch.stack([scale if value >= 0 else -scale for value in part]))
    sent = torch.cat(delta)
    return sent, p - sent


def cga_gradients(
    own: list[Tensor],
    cross: dict[Edge, Tensor],
    W: np.ndarray,
    floor: float,
    scale: bool,
    lengths: Sequence[int],
) -> list[Tensor]:
    """g + Σ_j u_j g_j of each tensor, over agent i's data-variant cross-gradients.

    With `scale`, times 1 / (neighbours + 1), where all neighbours count, those with zero
    rows too.
    """
    result: list[Tensor] = []
    for i in range(len(W)):
        neighbours = receivers(i, W)
        pi = 1 / (len(neighbours) + 1) if scale else 1.0
        projected: list[Tensor] = []
        begin = 0
        for length in lengths:
            end = begin + length
            total = own[i][begin:end]
            rows = [cross[i, j][begin:end] for j in neighbours]
            rows = [row for row in rows if bool((row != 0).any())]
            for u_j, g_j in zip(solve_qp(total, rows, floor), rows, strict=True):
                total = total + u_j * g_j
            projected.append(pi * total)
            begin = end
        result.append(torch.cat(projected))
    return result


def solve_qp(g: Tensor, rows: Sequence[Tensor], floor: float) -> list[float]:
    """u ≥ floor that minimises ½‖g + Σ_j u_j rows_j‖² + ½·10⁻¹²‖u‖²: all active sets are tried.

    Each set pins some u_j to the floor and makes the objective stationary in the others. The
    answer is the candidate that meets the optimality (KKT) conditions: for every j, one of
    the slack u_j - floor and the derivative is zero and the other is not negative, that is,
    min(slack, derivative) = 0. The derivative is divided by the curvature, so that both have
    the unit of u.
    """
    m = len(rows)
    if m == 0:
        return []
    P = torch.zeros(m, m, dtype=torch.float64)
    q = torch.zeros(m, dtype=torch.float64)
    for a in range(m):
        q[a] = rows[a] @ g
        for b in range(m):
            P[a, b] = rows[a] @ rows[b] + (1e-12 if a == b else 0.0)

    best, best_violation = None, float("inf")
    for pinned in product([True, False], repeat=m):
        u = torch.full((m,), float(floor), dtype=torch.float64)
        free = [a for a in range(m) if not pinned[a]]
        fixed = [a for a in range(m) if pinned[a]]
        if free:
            right = -q[free] - P[free][:, fixed] @ u[fixed]
            # A set of dependent rows that is numerically singular can be passed over: the
            # optimum is also reached with independent free rows (Carathéodory).
            solution, failed = torch.linalg.solve_ex(P[free][:, free], right)
            if failed:
                continue
            u[free] = solution
        derivative = P @ u + q
        violation = 0.0
        for a in range(m):
            slack = float(u[a]) - floor
            violation = max(violation, abs(min(slack, float(derivative[a] / P[a, a]))))
        if violation < best_violation:
            best, best_violation = u, violation

    assert best is not None
    assert best_violation <= 1e-9 * (1 + float(best.abs().max())), best_violation
    return best.tolist()
