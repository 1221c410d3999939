"""One table of algorithms feeds every shared test: a new algorithm adds its rows to `CASES`."""

from collections.abc import Callable
from functools import cache
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from parley import graphs
from parley.algorithms import (
    ALGORITHMS,
    BEER,
    CGA,
    CHOCO,
    D2,
    DMSGD,
    DPSGD,
    GUT,
    KGT,
    LED,
    NGC,
    QGM,
    SGP,
    AdaGossip,
    Algorithm,
    Central,
    CompCGA,
    CompNGC,
    DecentLaM,
    DeepSqueeze,
    DiLoCo,
    ExactDiffusion,
    FedAvg,
    GradientTracking,
    MomentumTracking,
    ProxSkip,
    Quantized,
    RelaySGD,
    SkewScout,
    SparsePush,
    SwarmSGD,
    build,
)
from parley.algorithms.cga import FEW, RIDGE, by_active_sets, by_supports, multipliers, project
from parley.algorithms.recipe import average_then_step, step_from_average
from parley.compute.engine import VmapEngine
from parley.errors import BadValue
from parley.graphs import Topology
from parley.store.checkpoint import flat
from tests import field_reference, recipe_reference, reference, small

STEPS = 12
"""Four after the rate has changed, and two rounds of those with five steps in a round."""

CASES: list[Algorithm] = [
    DPSGD(),
    DPSGD(momentum=0.9, gamma=0.5),
    DPSGD.as_run(momentum=0.9, weight_decay=0.01),
    NGC(alpha=0),
    NGC(alpha=1),
    NGC(alpha=0.3, momentum=0.9, gamma=0.5, weight_decay=0.01),
    NGC.as_run(alpha=1, momentum=0.9, gamma=0.5, weight_decay=0.01),
    CompNGC(),
    CompNGC(alpha=0.3, momentum=0.9, gamma=0.5),
    CompNGC.as_run(alpha=0.7, momentum=0.9),
    CGA(),
    CGA(scope="tensor", momentum=0.9, gamma=0.5),
    CGA.as_run(momentum=0.9, weight_decay=0.01),
    CompCGA(),
    CompCGA.as_run(momentum=0.9, gamma=0.5),
]
"""Of the NGC paper: on every graph that they can work on."""

FIELD: list[tuple[Algorithm, str]] = [
    (DMSGD(gamma=0.5), "random"),
    (QGM(mu=0.8, weight_decay=0.01), "random"),
    (DecentLaM(weight_decay=0.01), "irregular digraph"),
    (D2(weight_decay=0.01), "random"),
    (GUT(momentum=0.9, mu=0.05, gamma=0.5, weight_decay=0.01), "random"),
    (GUT.as_run(momentum=0.7, mu=0.2), "star"),
    (GradientTracking(momentum=0.5), "irregular digraph"),
    (MomentumTracking(gamma=0.5), "random"),
    (RelaySGD(momentum=0.5), "tree"),
    (Quantized(codec="sign", gamma=0.2), "random"),
    (CHOCO(momentum=0.5), "random"),
    (DeepSqueeze(gamma=0.1), "random"),
    (AdaGossip(gamma=0.01, smoothing=0.9), "random"),
    (BEER(gamma=0.3), "random"),
    (SGP(momentum=0.5), "pushed digraph"),
    (SparsePush(gamma=0.1), "pushed digraph"),
    (SwarmSGD(local_steps=3, momentum=0.5, weight_decay=0.01), "random"),
    (SwarmSGD(pairs="many"), "star"),
    (SkewScout(travels=2, tolerance=0.3, longest=4), "random"),
    (FedAvg(local_steps=3), "star"),
    (Central(momentum=0.9), "irregular digraph"),
    (KGT(local_steps=3, weight_decay=0.01), "irregular digraph"),
    (KGT(local_steps=4, outer_lr=0.7, gamma=0.5), "random"),
    (ExactDiffusion(weight_decay=0.01), "random"),
    (LED(local_steps=3), "star"),
    (ProxSkip(local_steps=3, weight_decay=0.01), "random"),
    (DiLoCo(local_steps=5, weight_decay=0.1), "random"),
    (build("ngc+qgm", {"alpha": 0.3}), "random"),
    (build("compngc+choco", {"alpha": 0.5, "scope": "tensor"}), "random"),
    (build("ngc+push-sum", {"alpha": 0.3, "gamma": 0.5}), "pushed digraph"),
]
"""The other systems: on one graph each, in the order of their rows."""

UPDATES: list[tuple[Algorithm, str]] = [
    (build("dpsgd+adam", {"weight_decay": 0.1, "beta2": 0.9}), "random"),
    (build("dpsgd+adamw", {"weight_decay": 0.1, "gamma": 0.5}), "irregular digraph"),
    (build("dpsgd+lion", {"weight_decay": 0.1, "decay_on": "weights"}), "directed ring"),
    (build("dpsgd+sam", {"rho": 0.2, "momentum": 0.9, "nesterov": True}), "star"),
    (build("dpsgd+clip", {"clip": 0.1, "clip_by": "value"}), "random"),
    (build("clip+qgm", {"clip": 0.3, "weight_decay": 0.1, "decoupled": True}), "random"),
    (build("ngc+clip+adamw", {"alpha": 0.3, "clip": 0.5, "decay_on": "weights"}),
     "irregular digraph"),
    (build("ngc+lion", {}), "star"),
    (build("adamw+choco", {"beta1": 0.8}), "random"),
    (build("adam+push-sum", {}), "pushed digraph"),
    (build("gossip+clip", {"momentum": 0.9, "weight_decay": 0.1, "decoupled": True,
                           "decay_on": "weights"}), "directed ring"),
    (DPSGD(local_steps=3, momentum=0.9), "irregular digraph"),
    (CHOCO(local_steps=3), "random"),
    (build("gossip+push-sum", {"local_steps": 4, "momentum": 0.5}), "pushed digraph"),
    (build("dpsgd+sam+adamw", {"local_steps": 3}), "directed ring"),
    (build("clip+qgm", {"local_steps": 3, "mu": 0.8, "clip": 0.5}), "irregular digraph"),
    (build("qgm+choco", {"local_steps": 5, "weight_decay": 0.1}), "random"),
]  # fmt: skip
"""Recipes of other update rules, of SAM and of clipping; and with local steps."""
COMPOSED = [algorithm for algorithm, _ in UPDATES]


def irregular_digraph(weights: str = "auto") -> Topology:
    """Directed, of unequal degrees, with two-way and one-way edges."""
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 2), (2, 0), (3, 1)])
    return graphs.from_graph(graph, name="irregular", weights=weights)


GRAPHS: dict[str, Callable[[], Topology]] = {
    "ring": lambda: graphs.ring(5),
    "star": lambda: graphs.star(6),
    "random": lambda: graphs.erdos_renyi(7, 0.4, seed=2),
    "directed ring": lambda: graphs.directed_ring(4),
    "irregular digraph": irregular_digraph,
}
MANY = {"everyone": lambda: graphs.full(FEW + 2)}
"""Where CGA's program has more unknowns than all sets are tried for."""


FIELD_GRAPHS: dict[str, Callable[[], Topology]] = {
    "tree": lambda: graphs.from_graph(
        nx.Graph([(0, 1), (1, 2), (1, 3), (3, 4), (3, 5)]), name="tree"
    ),
    "pushed digraph": lambda: irregular_digraph("push"),
}


def allowed(algorithm: Algorithm, topology: Topology) -> bool:
    return algorithm.needs != "symmetric" or topology.symmetric


def quick(algorithm: Algorithm, name: str) -> bool:
    """Every algorithm on its hardest graph; on the others by `make test` only."""
    return name == ("random" if algorithm.needs == "symmetric" else "irregular digraph")


PAIRS = [
    pytest.param(
        *(algorithm, make),
        id=f"{algorithm.name}{number}-{name}",
        marks=[] if quick(algorithm, name) else pytest.mark.slow,
    )
    for number, algorithm in enumerate(CASES)
    for name, make in GRAPHS.items()
    if allowed(algorithm, make())
]
PAIRS += [
    pytest.param(algorithm, make, id=f"{algorithm.name}{number}-{name}", marks=pytest.mark.slow)
    for number, algorithm in enumerate(CASES)
    for name, make in MANY.items()
    if algorithm.name in ("cga", "compcga")
]
PAIRS += [
    pytest.param(algorithm, (GRAPHS | FIELD_GRAPHS)[name], id=f"{algorithm.name}.{number}-{name}")
    for number, (algorithm, name) in enumerate([*FIELD, *UPDATES])
]


def reference_run(algorithm: Algorithm, topology: Topology, steps: int) -> list[Tensor]:
    hood = small.hood(topology)
    task = hood.task
    batch_at = cache(small.batches(hood.placement).at)  # asked for once for every edge

    def grad(agent: int, x_D: Tensor, step: int) -> Tensor:
        batch = batch_at(step)
        n = batch.sizes[agent]
        x_D = x_D.detach().requires_grad_()
        loss = task.losses(x_D, batch.inputs[agent, :n], batch.targets[agent, :n]).mean()
        return torch.autograd.grad(loss, x_D)[0]

    def accuracy(agent: int, x_D: Tensor, step: int) -> float:
        batch = batch_at(step)
        n = batch.sizes[agent]
        answers = task.predict(x_D, batch.inputs[agent, :n]).argmax(1)
        return float((answers == batch.targets[agent, :n]).double().mean())

    options: dict[str, Any] = algorithm.settings()
    if algorithm.name not in reference.ALGORITHMS or options.get("local_steps", 1) > 1:
        problem = field_reference.Problem(
            task.start(), topology.weights, grad, accuracy, steps, small.rate,
            list(task.sizes), [len(shape) > 1 for shape in task.shapes], options,
        )  # fmt: skip
        slow = recipe_reference if algorithm in COMPOSED else field_reference
        return [torch.stack(x) for x in slow.run(algorithm.name, problem)]
    assert (options.pop("decoupled"), options.pop("decay_on")) == (False, "all")
    assert options.pop("local_steps", 1) == 1
    if scope := options.pop("scope", None):
        options["per_tensor"] = task.sizes if scope == "tensor" else None
    if scale := options.pop("qp_scale", None):
        options["qp_scale"] = scale == "neighbourhood"
    iterates = reference.run(
        algorithm.name, task.start(), topology.weights, grad, steps, small.rate, **options
    )
    return [torch.stack(x) for x in iterates]


def test_every_algorithm_is_in_the_table() -> None:
    rows = {case.name for case in [*CASES, *(case for case, _ in FIELD)]}
    assert rows >= set(ALGORITHMS)


@pytest.mark.parametrize("algorithm, make", PAIRS)
def test_equals_the_loop_written_reference(
    algorithm: Algorithm, make: Callable[[], Topology]
) -> None:
    topology = make()
    iterates, _ = small.trajectory(algorithm, small.hood(topology), STEPS)
    expected = reference_run(algorithm, topology, STEPS)
    moved = (expected[-1] - expected[0]).abs().max()
    assert moved > 0.05
    for step, (got, wanted) in enumerate(zip(iterates, expected, strict=True)):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11, msg=f"step {step}")


SYMMETRIC = [*CASES, *(case for case, name in [*FIELD, *UPDATES] if name == "random")]


@pytest.mark.parametrize("algorithm", SYMMETRIC, ids=lambda a: a.name)
def test_batched_engine_gives_the_same(algorithm: Algorithm) -> None:
    topology = graphs.erdos_renyi(7, 0.4, seed=2)
    one_by_one, _ = small.trajectory(algorithm, small.hood(topology), 8)
    batched, _ = small.trajectory(algorithm, small.hood(topology, engine=VmapEngine), 8)
    torch.testing.assert_close(batched[-1], one_by_one[-1], rtol=0, atol=1e-10)


def test_ngc_is_affine_in_alpha() -> None:
    """One step at α lies on the line between the steps at 0 and 1."""
    topology = graphs.star(6)

    def after(alpha: float) -> Tensor:
        hood = small.hood(topology)
        algorithm = NGC(alpha=alpha)
        # Unequal models, or both clusters would be the same for some agents.
        start, _ = small.trajectory(DPSGD(), small.hood(topology), 5)
        state = algorithm.init(start[-1], hood)
        return algorithm.step(state, hood, small.batches(hood.placement).at(9), 0.1).state.x_AD

    zero, one = after(0.0), after(1.0)
    assert (zero - one).abs().max() > 1e-3
    torch.testing.assert_close(after(0.3), 0.7 * zero + 0.3 * one, rtol=0, atol=1e-14)


@pytest.mark.parametrize("algorithm", [NGC(alpha=0), NGC(alpha=0.4), NGC(alpha=1), CGA()])
def test_on_identical_data_and_models_the_rules_are_dpsgds(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All gradients of the neighbourhood then equal its own, so nothing is left to correct."""
    monkeypatch.setattr(small, "samples", lambda agents: _one_dataset_for_all(agents))
    topology = graphs.ring(4)
    hood, plain = small.hood(topology), small.hood(topology)
    got, _ = small.trajectory(algorithm, hood, 1)
    expected, _ = small.trajectory(DPSGD(), plain, 1)
    torch.testing.assert_close(got[-1], expected[-1], rtol=0, atol=1e-13)
    assert (got[-1] - got[0]).abs().max() > 1e-3


_samples = small.samples


def _one_dataset_for_all(agents: int) -> list[Any]:
    first = _samples(1)[0].take([0, 1, 2, 3])  # one batch holds it all, in whichever order
    return [first] * agents


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_second_round_is_sent_only_for_alpha_above_zero(alpha: float) -> None:
    hood = small.hood(graphs.ring(5), torch.float32)
    small.trajectory(NGC(alpha=alpha), hood, 3)
    message = 32 + 4 * hood.task.size
    assert hood.transport.sent["models"].tolist() == [3 * 2 * message] * 5
    second = 3 * 2 * message if alpha else 0
    assert hood.transport.sent["cross_gradients"].tolist() == [second] * 5


@pytest.mark.parametrize("scope, scales", [("whole", 1), ("tensor", 4)])
def test_compressed_second_round_is_one_bit_per_entry(scope: str, scales: int) -> None:
    hood = small.hood(graphs.star(4), torch.float32)
    small.trajectory(build("compngc", {"scope": scope}), hood, 2)
    message = 32 + 4 * scales + (hood.task.size + 7) // 8
    # The hub answers three models in each of two steps, every other agent one.
    assert hood.transport.sent["cross_gradients"].tolist() == [6 * message] + [2 * message] * 3


@pytest.mark.parametrize("algorithm", [CompNGC(alpha=1), CompCGA()], ids=lambda a: a.name)
def test_what_is_sent_and_what_is_held_back_add_up(algorithm: Algorithm) -> None:
    """Over all steps: sum of messages + last error = sum of gradients, on every edge."""
    topology = graphs.ring(4)
    hood = small.hood(topology)
    sent_ID = hood.zeros_I()
    gradients_ID = hood.zeros_I()
    compress, cross_gradient = hood.compress, hood.cross_gradient

    def noting_gradients(x_I: Any, batch: Any) -> Any:
        g_ID = hood.collect(cross_gradient(x_I, batch))
        gradients_ID.add_(g_ID)
        return hood.stored(g_ID)

    def noting_messages(g_I: Any, e_ID: Tensor, codec: Any) -> Any:
        sent_ID.add_(hood.collect(compress(g_I, e_ID, codec)))
        return compress(g_I, e_ID, codec)

    hood.cross_gradient, hood.compress = noting_gradients, noting_messages  # type: ignore[method-assign]
    _, state = small.trajectory(algorithm, hood, 6)
    e_ID = state.gradient.e_ID
    assert e_ID.abs().max() > 1e-3
    torch.testing.assert_close(sent_ID + e_ID, gradients_ID, rtol=0, atol=1e-12)


def test_ngc_keeps_no_edge_values() -> None:
    """The largest thing alive while clusters are formed is one round of edges, not all of them."""
    topology = graphs.full(6)
    hood = small.hood(topology)
    alive: list[int] = []
    gradients = hood.engine.gradients

    def noting(x_PD: Tensor, *arguments: Any) -> Any:
        alive.append(len(x_PD))
        return gradients(x_PD, *arguments)

    hood.engine.gradients = noting  # type: ignore[method-assign]
    _, state = small.trajectory(NGC(), hood, 1)
    assert sum(alive) == 6 + 30
    assert max(alive) == 6
    assert set(flat(state)) == {"x_AD", "update.v_AD"}


class TestQuadraticProgram:
    @pytest.mark.parametrize("floor", [0.0, 0.5])
    @pytest.mark.parametrize("neighbours", range(1, 8))
    def test_solutions_satisfy_the_kkt_conditions(self, neighbours: int, floor: float) -> None:
        """With few neighbours and with many, for which another method is used."""
        rng = np.random.default_rng(neighbours)
        rows = rng.normal(size=(20, neighbours, 8)) * 10.0 ** rng.integers(-3, 3, (20, 1, 1))
        g = rng.normal(size=(20, 8))
        gram, along = rows @ rows.swapaxes(1, 2), np.einsum("pmd,pd->pm", rows, g)
        u = multipliers(gram, along, floor, RIDGE)
        slope = np.einsum("pmn,pn->pm", gram, u) + along
        tolerance = 1e-8 * np.maximum(1.0, np.abs(along).max(1, keepdims=True))
        assert (u >= floor).all()
        assert (slope >= -tolerance).all()  # no multiplier wants to grow
        free = u > floor + 1e-9
        assert free.any() and not free.all()
        assert (np.abs(slope) <= tolerance)[free].all()  # free ones rest

    @pytest.mark.parametrize("neighbours", range(1, FEW + 1))
    def test_trying_all_sets_gives_what_non_negative_least_squares_gives(
        self, neighbours: int
    ) -> None:
        rng = np.random.default_rng(neighbours)
        rows = rng.normal(size=(200, neighbours, 6))
        gram = rows @ rows.swapaxes(1, 2)
        slope = np.einsum("pmd,pd->pm", rows, rng.normal(size=(200, 6)))
        np.testing.assert_allclose(
            by_supports(gram, slope), by_active_sets(gram, slope), rtol=1e-7, atol=1e-9
        )

    @pytest.mark.parametrize("neighbours", [2, FEW, FEW + 2])
    @pytest.mark.parametrize("apart", [1.0, 1e-3, 1e-5, 1e-7])
    def test_nearly_parallel_gradients(self, neighbours: int, apart: float) -> None:
        """Where the ridge decides: the authors' program, solved with 60 digits."""
        rng = np.random.default_rng(neighbours)
        π, draw = 1 / (neighbours + 1), torch.from_numpy
        for d in (1, 2, 8):  # with fewer entries than neighbours it is singular without the ridge
            g_1D = draw(rng.normal(size=(1, d)))
            r_1MD = draw(rng.normal(size=(1, 1, d)) + apart * rng.normal(size=(1, neighbours, d)))
            (got_D,) = project(g_1D, r_1MD, [d], 0.5, RIDGE / π**2)
            u = reference.solve_qp(π * g_1D[0], list(π * r_1MD[0]), 0.5)
            wanted_D = g_1D[0] + torch.tensor(u, dtype=torch.float64) @ r_1MD[0]
            torch.testing.assert_close(got_D, wanted_D, rtol=0, atol=1e-11)

    def test_numbers_that_are_no_longer_finite(self) -> None:
        """They stay so, for the run to stop with its own words; no warning, no solver's error."""
        gram = np.stack([np.diag([np.inf, 1.0]), np.eye(2), np.eye(2)])
        along = np.array([[0.0, 0.0], [np.nan, 0.0], [-2.0, 0.0]])
        u = multipliers(gram, along, 0.5, RIDGE)
        assert np.isnan(u[:2]).all()
        assert u[2].tolist() == pytest.approx([2.0, 0.5])  # the others are what they were

    @pytest.mark.parametrize("times", [2, 3, FEW + 1])
    @pytest.mark.parametrize("scale", [1e-2, 1.0, 1e4])
    def test_equal_gradients(self, times: int, scale: float) -> None:
        """A singular problem: only the sum of the multipliers is determined."""
        row = np.array([1.0, 2.0, -1.0])
        rows, g = np.stack([scale * row] * times), np.array([-1.0, 0.0, 0.0])
        (u,) = multipliers((rows @ rows.T)[None], (rows @ g)[None], 0.0, RIDGE)
        assert u.sum() * scale == pytest.approx(1 / 6, abs=1e-6)

    def test_zero_cross_gradients_leave_the_self_gradient(self) -> None:
        hood = small.hood(graphs.ring(3))
        g_AD = torch.randn(3, hood.task.size, dtype=torch.float64)
        r_OD = torch.zeros(6, hood.task.size, dtype=torch.float64)
        torch.testing.assert_close(CGA().parts.gradient.project(g_AD, r_OD, hood), g_AD)
        as_run = CGA.as_run().parts.gradient.project(g_AD, r_OD, hood)
        torch.testing.assert_close(as_run, g_AD / 3)  # every gradient has the weight 1/3 there

    def test_result_opposes_no_neighbour(self) -> None:
        hood = small.hood(graphs.ring(5))
        g_AD = torch.randn(5, hood.task.size, dtype=torch.float64)
        r_OD = torch.randn(10, hood.task.size, dtype=torch.float64)
        result_AD = CGA().parts.gradient.project(g_AD, r_OD, hood)
        agreement_O = (result_AD[hood.sender_O] * r_OD).sum(1)
        assert agreement_O.min() > -1e-9


class TestOptions:
    def test_as_run_sets_only_what_an_algorithm_has(self) -> None:
        assert DPSGD.as_run() == DPSGD(gradient_at="mixed", nesterov=True)
        assert CGA.as_run().qp_floor == 0.5
        assert CGA.as_run(qp_floor=0.0).qp_floor == 0.0
        assert CompNGC.as_run().scope == "tensor"

    @pytest.mark.parametrize("alpha", [-0.1, 1.1, "much"])
    def test_alpha_outside_its_range(self, alpha: object) -> None:
        with pytest.raises(BadValue, match=f"alpha: {alpha!r} is not valid; valid: "):
            build("ngc", {"alpha": alpha})

    def test_unknown_algorithm_names_the_nearest(self) -> None:
        with pytest.raises(BadValue, match=r"algorithm: 'ngcc' is not valid .*did you mean 'ngc'"):
            build("ngcc", {})

    def test_option_of_another_algorithm(self) -> None:
        with pytest.raises(
            BadValue, match=r"alpha: 0.5 .*dpsgd has no such option; it belongs to ngc, compngc"
        ):
            build("dpsgd", {"alpha": 0.5})

    def test_weights_an_algorithm_cannot_use(self) -> None:
        with pytest.raises(BadValue, match="weights"):
            CGA().check(graphs.directed_ring(4))
        with pytest.raises(BadValue, match="weights"):
            NGC().check(graphs.star(4, weights="uniform"))
        NGC().check(graphs.directed_ring(4))


class TestNGCOnOnePage:
    """NGC spells its step out; its parts in the recipe's order give the same bits."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"alpha": 0.0, "momentum": 0.9, "gamma": 0.7},
            {"alpha": 0.4, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
            {"alpha": 0.4, "weight_decay": 0.1, "decoupled": True, "decay_on": "weights"},
            {"alpha": 0.4, "momentum": 0.9, "gradient_at": "mixed"},
        ],
    )
    @pytest.mark.parametrize("graph", [graphs.ring(5), graphs.star(4), graphs.directed_ring(4)])
    def test_it_has_the_bits_of_its_parts(
        self, options: dict[str, Any], graph: Topology, dtype: torch.dtype
    ) -> None:
        whole = NGC(**options)
        iterates, state = small.trajectory(whole, small.hood(graph, dtype), 6)
        x_AD, hood = iterates[0], small.hood(graph, dtype)
        batches = small.batches(hood.placement, dtype)
        kept = whole.parts.init(x_AD, hood, apart=False, in_rounds=False)
        order = step_from_average if whole.mixes_first else average_then_step
        for step in range(6):
            kept = order(whole.parts, kept, hood.at(step), batches.at(step), small.rate(step)).state
        assert (iterates[-1] != x_AD).any() and kept.x_AD.equal(iterates[-1])
        assert kept.update.v_AD.equal(state.update.v_AD)
