"""What is learned: a model as a flat vector, its loss, and its score on held-out samples.

Axes: D flat parameters, S flat statistics, E both, n samples, C scores that the model gives.
"""

import copy
import itertools
import math
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from parley.compute.buffers import (
    Layout,
    Norm,
    check_norms,
    forgetful,
    without_graphs,
    without_statistics,
)
from parley.compute.failing import failing_layer
from parley.compute.goals import Goal
from parley.compute.precision import BF16, FULL
from parley.errors import BadValue
from parley.models.adapters import merged

Loss = Callable[[Tensor, Tensor], Tensor]
"""``(outputs[n, C], targets[n]) -> losses``: one for each sample, ``[n, ...]``, or their mean."""

TRIED = 4
"""Samples on which model and loss are tried before training."""
NONE = "none"
"""Instead of a checksum, where all is learned."""
ALIKE = 1e-4
"""Two ways to compute the same loss agree to this relative precision."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The default loss: one value a sample."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class OneByOne:
    """The losses of single samples, from a loss that gives the mean of a batch."""

    loss: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Each sample is a batch of its own."""

        def one(output_C: Tensor, target: Tensor) -> Tensor:
            return self.loss(output_C[None], target[None])

        return vmap(one)(outputs, targets)


def each_sample(loss: Loss) -> Loss:
    """The losses of single samples, from a loss that gives one value for a batch."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        made = copy.deepcopy(loss)
        made.reduction = "none"  # type: ignore[assignment]
        return made
    return OneByOne(loss)


def is_cross_entropy(loss: Loss) -> bool:
    """Whether it is the default loss by another name, for which there are faster engines.

    >>> is_cross_entropy(nn.CrossEntropyLoss()), is_cross_entropy(nn.NLLLoss())
    (True, False)
    """
    if loss in (cross_entropy, nn.functional.cross_entropy):
        return True
    return (
        type(loss) is nn.CrossEntropyLoss
        and loss.weight is None
        and loss.label_smoothing == 0
        and loss.ignore_index < 0  # no class has such a number
        and loss.reduction in ("mean", "none")
    )


class Task:
    """A model's architecture and loss, with the parameters taken out as one flat vector.

    >>> task = Task(nn.Linear(3, 2))
    >>> task.size, task.sizes
    (8, (6, 2))
    >>> x_D = task.start()
    >>> bool((task.outputs(x_D, torch.zeros(1, 3)) == x_D[6:]).all())
    True
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss = cross_entropy,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        goal: Goal | None = None,
        precision: str = FULL,
    ) -> None:
        check_norms(model)
        self.whole = model.to(device=device, dtype=dtype).train()
        """The model with its running statistics, as it is used after training."""
        self.layout = Layout(model)
        """Its running statistics; there may be none."""
        self.model = without_statistics(model) if self.layout.size else self.whole
        """What gradients are computed with: normalises by the statistics of the batch."""
        self._forgetful = forgetful(model) if self.layout.size else self.whole
        self.goal = goal or Goal()
        if isinstance(loss, nn.Module):  # class weights are tensors of its own
            loss = copy.deepcopy(loss).to(device=device, dtype=dtype)
        self.loss = cross_entropy if is_cross_entropy(loss) else loss
        """One value for each sample, once `fit` has seen to it."""
        self.scores = 0
        """Outputs of the model for each sample, or classes it has for each pixel; known after
        `fit`, as is their shape."""
        self.answer_shape: tuple[int, ...] = ()
        self.paired = True
        """Whether outputs and targets have the same shape as the loss sees them, so that a loss of
        single values takes them one by one; known after `fit`."""
        self.dtype = dtype
        self.precision = precision
        """What the forward and backward passes of training multiply with."""
        # Frozen parameters stay in the module: they are the same everywhere and never travel.
        learned = {k: p for k, p in model.named_parameters() if p.requires_grad}
        if not learned:
            valid = "a model with parameters to learn"
            raise BadValue("model", type(model).__name__, valid, "it has none")
        for path, parameter in learned.items():
            if parameter._backward_hooks:
                because = f"parameter {path} has a hook, which would never be called"
                raise BadValue("model", type(model).__name__, "a model without such hooks", because)
        self.names = tuple(learned)
        self.shapes = tuple(p.shape for p in learned.values())
        self.sizes = tuple(p.numel() for p in learned.values())
        self.size = sum(self.sizes)
        self.random = getattr(model, "random", False) is True or any(
            isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in model.modules()
        )
        """Whether a forward pass in training draws random numbers (dropout)."""
        self.random_in_use = False
        """Whether it also does when the model is used; known after `fit`."""
        self.uses_batch = any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules()
        )
        """Whether a sample's outputs depend on the others in its batch."""
        of_weights = [torch.full((p.numel(),), p.ndim > 1) for p in learned.values()]
        self.weights_D = torch.cat(of_weights).to(device=device, dtype=dtype)
        """1 for entries of weights, 0 for those of biases and norms, which have one dimension."""
        self._start = torch.cat([p.detach().flatten() for p in learned.values()])

    @property
    def answer_size(self) -> int:
        """How many numbers the model gives for a sample."""
        return math.prod(self.answer_shape)

    @cached_property
    def frozen(self) -> str:
        """A checksum of what is never sent, parameters and buffers, and must be the same
        everywhere."""
        total, learned = 0, {*self.names}
        state = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for name, value in sorted(state.items()):
            if name not in learned:
                array = value.detach().cpu().to(torch.float64).numpy()
                total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
        return f"checksum {total}" if total else NONE

    def start(self) -> Tensor:
        """The parameters the model was given with, ``[D]``."""
        return self._start.clone()

    def moved(self, x_D: Tensor, b_S: Tensor, inputs: Tensor) -> Tensor:
        """The running statistics after the model has seen a batch in training."""
        return self._seen(self.whole, x_D, b_S, inputs)

    def moments(self, x_D: Tensor, b_S: Tensor, inputs: Tensor) -> Tensor:
        """Means of a batch, and mean squares where variances would be, ``float64[S]``."""
        return self.layout.squares(self._seen(self._forgetful, x_D, b_S, inputs).double())

    @torch.no_grad()
    def _seen(self, model: nn.Module, x_D: Tensor, b_S: Tensor, inputs: Tensor) -> Tensor:
        buffers = self.layout.tensors(b_S)
        with torch.random.fork_rng(devices=[], enabled=self.random):
            functional_call(model, {**self.parameters(x_D), **buffers}, (inputs,))
        return self.layout.flat(buffers, b_S)

    def parameters(self, x_D: Tensor) -> dict[str, Tensor]:
        """The flat vector as named tensors: views, not copies."""
        parts = x_D.split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def outputs(self, x_D: Tensor, inputs: Tensor) -> Tensor:
        """What the model with parameters `x_D` answers in training, in the parameters' type."""
        bf16 = self.precision == BF16
        with torch.autocast(x_D.device.type, torch.bfloat16, enabled=bf16):
            outputs = functional_call(self.model, self.parameters(x_D), (inputs,))
        return outputs.to(self.dtype) if bf16 else outputs  # type: ignore[no-any-return]

    def losses(self, x_D: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, ``[n]``."""
        return self.per_sample(self.outputs(x_D, inputs), targets)

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, for outputs that are at hand."""
        losses = self.loss(*self.goal.pair(outputs, targets))
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    def fit(self, name: str, inputs: Tensor, targets: Tensor, classes: int) -> None:
        """Tries model and loss on a few samples: what can be understood will do, the rest is
        refused before anything is trained.

        A loss that gives the mean over samples is taken apart into the losses of single samples,
        which are weighted as every other loss is.
        """
        inputs = inputs.clone()
        untouched = inputs._version
        outputs = self._tried_outputs(name, inputs, targets, classes)
        if inputs._version != untouched:  # they serve other models, and other epochs, too
            because = "its first operation changes the inputs in place"
            raise BadValue("model", name, "a model that leaves its inputs as they are", because)
        self.scores = outputs.shape[1] if outputs.ndim > 1 else 1
        self.answer_shape = tuple(outputs.shape[1:])
        seen, meant = self.goal.pair(outputs, targets)
        self.paired = seen.shape == meant.shape
        self._check_buffers(name, inputs)
        settled = getattr(self.loss, "settled", None)
        self.loss = self.loss if settled is None else settled(outputs)
        self._fit_loss(inputs, targets)
        losses = self._tried_loss(outputs, targets)
        self._try_gradient(name, inputs, targets)
        if not bool(torch.isfinite(losses).all()):
            because = f"it is {float(losses[~torch.isfinite(losses)][0])} for the model's start"
            raise BadValue("loss", _name(self.loss), "a loss that is finite there", because)

    def _tried_outputs(self, name: str, inputs: Tensor, targets: Tensor, classes: int) -> Tensor:
        shape = list(inputs.shape[1:])
        takes = f"a model that takes inputs of shape {shape}"
        try:
            with torch.random.fork_rng(devices=[]):
                drawn_before = torch.get_rng_state()
                outputs = self.predict(self.start(), inputs)
                self.random_in_use = not torch.equal(drawn_before, torch.get_rng_state())
        except Exception as error:  # whatever the model may raise
            wanted, _ = self.goal.refusal(torch.empty(0), targets, classes)
            layer = failing_layer(self.model, lambda: self.predict(self.start(), inputs))
            because = ": ".join(filter(None, (layer, _first_line(error))))
            raise BadValue("model", name, f"{takes} and gives {wanted}", because) from error
        if not isinstance(outputs, Tensor):
            found = f"it gives a {type(outputs).__name__}, no tensor"
            wanted, _ = self.goal.refusal(torch.empty(0), targets, classes)
            raise BadValue("model", name, f"{takes} and gives {wanted}", found)
        wanted, because = self.goal.refusal(outputs, targets, classes)
        if because:
            raise BadValue("model", name, f"{takes} and gives {wanted}", because)
        if not bool(torch.isfinite(outputs).all()):
            valid = "a model whose first outputs are finite"
            raise BadValue("model", name, valid, "it gives NaN or infinity before any training")
        return outputs

    @torch.no_grad()
    def _check_buffers(self, name: str, inputs: Tensor) -> None:
        """Refuses a model that keeps something else between batches, which nobody would follow, or
        norms that it does not train; sees whether its own code draws random numbers."""
        before = {n: b.detach().clone() for n, b in self.model.named_buffers()}
        after = {n: b.clone() for n, b in before.items()}
        with torch.random.fork_rng(devices=[]):
            drawn_before = torch.get_rng_state()
            functional_call(self.model, {**self.parameters(self.start()), **after}, (inputs,))
            self.random |= not torch.equal(drawn_before, torch.get_rng_state())
        for path, layer in self.model.named_modules():
            if isinstance(layer, Norm) and not layer.training:
                valid = "a model that trains its norms, or has GroupNorm in their place"
                because = f"its code keeps layer {path} ({type(layer).__name__}) in evaluation mode"
                raise BadValue("model", name, valid, because)
        for buffer, value in after.items():
            if not torch.equal(before[buffer], value):
                valid = "a model that keeps only the running statistics of BatchNorm layers"
                raise BadValue("model", name, valid, f"training changes its buffer {buffer!r}")

    def _try_gradient(self, name: str, inputs: Tensor, targets: Tensor) -> None:
        x_D = self.start().requires_grad_()
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.autograd.grad(self.losses(x_D, inputs, targets).mean(), x_D)
        except RuntimeError as error:
            said = _first_line(error).partition(": [")[0]
            because = f"autograd cannot compute its gradient: {said}"
            raise BadValue("model", name, "a model that can be differentiated", because) from error

    def _fit_loss(self, inputs: Tensor, targets: Tensor) -> None:
        """Finds out whether the loss gives a value for each sample or their mean."""
        noise = torch.randn(self.size, generator=torch.Generator().manual_seed(0))
        # Outputs of the kind that the model gives, but not all the same, as zero weights would
        # make them; a number of them that no other axis has, and one for each class and one more.
        x_D = self.start()
        some = self.predict(x_D + (0.1 * x_D + 0.01) * noise.to(x_D), inputs)
        others = {*some.shape[1:], *targets.shape[1:]}
        classes = max(2, self.scores) if self.goal.has_classes else 0
        n = next(n for n in itertools.count(max(3, classes + 1)) if n not in others)
        chosen = torch.arange(n, device=some.device)
        targets = chosen % classes if classes else targets[chosen % len(targets)]
        outputs = some[chosen % len(some)]
        losses = self._tried_loss(outputs, targets)
        name = _name(self.loss)
        valid = (
            'a loss that gives one value for each sample, as with reduction="none", or their mean'
        )
        if losses.ndim and len(losses) != n:
            because = f"for {n} samples it gives a tensor of shape {list(losses.shape)}"
            raise BadValue("loss", name, valid, because)
        if losses.ndim:
            return
        given, self.loss = self.loss, each_sample(self.loss)
        each = self._tried_loss(outputs, targets)
        each = each.flatten(1).mean(1) if each.ndim > 1 else each
        one = [self.goal.pair(outputs[i, None], targets[i, None]) for i in range(n)]
        alone = torch.stack([given(*pair) for pair in one])
        close = torch.isclose(
            torch.stack([*each, each.mean()]), torch.stack([*alone, losses]), ALIKE
        )
        if each.shape == (n,) and bool(close.all()):
            return
        self.loss = given
        if bool(torch.isclose(alone.sum(), losses, ALIKE)):
            because = "it gives the sum over samples, so that a step would grow with the batch"
        else:
            because = (
                "it gives one value, which is not the mean of what it gives for single samples"
            )
            because += ": class weights and ignored classes make it divide by something else"
        raise BadValue("loss", name, valid, because)

    def _tried_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        valid = "a function of (outputs, targets) that gives a differentiable tensor"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is wrong is said below, in one line
                losses = self.loss(*self.goal.pair(outputs.detach().requires_grad_(), targets))
        except Exception as error:  # whatever the loss may raise
            because = f"for outputs of shape {list(outputs.shape)} and "
            whole = f"targets of shape {list(targets.shape)}"
            because += "as many whole numbers as targets" if self.goal.has_classes else whole
            because += f": {_first_line(error)}"
            raise BadValue("loss", _name(self.loss), valid, because) from error
        if not isinstance(losses, Tensor):
            because = f"it gives a {type(losses).__name__}"
            raise BadValue("loss", _name(self.loss), valid, because)
        if not losses.requires_grad:
            raise BadValue("loss", _name(self.loss), valid, "it has no gradient")
        return losses.detach()

    @torch.no_grad()
    def predict(self, x_E: Tensor, inputs: Tensor) -> Tensor:
        """What the model answers when it is used, not trained: with dropout off.

        `x_E` are its parameters and behind them its running statistics. Without those, the
        statistics of the inputs are used, as in training.
        """
        model, named = self._split(x_E)
        model.eval()
        try:
            return functional_call(model, named, (inputs,))  # type: ignore[no-any-return]
        finally:
            model.train()

    def _split(self, x_E: Tensor) -> tuple[nn.Module, dict[str, Tensor]]:
        if len(x_E) == self.size:
            return self.model, self.parameters(x_E)
        x_D, b_S = x_E.split([self.size, self.layout.size])
        return self.whole, {**self.parameters(x_D), **self.layout.tensors(b_S)}

    def module(self, x_E: Tensor) -> nn.Module:
        """A stand-alone copy of the model that carries these parameters, and running statistics if
        they follow. Adapters become part of its weights."""
        module = copy.deepcopy(without_graphs(self.whole)).eval()
        _, named = self._split(x_E)
        module.load_state_dict({n: p.clone() for n, p in named.items()}, strict=False)
        return merged(module)


def _name(loss: object) -> str:
    if isinstance(loss, OneByOne):
        return _name(loss.loss)
    return getattr(loss, "__name__", type(loss).__name__)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
