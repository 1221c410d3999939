"""What each method is known for, on problems whose answer is known in closed form."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parley import graphs
from parley.algorithms import (
    ALGORITHMS,
    BEER,
    CHOCO,
    D2,
    DMSGD,
    DPSGD,
    GUT,
    QGM,
    SGP,
    Algorithm,
    Central,
    DecentLaM,
    FedAvg,
    GradientTracking,
    MomentumTracking,
    RelaySGD,
    SkewScout,
    SwarmSGD,
    build,
    compose,
)
from parley.compute.engine import LoopEngine
from parley.compute.task import Task
from parley.data import Batch, Batches, Transform
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.graphs import Topology
from parley.graphs.sequences import random_matching
from parley.neighbourhood import Gradient, Neighbourhood
from parley.reproduce.theory import quadratics
from parley.wire.local import Local
from parley.wire.placement import Placement, spread
from tests import small

D = 3


class Quadratics:
    """f_i(x) = ½ a_i ‖x - b_i‖², every agent with an a and a b of its own."""

    def __init__(self, agents: int) -> None:
        generator = torch.Generator().manual_seed(2)
        self.a_N1 = 0.5 + torch.rand(agents, 1, dtype=torch.float64, generator=generator)
        self.b_ND = 3 * torch.randn(agents, D, dtype=torch.float64, generator=generator)
        self.optimum_D = (self.a_N1 * self.b_ND).sum(0) / self.a_N1.sum()

    def run(self, algorithm: Algorithm, topology: Topology, steps: int, lr: float) -> Any:
        """The last state, with full gradients and a constant step."""
        hood = Quadratic(topology, self)
        state = algorithm.init(torch.zeros(topology.agents, D, dtype=torch.float64), hood)
        return rested(algorithm, hood, state, steps, lr)


class Quadratic(Neighbourhood):
    """The verbs, with the quadratics' gradients."""

    def __init__(self, topology: Topology, problem: Quadratics) -> None:
        task = Task(nn.Linear(D, 1, bias=False), dtype=torch.float64)
        super().__init__(Local(spread(topology, 1)), LoopEngine(task))
        self.problem = problem

    def gradient(self, x_AD: Tensor, batch: Batch, active_A: Tensor | None = None) -> Gradient:
        g_AD = self.problem.a_N1 * (x_AD - self.problem.b_ND)
        return Gradient(g_AD, x_AD.new_zeros(len(x_AD)))


def rested(algorithm: Algorithm, hood: Neighbourhood, state: Any, steps: int, lr: float) -> Any:
    """The state after so many steps, or once the models have come to rest: fifty steps that move
    them by less than rounding would."""
    before_AD = state.x_AD
    for step in range(steps):
        state = algorithm.step(state, hood.at(step), step_only(step), lr).state
        if step % 50 == 49:
            if (state.x_AD - before_AD).abs().max() < 1e-13:
                break
            before_AD = state.x_AD
    return state


def step_only(step: int) -> Batch:
    nothing = torch.zeros(0)
    return Batch(nothing, nothing, nothing, (), (), step)


def biased(problem: Quadratics, W: np.ndarray, lr: float) -> Tensor:
    """Where D-PSGD rests: x = W (x - η A (x - b)), solved for x."""
    W_NN, A_NN = torch.from_numpy(W), torch.diag(problem.a_N1[:, 0])
    eye = torch.eye(len(W), dtype=torch.float64)
    right = W_NN @ (lr * A_NN @ problem.b_ND)
    return torch.linalg.solve(eye - W_NN @ (eye - lr * A_NN), right)


class TestHeterogeneousQuadratics:
    def test_dpsgd_keeps_its_bias(self) -> None:
        problem, topology = Quadratics(6), graphs.ring(6)
        rest_ND = biased(problem, topology.weights.copy(), 0.1)
        assert (rest_ND - problem.optimum_D).abs().max() > 0.2
        state = problem.run(DPSGD(), topology, 600, 0.1)
        torch.testing.assert_close(state.x_AD, rest_ND, rtol=0, atol=1e-10)

    @pytest.mark.parametrize(
        "algorithm, topology",
        [
            (D2(), graphs.ring(6)),  # even: as it is, W has an eigenvalue of exactly -1/3
            (D2(), graphs.torus((2, 3))),
            (D2(gamma=1.0), graphs.ring(5)),
            (GradientTracking(), graphs.ring(6)),
            (GradientTracking(momentum=0.5), graphs.directed_ring(5)),
            (MomentumTracking(momentum=0.5), graphs.ring(6)),
            (RelaySGD(), graphs.chain(6)),
            (RelaySGD(), graphs.star(6)),
            (BEER(gamma=0.4), graphs.ring(6)),
            (build("tracking+qgm", {"momentum": 0.5}), graphs.ring(6)),
            (build("tracking+push-sum", {}), graphs.directed_ring(5, weights="push")),
            (Central(), graphs.ring(6)),
            (FedAvg(local_steps=1), graphs.star(6)),
        ],
        ids=lambda v: getattr(v, "name", v),
    )
    def test_exact_methods_reach_the_optimum(
        self, algorithm: Algorithm, topology: Topology
    ) -> None:
        problem = Quadratics(topology.agents)
        algorithm.check(topology)
        state = problem.run(algorithm, topology, 1500, 0.1)
        expected_AD = problem.optimum_D.expand_as(state.x_AD)
        torch.testing.assert_close(state.x_AD, expected_AD, rtol=0, atol=1e-8)

    def test_momentum_adds_to_dmsgds_bias_and_not_to_decentlams(self) -> None:
        """DecentLaM's momentum has D-PSGD's rest; DMSGD's is another, farther away."""
        problem, topology, lr = Quadratics(6), graphs.ring(6), 0.02
        plain = problem.run(DecentLaM(momentum=0.0), topology, 3000, lr).x_AD
        lam = problem.run(DecentLaM(momentum=0.8), topology, 3000, lr).x_AD
        torch.testing.assert_close(lam, plain, rtol=0, atol=1e-8)
        heavy = problem.run(DMSGD(momentum=0.8), topology, 3000, lr).x_AD
        light = problem.run(DMSGD(momentum=0.0), topology, 3000, lr).x_AD
        off = [(x - problem.optimum_D).norm() for x in (light, heavy)]
        assert off[1] > 3 * off[0]

    def test_d2_without_laziness_where_it_is_needed_is_refused(self) -> None:
        with pytest.raises(BadValue, match=r"gamma: 1.0 .*above -1/3, here -0.3333.*below 1 on"):
            D2(gamma=1.0).check(graphs.ring(6))
        with pytest.raises(BadValue, match=r"gamma: 0\.95"):
            D2(gamma=0.95).check(graphs.torus((4, 4)))
        D2(gamma=1.0).check(graphs.ring(5))

    def test_the_old_step_keeps_its_rate(self) -> None:
        """The mean model moves by -η times the mean gradient, also where η changes."""
        problem, topology = Quadratics(5), graphs.star(5)
        hood, algorithm = Quadratic(topology, problem), D2()
        state = algorithm.init(torch.zeros(5, D, dtype=torch.float64), hood)
        for step, lr in enumerate([0.1, 0.1, 0.02, 0.02, 0.3, 0.1]):
            mean_D = state.x_AD.mean(0)
            g_AD, _ = hood.gradient(state.x_AD, step_only(step))
            state = algorithm.step(state, hood, step_only(step), lr).state
            expected_D = mean_D - lr * g_AD.mean(0)
            torch.testing.assert_close(state.x_AD.mean(0), expected_D, rtol=0, atol=1e-12)

    def test_guts_mean_has_the_momentum_beta_plus_mu(self) -> None:
        problem, topology, lr = Quadratics(5), graphs.ring(5), 0.02
        hood, algorithm = Quadratic(topology, problem), GUT(momentum=0.7, mu=0.2)
        state = algorithm.init(torch.zeros(5, D, dtype=torch.float64), hood)
        moved_D = before_D = torch.zeros(D, dtype=torch.float64)
        for step in range(20):
            mean_D = state.x_AD.mean(0)
            g_D = hood.gradient(state.x_AD, step_only(step))[0].mean(0)
            moved_D, before_D = 0.9 * moved_D - lr * (g_D - 0.2 * before_D), g_D
            state = algorithm.step(state, hood, step_only(step), lr).state
            found_D = state.x_AD.mean(0) - mean_D
            torch.testing.assert_close(found_D, moved_D, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("nesterov", [False, True])
    def test_gut_refuses_the_mu_with_which_its_mean_runs_away(self, nesterov: bool) -> None:
        problem, topology, lr = Quadratics(5), graphs.ring(5), 0.0005
        options = {"momentum": 0.9, "nesterov": nesterov}
        stable = problem.run(GUT(**options, mu=0.08), topology, 3000, lr).x_AD.mean(0)
        assert (stable - problem.optimum_D).norm() < 0.01 * problem.optimum_D.norm()
        unchecked = GUT().model_copy(update={**options, "mu": 0.12})
        far = problem.run(unchecked, topology, 3000, lr).x_AD.mean(0)
        assert (far - problem.optimum_D).norm() > 1000 * problem.optimum_D.norm()
        with pytest.raises(BadValue, match=r"mu: 0.12 .*momentum of 0.9.*below 0.1"):
            GUT(**options, mu=0.12)

    def test_guts_default_mu_leaves_room_for_momentum(self) -> None:
        assert GUT().mu == 0.1 and GUT(momentum=0.9).mu == 0.01
        made = Experiment.of(algorithm="gut", momentum="0.9")  # as from the command line
        for momentum, mu in ((0.9, 0.01), (0.5, 0.05), (0.95, 0.005), (0.0, 0.1)):
            made = made.replace(momentum=momentum)
            assert made.algorithm == GUT(momentum=momentum, mu=mu)
        assert made.replace(mu=0.2, momentum=0.7).algorithm == GUT(momentum=0.7, mu=0.2)
        with pytest.raises(BadValue, match=r"mu: 0\.1 .*below 0\.1"):
            GUT(momentum=0.9, mu=0.1)

    def test_push_sum_finds_the_optimum_of_all_where_plain_gossip_does_not(self) -> None:
        """Push weights favour some agents; de-biased, all count the same."""
        graph = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (2, 0), (1, 0)])
        topology = graphs.from_graph(graph, weights="push")
        assert not topology.row_stochastic
        problem = Quadratics(4)
        near = problem.run(SGP(), topology, 5000, 0.002).x_AD
        mixed = problem.run(build("tracking+push-sum", {}), topology, 3000, 0.05).x_AD
        assert (near - problem.optimum_D).abs().max() < 0.02
        torch.testing.assert_close(mixed, problem.optimum_D.expand_as(mixed), rtol=0, atol=1e-8)


def worst_errors(algorithm: Algorithm, topology: Topology, drop: int) -> tuple[float, float]:
    """The largest mean distance from the optimum in the steps before a drop of the rate to a tenth,
    and in those after it, with full gradients, also of the neighbours' models."""
    size = 4
    problem = quadratics.Quadratics.draw(topology.agents, size, 3.0, 0.0, curvature_spread=0.5)
    task = Task(quadratics.Point(size), quadratics.half_square, dtype=torch.float64)
    hood = Neighbourhood(Local(spread(topology, 1)), quadratics.QuadraticEngine(task))
    samples = problem.samples(2, 0)  # their noise is 0
    batches = Batches(samples, hood.agents, 2, Transform(), 0, dtype=torch.float64)
    a_ND, b_ND = problem.curvatures_ND, problem.centres_ND
    optimum_D = torch.from_numpy((a_ND * b_ND).mean(0) / a_ND.mean(0))
    state = algorithm.init(task.start().expand(topology.agents, -1).clone(), hood)
    errors = []
    for step in range(drop + 100):
        then, lr = hood.at(step, algorithm.rounds_before(step)), 0.2 if step < drop else 0.02
        state = algorithm.step(state, then, batches.at(step), lr).state
        errors.append(float((state.x_AD - optimum_D).norm(dim=1).mean()))
    return max(errors[drop - 100 : drop]), max(errors[drop:])


class TestDropOfTheRate:
    """What a method keeps from step to step still fits after the rate has changed."""

    @pytest.mark.parametrize("drop", [500, 502], ids=["between rounds", "within a round"])
    @pytest.mark.parametrize("name", [*ALGORITHMS, "tracking+qgm", "dpsgd+adam", "tracking+clip"])
    def test_no_method_jumps(self, name: str, drop: int) -> None:
        if name in ("relaysgd", "skewscout"):  # see below; D-PSGD that averages by accuracies
            return
        before, after = worst_errors(build(name, {}), graphs.ring(6), drop)
        assert after <= 1.02 * before + 1e-7, (before, after)

    def test_relaysgd_adds_up_steps_of_both_rates_for_as_long_as_messages_take(self) -> None:
        """As published: no more than the bias of D-PSGD at the rate before."""
        before, after = worst_errors(RelaySGD(), graphs.chain(6), 500)
        assert before < 1e-2 < after < 0.5 * worst_errors(DPSGD(), graphs.ring(6), 500)[0]


class Still(Quadratic):
    """Nothing to learn: the averaging rules alone."""

    def gradient(self, x_AD: Tensor, batch: Batch, active_A: Tensor | None = None) -> Gradient:
        return Gradient(torch.zeros_like(x_AD), x_AD.new_zeros(len(x_AD)))


def averaged(algorithm: Algorithm, topology: Topology, steps: int) -> list[Tensor]:
    """The models from different starts under an algorithm without gradients."""
    hood = Still(topology, Quadratics(topology.agents))
    generator = torch.Generator().manual_seed(4)
    start = torch.randn(topology.agents, D, dtype=torch.float64, generator=generator)
    state = algorithm.init(torch.zeros_like(start), hood)
    state = state._replace(x_AD=start)  # where all start alike there is nothing to average
    iterates = [start]
    for step in range(steps):
        state = algorithm.step(state, hood.at(step), step_only(step), 0.1).state
        iterates.append(state.x_AD)
    return iterates


class TestConsensus:
    def test_push_sum_averages_exactly_on_a_directed_graph(self) -> None:
        graph = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3), (3, 1)])
        topology = graphs.from_graph(graph, weights="push")
        assert topology.column_stochastic
        assert not topology.row_stochastic
        iterates = averaged(SGP(), topology, 200)
        mean = iterates[0].mean(0).expand_as(iterates[0])
        torch.testing.assert_close(iterates[-1], mean, rtol=0, atol=1e-12)
        hood = Still(topology, Quadratics(5))
        plain = iterates[0]
        for _ in range(200):
            plain = hood.mix(plain)
        assert (plain - mean).abs().max() > 0.1  # the same weights without push-sum do not

    @pytest.mark.parametrize(
        ("topology", "momentum", "agree"),
        [
            (graphs.ring(16), 0.9, True),
            (graphs.one_peer_exponential(16), 0.5, True),
            (graphs.one_peer_exponential(16), 0.9, False),
        ],
        ids=["ring", "changing, 0.5", "changing, 0.9"],
    )
    def test_decentlam_needs_less_momentum_where_the_graph_changes(
        self, topology: Topology, momentum: float, agree: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its momentum repeats averagings, of graphs that have had their turn."""
        monkeypatch.setattr(Neighbourhood, "gradient", Still.gradient)  # on each of the graphs
        first, *_, last = averaged(DecentLaM(momentum=momentum), topology, 400)
        apart = [(x - x.mean(0)).norm() for x in (first, last)]
        assert apart[1] < 1e-6 * apart[0] if agree else apart[1] > 1e6 * apart[0]

    @pytest.mark.parametrize("algorithm", [CHOCO, BEER])
    @pytest.mark.parametrize("codec", ["sign", "topk:0.3", "randomk:0.3", "qsgd:4"])
    def test_compressed_gossip_reaches_consensus_at_a_linear_rate(
        self, algorithm: Any, codec: str
    ) -> None:
        """Whatever the compressor: one entry of three, chosen by size or at random, too."""
        iterates = averaged(algorithm(gamma=0.2, codec=codec), graphs.ring(5), 200)
        mean = iterates[0].mean(0)
        off = [float((x - mean).norm()) for x in iterates]
        for x in iterates:
            torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=1e-10)
        # A straight line in the logarithm: about the same factor over each fifty steps.
        factors = [off[k + 50] / off[k] for k in (50, 100, 150)]
        assert max(factors) < 0.1
        assert off[-1] < 1e-5


class TestIdentities:
    @pytest.mark.parametrize("nesterov", [True, False])
    def test_qgm_on_one_agent_is_sgd_with_momentum(self, nesterov: bool) -> None:
        """With no neighbour, x - x⁺ is the step; at μ = 0, m̂ is its direction."""
        problem, topology, lr, beta = Quadratics(1), graphs.ring(1), 0.05, 0.8
        algorithm = QGM(momentum=beta, mu=0.0, nesterov=nesterov)
        got = problem.run(algorithm, topology, 40, lr).x_AD
        x, last = torch.zeros(1, D, dtype=torch.float64), torch.zeros(1, D, dtype=torch.float64)
        for _ in range(40):
            g = problem.a_N1 * (x - problem.b_ND)
            m = beta * last + g
            last = g + beta * m if nesterov else m
            x = x - lr * last
        torch.testing.assert_close(got, x, rtol=0, atol=1e-12)
        if not nesterov:  # then that is the heavy ball
            heavy = problem.run(DPSGD(momentum=beta), topology, 40, lr).x_AD
            torch.testing.assert_close(got, heavy, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_fedavg_with_one_local_step_is_central_sgd(self, momentum: float) -> None:
        topology = graphs.star(6)
        federated, _ = small.trajectory(
            FedAvg(local_steps=1, momentum=momentum), small.hood(topology), 12
        )
        central, _ = small.trajectory(Central(momentum=momentum), small.hood(topology), 12)
        assert (central[-1] - central[0]).abs().max() > 0.05
        torch.testing.assert_close(federated[-1], central[-1], rtol=0, atol=1e-12)

    @pytest.mark.parametrize(
        "left, right, graph",
        [
            ("gossip+push-sum", "sgp", graphs.ring(5)),  # doubly stochastic: weights stay 1
            ("tracking+choco", "beer", graphs.ring(5)),
            ("tracking+sign", "beer", graphs.ring(5)),
            ("deepsqueeze+push-sum", "sparse-push", graphs.directed_ring(4)),
            ("gossip+qgm", "qgm", graphs.star(5)),
            ("ngc+gossip", "ngc", graphs.star(5)),
            ("compngc+gossip", "compngc", graphs.ring(5)),
            ("cga+gossip", "cga", graphs.ring(4)),
            ("compcga+gossip", "compcga", graphs.ring(4)),
        ],
    )
    def test_named_algorithms_are_combinations(
        self, left: str, right: str, graph: Topology
    ) -> None:
        one, _ = small.trajectory(build(left, {}), small.hood(graph), 10)
        other, _ = small.trajectory(build(right, {}), small.hood(graph), 10)
        assert (one[-1] - one[0]).abs().max() > 0.05
        torch.testing.assert_close(one[-1], other[-1], rtol=0, atol=1e-11)

    def test_sgp_with_doubly_stochastic_weights_is_dpsgd(self) -> None:
        graph = graphs.directed_ring(4)
        sgp, state = small.trajectory(SGP(momentum=0.9), small.hood(graph), 10)
        dpsgd, _ = small.trajectory(DPSGD(momentum=0.9), small.hood(graph), 10)
        torch.testing.assert_close(sgp[-1], dpsgd[-1], rtol=0, atol=1e-12)
        torch.testing.assert_close(
            state.debias.w_A1, torch.ones_like(state.debias.w_A1), rtol=0, atol=1e-12
        )

    def test_tracked_gradients_have_the_mean_of_all_gradients(self) -> None:
        _, state = small.trajectory(GradientTracking(), small.hood(graphs.star(5)), 7)
        y_AD, g_AD, _ = state.correction
        torch.testing.assert_close(y_AD.mean(0), g_AD.mean(0), rtol=0, atol=1e-12)
        assert (y_AD - g_AD).abs().max() > 0.01

    def test_relaysgds_sums_reach_everyone(self) -> None:
        """Without gradients, from a common start, nothing moves; one agent's step moves all by 1/n
        of it, after as many steps as it is far away."""
        topology = graphs.chain(4)
        hood = Still(topology, Quadratics(4))
        algorithm = RelaySGD()
        state = algorithm.init(torch.ones(4, D, dtype=torch.float64), hood)
        bumped = state.x_AD.clone()
        bumped[0] += 4.0
        state = state._replace(x_AD=bumped)
        seen = []
        for step in range(5):
            state = algorithm.step(state, hood, step_only(step), 0.1).state
            seen.append((state.x_AD[:, 0] - 1).tolist())
        # The bump goes out once, as a message; what it adds to later messages comes from x itself.
        assert seen[0] == pytest.approx([1.0, 1.0, 0.0, 0.0])
        assert seen[1][2] > 0 and seen[1][3] == pytest.approx(0.0)
        assert seen[2][3] > 0

    def test_a_tree_is_needed(self) -> None:
        with pytest.raises(
            BadValue, match=r"topology: 'ring' .*relaysgd only works on trees.*a tree"
        ):
            RelaySGD().check(graphs.ring(5))


class TestWhatIsSent:
    @pytest.mark.parametrize(
        "name, options, models, gradients",
        [
            ("qgm", {}, 4, 0.0),
            ("d2", {}, 4, 0.0),
            ("gut", {}, 4, 0.0),
            ("tracking", {}, 4, 4),
            ("momentum-tracking", {}, 4, 4),
            ("choco", {}, 1 / 8, 0.0),
            ("beer", {}, 1 / 8, 1 / 8),
            ("compngc+choco", {"scope": "tensor"}, 1 / 8, 1 / 8),
        ],
    )
    def test_messages_of_a_step(
        self, name: str, options: dict[str, Any], models: float, gradients: float
    ) -> None:
        """Bytes per entry, for each of two neighbours; four scales where entries are bits."""
        hood = small.hood(graphs.ring(5), torch.float32)
        small.trajectory(build(name, options), hood, 3)

        def expected(entry: float) -> list[int]:
            size = hood.task.size
            body = 4 * size if entry == 4 else 16 + (size + 7) // 8
            return [3 * 2 * (32 + body) * (entry > 0)] * 5

        assert hood.transport.sent["models"].tolist() == expected(models)
        assert hood.transport.sent["cross_gradients"].tolist() == expected(gradients)

    def test_push_sums_weights_are_counted(self) -> None:
        hood = small.hood(graphs.directed_ring(4, weights="push"), torch.float32)
        small.trajectory(SGP(), hood, 3)
        model, weight = 32 + 4 * hood.task.size, 32 + 4
        assert hood.transport.sent["models"].tolist() == [3 * (model + weight)] * 4

    def test_a_server_is_counted_as_a_star(self) -> None:
        hood = small.hood(graphs.ring(5), torch.float32)
        small.trajectory(FedAvg(local_steps=2), hood, 5)  # two rounds
        model = 32 + 4 * hood.task.size
        assert hood.transport.sent["models"].tolist() == [2 * 4 * model] + [2 * model] * 4

    def test_only_those_who_meet_send(self) -> None:
        hood = small.hood(graphs.ring(5), torch.float32)
        algorithm = SwarmSGD(local_steps=2)
        small.trajectory(algorithm, hood, 6)
        meetings = [random_matching(graphs.ring(5).edges, 0, number, most=1) for number in range(3)]
        assert all(len(pairs) == 1 for pairs in meetings)
        assert len({pairs[0] for pairs in meetings}) > 1
        model = 32 + 4 * hood.task.size
        often = [sum(agent in pairs[0] for pairs in meetings) for agent in range(5)]
        assert hood.transport.sent["models"].tolist() == [model * times for times in often]

    def test_agents_keep_their_numbers_when_others_have_gone(self) -> None:
        """Of seven agents 0 and 3 are absent: the graph numbers the others 0 to 4."""
        topology, numbers = graphs.ring(5), (1, 2, 4, 5, 6)
        hood = small.hood(topology, transport=Local(Placement(topology, (0,) * 5, 0, numbers)))
        algorithm = SwarmSGD(local_steps=2, pairs="one")
        batch, start_AD = small.batches(hood.placement).at(0), hood.task.start().repeat(5, 1)
        state, loss_A, active_A = algorithm.step(algorithm.init(start_AD, hood), hood, batch, 0.1)
        x_AD = state.x_AD
        [(i, j)] = random_matching(topology.edges, 0, 0, most=1)
        moved = (x_AD != start_AD).any(1)
        assert moved.nonzero().flatten().tolist() == [i, j]
        assert active_A is not None
        assert active_A.equal(moved) and (loss_A > 0).equal(moved)

    def test_one_that_is_left_alone_learns_by_itself(self) -> None:
        alone = graphs.from_graph(nx.empty_graph(1), name="one")
        iterates, _ = small.trajectory(SwarmSGD(), small.hood(alone), 3)
        expected, _ = small.trajectory(DPSGD(), small.hood(alone), 3)
        assert iterates[-1].equal(expected[-1])


class TestSkewScout:
    def rounds(self, tolerance: float) -> tuple[int, float]:
        """Averagings in 40 steps, and the last interval."""
        hood = small.hood(graphs.ring(5))
        algorithm = SkewScout(tolerance=tolerance, travels=2, longest=8)
        exchange, often = hood.exchange, []

        def noting(*arguments: Any, **named: Any) -> Any:
            often.append(1)
            return exchange(*arguments, **named)

        hood.exchange = noting  # type: ignore[method-assign]
        _, state = small.trajectory(algorithm, hood, 40)
        return len(often), float(state.interval_A[0])

    def test_it_goes_without_averaging_only_where_little_is_lost(self) -> None:
        assert self.rounds(tolerance=0.0) == (40, 1.0)  # every agent has other data
        few, interval = self.rounds(tolerance=1.0)
        assert interval == 8.0
        assert few == 9  # two each at intervals of 1, 2 and 4 (14 steps), then three of 8

    def test_answers_are_a_number_each(self) -> None:
        hood = small.hood(graphs.ring(5), torch.float32)
        small.trajectory(SkewScout(tolerance=0.0, travels=1), hood, 3)
        model, answer = 32 + 4 * hood.task.size, 32 + 4
        each = 3 * 2 * (model + answer)
        server = 3 * answer
        assert hood.transport.sent["models"].tolist() == [each + 4 * server] + [each + server] * 4


class TestNames:
    def test_one_line_in_python_toml_and_flags(self) -> None:
        experiment = Experiment.of(algorithm="qgm+ngc", alpha=0.5, mu=0.8)
        assert experiment.algorithm.name == "ngc+qgm"
        assert experiment.algorithm.label == "NGC + QGM α=0.5"
        assert Experiment.from_toml(experiment.to_toml()) == experiment
        again = Experiment.of(algorithm=compose("ngc+qgm")(alpha=0.5, mu=0.8))
        assert again == experiment

    def test_options_are_the_parts(self) -> None:
        fields = set(compose("compngc+qgm+choco").options())
        assert fields == {
            *("alpha", "scope", "momentum", "mu", "nesterov", "gamma", "codec"),
            *("weight_decay", "decoupled", "decay_on"),
        }
        with pytest.raises(
            BadValue, match=r"mu: 0.5 .*ngc\+choco has no such option; it belongs to qgm, gut"
        ):
            build("ngc+choco", {"mu": 0.5})

    def test_a_codec_names_the_messages(self) -> None:
        algorithm = build("tracking+sign", {})
        assert algorithm.name == "tracking+choco+sign"
        assert algorithm.codec == "sign"  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        "name, words",
        [
            ("ngc+cga", "ngc and cga are both the gradient rule"),
            ("choco+deepsqueeze", "choco and deepsqueeze are both the averaging rule"),
            ("ngc+deepsqueeze", "ngc needs the neighbours' models"),
            ("cga+push-sum", "cga needs symmetric weights"),
            ("adagossip+push-sum", "does not preserve"),
            ("ngc+chocco", "did you mean 'choco'"),
            ("ngc+relaysgd", "relaysgd is an algorithm of its own"),
        ],
    )
    def test_parts_that_do_not_fit(self, name: str, words: str) -> None:
        with pytest.raises(BadValue, match=words) as caught:
            build(name, {})
        assert caught.value.field == "algorithm"

    def test_weights_are_checked(self) -> None:
        directed = graphs.directed_ring(4)
        uneven = graphs.star(4, weights="push")
        build("ngc+push-sum", {}).check(uneven)
        with pytest.raises(BadValue, match="weights"):
            build("ngc+qgm", {}).check(uneven)
        with pytest.raises(BadValue, match="weights"):
            build("cga+qgm", {}).check(directed)
        with pytest.raises(BadValue, match=r"valid: weights=push"):
            SGP().check(graphs.star(4, weights="uniform"))
