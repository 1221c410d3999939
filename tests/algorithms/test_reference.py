"""The slow references against closed forms: what the fast code is tested against must be right.

The losses are quadratics, f_i(x) = h_i/2 ‖x - b_i‖², whose algorithms are matrix recursions.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.reference import compress, run, solve_qp

AGENTS, D, STEPS = 5, 3, 6
RNG = np.random.default_rng(7)
X0 = RNG.normal(size=(AGENTS, D))
B = RNG.normal(size=(AGENTS, D))
H = np.diag(RNG.uniform(0.5, 2.0, size=AGENTS))


def ring() -> np.ndarray:
    eye = np.eye(AGENTS)
    return (eye + np.roll(eye, 1, axis=0) + np.roll(eye, -1, axis=0)) / 3


def digraph() -> np.ndarray:
    """Rows sum to one, columns do not; agent 0 sends to all and hears only agent 4."""
    W = np.diag([0.6, 0.5, 0.4, 0.7, 0.2])
    W[1:, 0] = [0.5, 0.25, 0.3, 0.1]
    W[0, 4], W[2, 1], W[4, 3] = 0.4, 0.35, 0.7
    return W


GRAPHS = pytest.mark.parametrize("W", [ring(), digraph()], ids=["ring", "digraph"])


def quadratic(i: int, x: Tensor, k: int) -> Tensor:
    """The minimum b_i changes with the step, as it does from batch to batch."""
    return H[i, i] * (x - (1 + k) * torch.from_numpy(B[i]))


def lr(k: int) -> float:
    return 0.1 / (1 + k)


def last(iterates: list[list[Tensor]]) -> np.ndarray:
    assert len(iterates) == STEPS + 1
    return torch.stack(iterates[-1]).numpy()


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@GRAPHS
@pytest.mark.parametrize("gamma", [1.0, 0.4])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_dpsgd_is_a_matrix_recursion(W: np.ndarray, gamma: float, weight_decay: float) -> None:
    mixing = np.eye(AGENTS) + gamma * (W - np.eye(AGENTS))
    options = {"momentum": 0.9, "gamma": gamma, "weight_decay": weight_decay}

    X, V = X0, 0 * X0
    for k in range(STEPS):
        V = 0.9 * V - lr(k) * (H @ (X - (1 + k) * B) + weight_decay * X)
        X = mixing @ (X + V)
    own = run("dpsgd", torch.from_numpy(X0), W, quadratic, STEPS, lr, **options)
    np.testing.assert_allclose(last(own), X, rtol=1e-12)

    X, V = X0, 0 * X0
    for k in range(STEPS):
        M = mixing @ X
        V = 0.9 * V - lr(k) * (H @ (M - (1 + k) * B) + weight_decay * M)
        X = M + V
    mixed = run(
        "dpsgd", torch.from_numpy(X0), W, quadratic, STEPS, lr, gradient_at="mixed", **options
    )
    np.testing.assert_allclose(last(mixed), X, rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_dpsgd_mixed_is_dpsgd_with_a_shifted_index(momentum: float) -> None:
    """From one start for all agents, where mixing does nothing."""
    start, W = torch.from_numpy(X0[0]), ring()
    own = run("dpsgd", start, W, quadratic, STEPS, lr, momentum=momentum)
    mixed = run("dpsgd", start, W, quadratic, STEPS, lr, momentum=momentum, gradient_at="mixed")
    np.testing.assert_allclose(W @ last(mixed), last(own), rtol=1e-12)


@GRAPHS
@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("gradient_at", ["own", "mixed"])
def test_ngc_is_a_matrix_recursion(W: np.ndarray, alpha: float, gradient_at: str) -> None:
    """Model-variant: H (W X - diag(W 1) B). Data-variant: diag(Wᵀ H 1) X - Wᵀ H B."""
    gamma, ones = 0.8, np.ones(AGENTS)
    mixing = np.eye(AGENTS) + gamma * (W - np.eye(AGENTS))
    X, V = X0, 0 * X0
    for k in range(STEPS):
        b = (1 + k) * B
        model_variant = H @ (W @ X - np.diag(W @ ones) @ b)
        data_variant = np.diag(W.T @ H @ ones) @ X - W.T @ H @ b
        g = (1 - alpha) * model_variant + alpha * data_variant
        point = X
        if gradient_at == "mixed":
            point = mixing @ X
            g = g + np.diag(np.diag(W)) @ H @ (point - X)
        V = 0.9 * V - lr(k) * (g + 0.2 * point)
        X = mixing @ X + V
    iterates = run(
        "ngc", torch.from_numpy(X0), W, quadratic, STEPS, lr,
        momentum=0.9, weight_decay=0.2, gamma=gamma, alpha=alpha, gradient_at=gradient_at,
    )  # fmt: skip
    np.testing.assert_allclose(last(iterates), X, rtol=1e-11)


def test_ngc_of_one_step_by_hand() -> None:
    """Two agents with f_i = ½(x - b_i)², b = 0 and 4, at x = 1 and 3, weights ¾ and ¼.

    g^{00} = 1, g^{11} = -1; agent 1's model on agent 0's data: 3; agent 0's on agent 1's: -3.
    """
    W = np.array([[0.75, 0.25], [0.25, 0.75]])
    x0, b = vector(1, 3).reshape(2, 1), [0.0, 4.0]

    def first(alpha: float) -> list[float]:
        iterates = run("ngc", x0, W, lambda i, x, k: x - b[i], 1, lambda k: 0.1, alpha=alpha)
        return [x.item() for x in iterates[1]]

    # Model-variant: ¾·1 + ¼·3 = 1.5 at agent 0. Data-variant: ¾·1 - ¼·3 = 0. Mixed x: 1.5, 2.5.
    assert first(0.0) == pytest.approx([1.5 - 0.15, 2.5 + 0.15])
    assert first(1.0) == pytest.approx([1.5, 2.5])
    assert first(0.5) == pytest.approx([1.5 - 0.075, 2.5 + 0.075])


def test_nesterov_of_a_lone_agent_is_torch_sgd() -> None:
    parameter = torch.nn.Parameter(torch.from_numpy(X0[0]).clone())
    sgd = torch.optim.SGD([parameter], lr=1.0, momentum=0.9, nesterov=True, weight_decay=0.05)
    for k in range(STEPS):
        sgd.param_groups[0]["lr"] = lr(k)
        parameter.grad = quadratic(0, parameter.detach(), k)
        sgd.step()
    for algorithm in ("dpsgd", "ngc", "cga"):
        iterates = run(
            algorithm, torch.from_numpy(X0[0]), np.eye(1), quadratic, STEPS, lr,
            momentum=0.9, nesterov=True, weight_decay=0.05,
        )  # fmt: skip
        torch.testing.assert_close(iterates[-1][0], parameter.detach())


def test_heavy_ball_keeps_the_old_learning_rate_in_its_velocity() -> None:
    """g = 1, β = ½, η = 1 then 0: v = -1, then -½."""
    iterates = run(
        "dpsgd", vector(0), np.eye(1), lambda i, x, k: vector(1), 2, lambda k: 1.0 - k, momentum=0.5
    )
    assert [x[0].item() for x in iterates] == [0, -1, -1.5]


def test_compression_by_hand() -> None:
    p = vector(3, -1, 0, -2)
    delta, error = compress(p, [4])
    assert delta.tolist() == [1.5, -1.5, 1.5, -1.5]
    assert error.tolist() == [1.5, 0.5, -1.5, -0.5]
    delta, error = compress(p, [2, 2])
    assert delta.tolist() == [2, -2, 1, -1]
    assert error.tolist() == [1, 1, -1, -1]
    assert compress(vector(0, 0), [2])[0].tolist() == [0, 0]


def test_compngc_of_two_steps_by_hand() -> None:
    """Agents 0 and 1 have the constant gradients (3, -1) and (0, -2); all weights are ½.

    Agent 0 sends (2, -2), keeps (1, 1); then p = (4, 0), sends (2, 2).
    Agent 1 sends (1, -1), keeps (-1, -1); then p = (-1, -3), sends (-2, -2).
    """
    gradients = [vector(3, -1), vector(0, -2)]
    W = np.full((2, 2), 0.5)

    def iterates(alpha: float) -> list[list[Tensor]]:
        return run(
            "compngc", vector(0, 0), W, lambda i, x, k: gradients[i], 2, lambda k: 1.0, alpha=alpha
        )

    # α = 0: both terms come from the agent's own data. x is mixed before the second step.
    _, x1, x2 = iterates(0.0)
    assert [x.tolist() for x in x1] == [[-2, 2], [-1, 1]]
    assert [x.tolist() for x in x2] == [[-1.5 - 2, 1.5 - 2], [-1.5 + 2, 1.5 + 2]]
    # α = 1: each agent takes the mean of both agents' data; then (2, 2) and (-2, -2) cancel.
    _, x1, x2 = iterates(1.0)
    assert [x.tolist() for x in x1] == [[-1.5, 1.5], [-1.5, 1.5]]
    assert [x.tolist() for x in x2] == [[-1.5, 1.5], [-1.5, 1.5]]


@GRAPHS
@pytest.mark.parametrize("gradient_at", ["own", "mixed"])
@pytest.mark.parametrize("plain, compressed", [("ngc", "compngc"), ("cga", "compcga")])
def test_compressing_single_numbers_loses_nothing(
    W: np.ndarray, gradient_at: str, plain: str, compressed: str
) -> None:
    def iterates(algorithm: str) -> np.ndarray:
        return last(
            run(
                algorithm, torch.from_numpy(X0), W, quadratic, STEPS, lr,
                alpha=0.3, momentum=0.9, gradient_at=gradient_at, per_tensor=[1] * D,
            )
        )  # fmt: skip

    np.testing.assert_allclose(iterates(compressed), iterates(plain), rtol=1e-12)


# u as quadprog 0.1.14's solve_qp(M Mᵀ + 1e-12 I, -M g, I, floor) gave it.
QP_CASES = [
    ([1, 2, -1, 0.5], [[-1, 0.5, 2, 0], [0.3, -1, 0.2, 1], [2, 1, -1, -0.5]], 0.0,
     [0.4372873667497184, 0.7393966885911492, 0.0]),
    ([1, 2, -1, 0.5], [[-1, 0.5, 2, 0], [0.3, -1, 0.2, 1], [2, 1, -1, -0.5]], 0.5,
     [0.7954184622361422, 1.0648673168513578, 0.5]),
    ([2, -1, 0], [[-1, 1, 1], [-2, 0, -1]], 0.5,
     [0.7857142857140509, 0.6428571428570612]),
]  # fmt: skip


@pytest.mark.parametrize("g, rows, floor, expected", QP_CASES)
def test_qp_equals_quadprog(
    g: list[float], rows: list[list[float]], floor: float, expected: list[float]
) -> None:
    u = solve_qp(vector(*g), [vector(*row) for row in rows], floor)
    assert u == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_qp_of_orthogonal_rows_by_hand() -> None:
    """Each u_j = max(floor, -g·g_j / ‖g_j‖²) by itself."""
    g, rows = vector(-6, 4, 1), [vector(2, 0, 0), vector(0, 1, 0), vector(0, 0, -4)]
    assert solve_qp(g, rows, 0.0) == pytest.approx([3, 0, 0.25])
    assert solve_qp(g, rows, 0.5) == pytest.approx([3, 0.5, 0.5])
    assert solve_qp(g, [], 0.5) == []


def test_qp_of_a_row_given_twice_shares_its_multiplier() -> None:
    row = vector(1, -2)
    assert sum(solve_qp(vector(-3, 6), [row, row], 0.0)) == pytest.approx(3)


def test_cga_of_one_step_by_hand() -> None:
    """Constant gradients (1, 0, 2) and (-2, 1, 0) of two agents: g·g' = -2, ‖g‖² = ‖g'‖² = 5.

    At agent 0 whole: u = 2/5. In tensors of 2 and 1: u = 2/5; and a zero row, left out.
    At agent 1 whole: u = 2/5. In tensors of 2 and 1: u = 2; and g = 0, so u = floor.
    """
    gradients = [vector(1, 0, 2), vector(-2, 1, 0)]

    def step(**options: object) -> list[Tensor]:
        iterates = run(
            "cga", vector(0, 0, 0), np.full((2, 2), 0.5), lambda i, x, k: gradients[i], 1,
            lambda k: -1.0, **options,
        )  # fmt: skip
        return iterates[1]

    def same(actual: list[Tensor], expected: list[list[float]]) -> None:
        torch.testing.assert_close(actual, [vector(*values) for values in expected])

    same(step(), [[0.2, 0.4, 2], [-1.6, 1, 0.8]])
    same(step(qp_scale=True), [[0.1, 0.2, 1], [-0.8, 0.5, 0.4]])
    same(step(qp_floor=0.5), [[0, 0.5, 2], [-1.5, 1, 1]])
    same(step(per_tensor=[2, 1]), [[0.2, 0.4, 2], [0, 1, 0]])
    same(step(per_tensor=[2, 1], qp_floor=0.5), [[0, 0.5, 2], [0, 1, 1]])


@pytest.mark.parametrize("gradient_at", ["own", "mixed"])
def test_cga_on_the_floor_is_ngc_of_the_data_variant(gradient_at: str) -> None:
    """Gradients that all agree want u < 0, so u = 1 and π(g + Σ g_j) is the uniform mean."""
    options = {"momentum": 0.9, "gamma": 0.7, "gradient_at": gradient_at}
    far = torch.from_numpy(B).abs() + 1

    def gradient(i: int, x: Tensor, k: int) -> Tensor:
        return x - 10 * (1 + k) * far[i]

    start = torch.from_numpy(X0)
    cga = run("cga", start, ring(), gradient, STEPS, lr, qp_floor=1.0, qp_scale=True, **options)
    ngc = run("ngc", start, ring(), gradient, STEPS, lr, alpha=1.0, **options)
    np.testing.assert_allclose(last(cga), last(ngc), rtol=1e-12)


def test_cga_replies_come_from_the_receivers() -> None:
    """Agent 0 only sends, agent 1 only listens: agent 0 projects, agent 1 does not."""
    W = np.array([[1.0, 0.0], [0.5, 0.5]])
    gradients = [vector(1, 0), vector(-1, 1)]
    iterates = run("cga", vector(0, 0), W, lambda i, x, k: gradients[i], 1, lambda k: -1.0)
    torch.testing.assert_close(iterates[1][0], vector(0.5, 0.5))
    torch.testing.assert_close(iterates[1][1], gradients[1])


def test_compcga_of_two_steps_by_hand() -> None:
    """Agent 0's data gives (3, -1): sent (2, -2), then (2, 2). Agent 1's gives (-2, 0): sent
    (-1, 1), keeps (-1, -1); then p = (-3, -1), sent (-2, -2).

    Sent gradients are parallel: u cancels them, and nobody moves.
    Unbounded, u would be 2 and ½, then 1 and 1; so with the floor 3 it is always 3.
    """
    gradients = [vector(3, -1), vector(-2, 0)]
    W = np.full((2, 2), 0.5)

    def iterates(floor: float) -> list[list[Tensor]]:
        return run(
            "compcga", vector(0, 0), W, lambda i, x, k: gradients[i], 2, lambda k: -1.0,
            qp_floor=floor, gamma=0.0,
        )  # fmt: skip

    for x in iterates(0.0)[2]:
        torch.testing.assert_close(x, vector(0, 0))
    _, x1, x2 = iterates(3.0)
    torch.testing.assert_close(x1, [vector(-1, 1), vector(5, -5)])
    torch.testing.assert_close(x2, [vector(-1 - 4, 1 - 4), vector(5 + 4, -5 + 4)])
