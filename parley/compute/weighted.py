"""Gradients of an objective in which agents count differently.

Axes: P pairs of a model and a batch, D flat parameters."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from parley.compute.engine import Engine
from parley.data import Batch


class WeightedEngine(Engine):
    """Multiplies losses and gradients by a number that belongs to the owner of the data, whoever's
    model it is: a cross-gradient counts as much as the batch that it was computed on.

    Gradients are multiplied before they are added up or sent, in every placement, so a run has the
    same bits in all of them if the engine inside has.
    """

    def __init__(self, inside: Engine, factors: Mapping[int, float]) -> None:
        """`factors` are those of the hosted agents, by their numbers."""
        super().__init__(inside.task, inside.seed, 1)
        self.inside = inside
        self.crew = inside.crew
        self.factors = factors

    def gradients(
        self, x_PD: Tensor, batch: Batch, rows: Sequence[int], owners: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Loss and gradient of each pair, as `Engine.gradients` says, times its factor."""
        loss_P, g_PD = self.inside.gradients(x_PD, batch, rows, owners)
        factor_P = x_PD.new_tensor([self.factors[batch.agents[row]] for row in rows])
        return loss_P * factor_P, g_PD.mul_(factor_P[:, None])

    def predict(self, x_E: Tensor, inputs: Tensor) -> Tensor:
        """What the model answers, to which no weight applies."""
        return self.inside.predict(x_E, inputs)

    def predict_each(self, models: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """What the models answer, to which no weight applies."""
        return self.inside.predict_each(models, inputs)

    def moved(self, x_PD: Tensor, b_PS: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Running statistics, to which no weight applies."""
        return self.inside.moved(x_PD, b_PS, batch, rows)

    def moments(self, x_PD: Tensor, b_PS: Tensor, batch: Batch, rows: Sequence[int]) -> Tensor:
        """What layers see, to which no weight applies."""
        return self.inside.moments(x_PD, b_PS, batch, rows)
