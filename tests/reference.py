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
from decimal import Decimal, localcontext
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
            g = own[i][begin:end]
            rows = [cross[i, j][begin:end] for j in neighbours]
            rows = [row for row in rows if bool((row != 0).any())]
            total = g
            for u_j, g_j in zip(solve_qp(pi * g, [pi * r for r in rows], floor), rows, strict=True):
                total = total + u_j * g_j
            projected.append(pi * total)
            begin = end
        result.append(torch.cat(projected))
    return result


def solve_qp(g: Tensor, rows: Sequence[Tensor], floor: float) -> list[float]:
    """What the authors ask of quadprog, ``solve_qp(M Mᵀ + 1e-12 I, -M g, I, floor)``: the u ≥ floor
    that minimises ½‖g + Σ_j u_j rows_j‖² + ½·10⁻¹²‖u‖², where they pass gradients times π.

    In decimals of 60 digits. All active sets are tried: each pins some u_j to the floor and makes
    the objective stationary in the others. The answer is the one that meets the optimality (KKT)
    conditions, free u_j ≥ floor and derivatives ≥ 0 at the pinned ones. There is always just one.
    """
    m = len(rows)
    with localcontext() as context:
        context.prec = 60
        own, exact = decimals(g), [decimals(row) for row in rows]
        q = [dot(row, own) for row in exact]
        P = [[dot(one, other) for other in exact] for one in exact]
        for a in range(m):
            P[a][a] += Decimal("1e-12")
        rounding = Decimal("1e-30")
        for pinned in product([True, False], repeat=m):
            free = [a for a in range(m) if not pinned[a]]
            u = [Decimal(floor)] * m
            right = [-q[a] - sum(P[a][b] * u[b] for b in range(m) if pinned[b]) for a in free]
            for a, value in zip(
                free, solve([[P[a][b] for b in free] for a in free], right), strict=True
            ):
                u[a] = value
            slack = [u[a] - Decimal(floor) for a in free]
            derivative = [dot(P[a], u) + q[a] for a in range(m) if pinned[a]]
            if all(value >= -rounding for value in slack + derivative):
                return [float(value) for value in u]
    raise AssertionError("no active set meets the optimality conditions")


def solve(A: list[list[Decimal]], b: list[Decimal]) -> list[Decimal]:
    """x with A x = b, for a positive definite A: Gaussian elimination needs no pivots then."""
    A, b, n = [list(row) for row in A], list(b), len(b)
    for k in range(n):
        for i in range(k + 1, n):
            factor = A[i][k] / A[k][k]
            for j in range(k, n):
                A[i][j] -= factor * A[k][j]
            b[i] -= factor * b[k]
    x = [Decimal(0)] * n
    for i in reversed(range(n)):
        x[i] = (b[i] - sum(A[i][j] * x[j] for j in range(i + 1, n))) / A[i][i]
    return x


def decimals(values: Tensor) -> list[Decimal]:
    return [Decimal(value) for value in values.tolist()]


def dot(a: list[Decimal], b: list[Decimal]) -> Decimal:
    return sum((x * y for x, y in zip(a, b, strict=True)), Decimal(0))
