"""What is learned: a model as a flat vector, its loss, and its score on held-out samples.

Axes: D flat parameters, n samples.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from parley.models import refuse_batch_statistics

Loss = Callable[[Tensor, Tensor], Tensor]
"""``(outputs[n, ...], targets[n, ...]) -> losses[n, ...]``, not yet averaged over samples."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The default loss: one value a sample."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


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
    ) -> None:
        refuse_batch_statistics(model)
        self.model = model.to(device=device, dtype=dtype).train()
        self.loss = loss
        self.dtype = dtype
        # Frozen parameters stay in the module: they are the same everywhere and never travel.
        learned = {k: p for k, p in model.named_parameters() if p.requires_grad}
        self.names = tuple(learned)
        self.shapes = tuple(p.shape for p in learned.values())
        self.sizes = tuple(p.numel() for p in learned.values())
        self.size = sum(self.sizes)
        self.random = getattr(model, "random", False) or any(
            isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in model.modules()
        )
        """Whether a forward pass draws random numbers (dropout)."""
        self._start = torch.cat([p.detach().flatten() for p in learned.values()])

    def start(self) -> Tensor:
        """The parameters the model was given with, ``[D]``."""
        return self._start.clone()

    def parameters(self, x_D: Tensor) -> dict[str, Tensor]:
        """The flat vector as named tensors: views, not copies."""
        parts = x_D.split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def outputs(self, x_D: Tensor, inputs: Tensor) -> Tensor:
        """What the model with parameters `x_D` answers."""
        return functional_call(self.model, self.parameters(x_D), (inputs,))  # type: ignore[no-any-return]

    def losses(self, x_D: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, ``[n]``."""
        return self.per_sample(self.outputs(x_D, inputs), targets)

    def per_sample(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, for outputs that are at hand."""
        losses = self.loss(outputs, targets)
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    @torch.no_grad()
    def predict(self, x_D: Tensor, inputs: Tensor) -> Tensor:
        """What the model answers when it is used, not trained: with dropout off."""
        self.model.eval()
        try:
            return self.outputs(x_D, inputs)
        finally:
            self.model.train()

    def module(self, x_D: Tensor) -> nn.Module:
        """A stand-alone copy of the model that carries these parameters."""
        import copy

        module = copy.deepcopy(self.model).eval()
        module.load_state_dict(
            {n: p.clone() for n, p in self.parameters(x_D).items()}, strict=False
        )
        return module
