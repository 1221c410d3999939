"""A trial of a model and its loss on a few samples: what can be understood will do, the rest is
refused before anything is trained.

Axes: D flat parameters, n samples, C scores that the model gives.
"""

import copy
import itertools
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from parley.compute.beside import Beside
from parley.compute.buffers import Norm
from parley.compute.failing import failing_layer
from parley.compute.parameters import WritesTo
from parley.compute.task import Facts, Loss, Task, call_with
from parley.errors import BadValue

TRIED = 4
"""Samples on which model and loss are tried."""
REPEATED = 1e-3
"""Share by which two gradients for the same samples may differ: some sums have no fixed order."""
ALIKE = 1e-4
"""Two ways to compute the same loss agree to this relative precision."""


@dataclass(frozen=True)
class OneByOne:
    """The losses of single samples, from a loss that gives the mean of a batch."""

    loss: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Each sample is a batch of its own."""

        def one(output_C: Tensor, target: Tensor) -> Tensor:
            return self.loss(output_C[None], target[None])

        return vmap(one)(outputs, targets)


def tried(task: Task, name: str, inputs: Tensor, targets: Tensor, classes: int) -> Task:
    """The task with what a trial shows, and a loss that has a value for each sample.

    `name` is the model's. A loss that gives the mean over samples is taken apart into the losses of
    single samples, which are weighted as every other loss is.
    """
    inputs = inputs.clone()
    untouched = inputs._version
    outputs, random_in_use = _outputs(task, name, inputs, targets, classes)
    if inputs._version != untouched:  # they serve other models, and other epochs, too
        because = "its first operation changes the inputs in place"
        raise BadValue("model", name, "a model that leaves its inputs as they are", because)
    seen, meant = task.goal.pair(outputs, targets)
    facts = Facts(
        scores=outputs.shape[1] if outputs.ndim > 1 else 1,
        answer_shape=tuple(outputs.shape[1:]),
        paired=seen.shape == meant.shape,
        random=_draws_numbers(task, name, inputs),
        random_in_use=random_in_use,
    )
    settled = getattr(task.loss, "settled", None)
    task = task.with_facts(task.loss if settled is None else settled(outputs), facts)
    task = task.with_facts(_for_each_sample(task, inputs, targets), facts)
    losses = _losses(task, task.loss, outputs, targets)
    _differentiate(task, name, inputs, targets)
    if not bool(torch.isfinite(losses).all()):
        because = f"it is {float(losses[~torch.isfinite(losses)][0])} for the model's start"
        raise BadValue("loss", _name(task.loss), "a loss that is finite there", because)
    return task


def _outputs(
    task: Task, name: str, inputs: Tensor, targets: Tensor, classes: int
) -> tuple[Tensor, bool]:
    """What the model answers, and whether it draws random numbers for that."""
    takes = f"a model that takes inputs of shape {list(inputs.shape[1:])}"
    try:
        with torch.random.fork_rng(devices=[]):
            drawn_before = torch.get_rng_state()
            outputs = task.predict(task.start(), inputs)
            random_in_use = not torch.equal(drawn_before, torch.get_rng_state())
    except Exception as error:  # whatever the model may raise
        wanted, _ = task.goal.refusal(torch.empty(0), targets, classes)
        layer = failing_layer(task.model, lambda: task.predict(task.start(), inputs))
        because = ": ".join(filter(None, (layer, _first_line(error))))
        raise BadValue("model", name, f"{takes} and gives {wanted}", because) from error
    if not isinstance(outputs, Tensor):
        found = f"it gives a {type(outputs).__name__}, no tensor"
        wanted, _ = task.goal.refusal(torch.empty(0), targets, classes)
        raise BadValue("model", name, f"{takes} and gives {wanted}", found)
    wanted, because = task.goal.refusal(outputs, targets, classes)
    if because:
        raise BadValue("model", name, f"{takes} and gives {wanted}", because)
    if not bool(torch.isfinite(outputs).all()):
        valid = "a model whose first outputs are finite"
        raise BadValue("model", name, valid, "it gives NaN or infinity before any training")
    return outputs, random_in_use


@torch.no_grad()
def _draws_numbers(task: Task, name: str, inputs: Tensor) -> bool:
    """Refuses a model that keeps something else between batches, which no agent would follow, or
    norms that it does not train. Whether its own code draws random numbers."""
    before = {n: b.detach().clone() for n, b in task.model.named_buffers()}
    after = {n: b.clone() for n, b in before.items()}
    with torch.random.fork_rng(devices=[]):
        drawn_before = torch.get_rng_state()
        call_with({**task.parameters(task.start()), **after}, task.model, inputs)
        random = not torch.equal(drawn_before, torch.get_rng_state())
    for path, layer in task.model.named_modules():
        if isinstance(layer, Norm) and not layer.training:
            valid = "a model that trains its norms, or has GroupNorm in their place"
            because = f"its code keeps layer {path} ({type(layer).__name__}) in evaluation mode"
            raise BadValue("model", name, valid, because)
    for buffer, value in after.items():
        if not torch.equal(before[buffer], value):
            valid = "a model that keeps only the running statistics of BatchNorm layers"
            raise BadValue("model", name, valid, f"training changes its buffer {buffer!r}")
    return random


def _for_each_sample(task: Task, inputs: Tensor, targets: Tensor) -> Loss:
    """The task's loss, which may give a value for each sample or their mean, in the first form."""
    noise = torch.randn(task.size, generator=torch.Generator().manual_seed(0))
    # Outputs of the kind that the model gives, but not all the same, as zero weights would
    # make them; a number of them that no other axis has, and one for each class and one more.
    x_D = task.start()
    some = task.predict(x_D + (0.1 * x_D + 0.01) * noise.to(x_D), inputs)
    others = {*some.shape[1:], *targets.shape[1:]}
    classes = max(2, task.facts.scores) if task.goal.has_classes else 0
    n = next(n for n in itertools.count(max(3, classes + 1)) if n not in others)
    chosen = torch.arange(n, device=some.device)
    targets = chosen % classes if classes else targets[chosen % len(targets)]
    outputs = some[chosen % len(some)]
    losses = _losses(task, task.loss, outputs, targets)
    valid = 'a loss that gives one value for each sample, as with reduction="none", or their mean'
    if losses.ndim and len(losses) != n:
        because = f"for {n} samples it gives a tensor of shape {list(losses.shape)}"
        raise BadValue("loss", _name(task.loss), valid, because)
    if losses.ndim:
        return task.loss
    apart = _taken_apart(task.loss)
    each = _losses(task, apart, outputs, targets)
    each = each.flatten(1).mean(1) if each.ndim > 1 else each
    one = [task.goal.pair(outputs[i, None], targets[i, None]) for i in range(n)]
    alone = torch.stack([task.loss(*pair) for pair in one])
    close = torch.isclose(torch.stack([*each, each.mean()]), torch.stack([*alone, losses]), ALIKE)
    if each.shape == (n,) and bool(close.all()):
        return apart
    if bool(torch.isclose(alone.sum(), losses, ALIKE)):
        because = "it gives the sum over samples, so that a step would grow with the batch"
    else:
        because = "it gives one value, which is not the mean of what it gives for single samples"
        because += ": class weights and ignored classes make it divide by something else"
    raise BadValue("loss", _name(task.loss), valid, because)


def _taken_apart(loss: Loss) -> Loss:
    """The losses of single samples, from a loss that gives one value for a batch."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        made = copy.deepcopy(loss)
        made.reduction = "none"  # type: ignore[assignment]
        return made
    return OneByOne(loss)


def _losses(task: Task, loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    valid = "a function of (outputs, targets) that gives a differentiable tensor"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong is said below, in one line
            losses = loss(*task.goal.pair(outputs.detach().requires_grad_(), targets))
    except Exception as error:  # whatever the loss may raise
        because = f"for outputs of shape {list(outputs.shape)} and "
        whole = f"targets of shape {list(targets.shape)}"
        because += "as many whole numbers as targets" if task.goal.has_classes else whole
        because += f": {_first_line(error)}"
        raise BadValue("loss", _name(loss), valid, because) from error
    if not isinstance(losses, Tensor):
        raise BadValue("loss", _name(loss), valid, f"it gives a {type(losses).__name__}")
    if not losses.requires_grad:
        raise BadValue("loss", _name(loss), valid, "it has no gradient")
    return losses.detach()


def _differentiate(task: Task, name: str, inputs: Tensor, targets: Tensor) -> None:
    """Refuses a model whose gradient cannot be computed, or not once more with the same result: no
    engine could then repeat a run, nor continue it."""
    first_D = _gradient(task, name, inputs, targets)
    before = Beside(task.model, task.loss)
    again_D = _gradient(task, name, inputs, targets)
    valid = "a model that depends on nothing but parameters, inputs and torch's random numbers"
    if changed := before.changed():
        if changed.draws:
            valid = "a model that draws from torch's global generator (torch.rand, F.dropout), "
            valid += "which is seeded for every agent and step"
        raise BadValue("model", name, valid, changed.what)
    if bool((again_D - first_D).norm() > REPEATED * first_D.norm()):
        raise BadValue(
            "model", name, valid, "its gradient is another one when it is computed again"
        )


def _gradient(task: Task, name: str, inputs: Tensor, targets: Tensor) -> Tensor:
    x_D = task.start().requires_grad_()
    watch = WritesTo(x_D)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), watch:
            torch.manual_seed(0)
            (found_D,) = torch.autograd.grad(task.losses(x_D, inputs, targets).mean(), x_D)
    except RuntimeError as error:
        said = _first_line(error).partition(": [")[0].partition(". ")[0]
        because = f"autograd cannot compute its gradient: {said}"
        raise BadValue("model", name, "a model that can be differentiated", because) from error
    if watch.written:
        because = f"its code changes its parameters in place ({watch.written})"
        valid = "a model that only reads its parameters: a parametrization, say"
        raise BadValue("model", name, valid, because)
    return found_D


def _name(loss: object) -> str:
    if isinstance(loss, OneByOne):
        return _name(loss.loss)
    return getattr(loss, "__name__", type(loss).__name__)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
