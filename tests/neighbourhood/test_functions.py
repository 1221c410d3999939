"""Plain torch functions at agents' and neighbours' models, and tensors of other widths."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parley import graphs
from parley.compute.engine import Engine, LoopEngine, VmapEngine
from parley.compute.task import Task
from parley.fabric.base import Fabric
from parley.neighbourhood import Neighbourhood
from parley.wire.local import Local
from parley.wire.placement import Placement, spread
from parley.wire.spread import over
from parley.wire.transport import HEADER
from tests import small
from tests.memory import together


def net(kind: str) -> nn.Module:
    torch.manual_seed(3)
    between: dict[str, nn.Module] = {
        "plain": nn.Tanh(),
        "dropout": nn.Dropout(0.4),
        "norm": nn.BatchNorm1d(6),
    }
    return nn.Sequential(nn.Linear(small.FEATURES, 6), between[kind], nn.Linear(6, small.CLASSES))


def hood_of(
    kind: str, topology: Any, engine: type[Engine] = LoopEngine, loss: Any = None
) -> Neighbourhood:
    how = {"loss": loss} if loss else {}
    task = Task(net(kind), dtype=torch.float64, **how)
    return Neighbourhood(Local(spread(topology, 1)), engine(task, seed=9))


def models(hood: Neighbourhood) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (len(hood.agents), hood.task.size)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def batch_of(hood: Neighbourhood) -> Any:
    return small.batches(hood.placement).at(2)


@pytest.mark.parametrize("kind", ["plain", "dropout", "norm"])
@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(label_smoothing=0.2, reduction="none")])
def test_the_loss_as_a_function_has_the_gradients_bits(kind: str, loss: Any) -> None:
    """With its buffers, its dropout and its loss: own models and neighbours'."""
    hood = hood_of(kind, graphs.star(4), loss=loss)
    x_AD, batch = models(hood), batch_of(hood)

    def mean_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor]:
        return (hood.losses(model(inputs), targets).mean(),)

    before = torch.get_rng_state()
    g_AD, loss_A = hood.gradient(x_AD, batch)
    counted = hood.meter.samples
    own = hood.evaluate(mean_loss, x_AD, batch)
    assert torch.stack([value for (value,) in own.values]).equal(loss_A)
    one = torch.ones((), dtype=torch.float64)
    assert own.pull([[one]] * 4).equal(g_AD) and (g_AD != 0).any()
    assert hood.meter.samples == 2 * counted > 0

    x_I = hood.exchange(x_AD)
    g_ID = hood.collect(hood.cross_gradient(x_I, batch))
    theirs = hood.cross_evaluate(mean_loss, x_I, batch)
    assert hood.collect(theirs.pull([[one]] * hood.incoming)).equal(g_ID)
    assert not any(value.requires_grad for (value,) in (*own.values, *theirs.values))
    assert torch.get_rng_state().equal(before)


def test_cotangents_are_pulled_back_by_the_chain_rule() -> None:
    """Two outputs of different shapes, one without a gradient: against autograd on a copy."""
    hood = hood_of("plain", graphs.directed_ring(4), engine=VmapEngine)
    x_AD, batch = models(hood), batch_of(hood)

    def two(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert isinstance(model, nn.Sequential) and model.training
        h = model[1](model[0](inputs))
        return h, model[2](h).sum(), targets + 1

    own = hood.evaluate(two, x_AD, batch)
    generator = torch.Generator().manual_seed(2)
    backs = [torch.randn(h.shape, dtype=h.dtype, generator=generator) for h, _, _ in own.values]
    scalar = torch.tensor(0.3, dtype=torch.float64)
    found_AD = own.pull([(back, scalar, None) for back in backs])
    for a, (x_D, back) in enumerate(zip(x_AD, backs, strict=True)):
        n = batch.sizes[a]
        x_D = x_D.clone().requires_grad_()
        w, b, v, c = hood.task.parameters(x_D).values()
        h = torch.tanh(batch.inputs[a, :n] @ w.T + b)
        whole = (h * back).sum() + 0.3 * (h @ v.T + c).sum()
        wanted_D = torch.autograd.grad(whole, x_D)[0]
        torch.testing.assert_close(own.values[a][0], h.detach(), rtol=0, atol=1e-13)
        torch.testing.assert_close(found_AD[a], wanted_D, rtol=0, atol=1e-12)
        assert own.values[a][2].equal(batch.targets[a, :n] + 1)
    none = hood.evaluate(two, x_AD, batch).pull([(None, None, None)] * 4)
    assert none.equal(torch.zeros_like(x_AD))


def test_gradients_of_a_function_are_clustered_as_cross_gradients_are() -> None:
    hood = hood_of("plain", graphs.star(4))
    x_AD, batch = models(hood), batch_of(hood)

    def mean_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor]:
        return (hood.losses(model(inputs), targets).mean(),)

    x_I, (g_AD, _) = hood.exchange(x_AD), hood.gradient(x_AD, batch)
    one = torch.ones((), dtype=torch.float64)
    pulled = hood.cross_evaluate(mean_loss, x_I, batch).pull([[one]] * hood.incoming)
    found_AD = hood.cluster(g_AD, pulled, 0.4)
    wanted_AD = hood.cluster(g_AD, hood.cross_gradient(x_I, batch), 0.4)
    torch.testing.assert_close(found_AD, wanted_AD, rtol=0, atol=1e-14)


def test_a_function_that_returns_no_tuple_is_refused() -> None:
    hood = hood_of("plain", graphs.ring(3))

    def bare(model: nn.Module, inputs: Tensor, targets: Tensor) -> Any:
        return model(inputs)

    with pytest.raises(TypeError, match="returned a Tensor, not a tuple"):
        hood.evaluate(bare, models(hood), batch_of(hood))


@pytest.mark.parametrize("width", [1, 7, 200])
def test_tensors_of_any_width_are_sent_and_counted(width: int) -> None:
    """One number, and more than a model has: there, back, and along some edges."""
    hood = hood_of("plain", graphs.directed_ring(4))
    assert width != hood.task.size
    x_AW = torch.randn(4, width, dtype=torch.float64)
    heard_IW = hood.collect(hood.exchange(x_AW, kind="cross_gradients"))
    assert heard_IW.equal(x_AW[[j for j, _ in hood.edges_I]])
    back_OW = hood.send_back(hood.stored(heard_IW + 1))
    assert back_OW.equal(x_AW[hood.sender_O] + 1)
    told = hood.tell(x_AW, [(0, 1)], kind="cross_gradients")
    assert told.x_ED.equal(x_AW[:1])
    message = HEADER.itemsize + 8 * width
    assert hood.transport.sent["cross_gradients"].tolist() == [3 * message, *[2 * message] * 3]
    assert hood.mean(x_AW).equal(x_AW.sum(0).div(4).expand(4, -1))


@pytest.mark.parametrize("width", [1, 200])
def test_three_members_of_a_fabric_send_the_same(width: int) -> None:
    """Headers and counts of every message are those of its width, between workers too."""
    topology, x_NW = graphs.ring(5), torch.randn(5, width, dtype=torch.float64)

    def work(fabric: Fabric) -> dict[str, Any]:
        worker_of = (0, 2, 1, 1, 2) if len(fabric.members) > 1 else (0,) * 5
        placement = Placement(topology, worker_of, fabric.me)
        hood = small.hood(topology, transport=over(fabric, placement))
        heard_IW = hood.collect(hood.exchange(x_NW[list(hood.agents)]))
        back_OW = hood.send_back(hood.stored(2 * heard_IW))
        told = hood.tell(x_NW[list(hood.agents)], [(0, 1), (3, 2)])
        sent = torch.stack(list(hood.transport.sent.values()), 1)
        return {
            **{f"{edge}": row for edge, row in zip(hood.edges_I, heard_IW, strict=True)},
            **{f"back {edge}": row for edge, row in zip(hood.edges_O, back_OW, strict=True)},
            **{f"told {edge}": row for edge, row in zip(told.edges, told.x_ED, strict=True)},
            **{f"sent {agent}": row for agent, row in zip(hood.agents, sent, strict=True)},
        }

    [expected] = together(1, work)
    each = together(3, work)
    assert set().union(*each) == set(expected)
    for found in each:
        assert all(row.equal(expected[name]) for name, row in found.items())
    message = HEADER.itemsize + 8 * width
    assert expected["sent 4"].tolist() == [2 * message, 2 * message, 0]
    assert expected["sent 0"].tolist() == [3 * message, 2 * message, 0]


def test_one_agent_alone_hears_nothing_of_any_width() -> None:
    hood = hood_of("plain", graphs.ring(1))
    x_AW = torch.ones(1, 5, dtype=torch.float64)
    assert hood.collect(hood.exchange(x_AW)).shape == (0, 5)
    assert hood.send_back(hood.stored(x_AW[:0])).shape == (0, 5)
