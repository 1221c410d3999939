"""Where everything of a network lies in memory while it is computed, decided once.

Time runs forward over the steps and back again: step k of n is carried out at time k and its
backward pass at time 2n - k, with the loss between them. A value lives from the step that makes it
to the last pass that reads it, its gradient from the first contribution to the pass that consumes
it. What lives at different times may lie in the same place, so that a network's memory stays close
to the caches. A network in use has no backward pass, and so needs much less.
"""

import ctypes
from collections.abc import Collection, Mapping
from math import prod
from typing import NamedTuple

from torch import Tensor, nn

from parley.compute import kernels
from parley.compute.kernels.interface import (
    KINDS,
    NOTHING,
    STRUCTURES,
    Graph,
    LossKind,
    MaskingOptions,
    Node,
    Sizes,
    Value,
    member,
)
from parley.compute.layers import Unsupported
from parley.compute.losses import Deviation, EachLabel, YesOrNo
from parley.compute.operations import OPERATIONS, Step
from parley.compute.reader import Network
from parley.compute.task import Task, cross_entropy

ALIGNED = 4
"""Vectors of a cache line, at most: every place begins on one."""


class Loss(NamedTuple):
    """What is minimised, with what it may have."""

    kind: LossKind = LossKind.CROSS_ENTROPY
    smoothing: float = 0.0
    weights: tuple[float, ...] | None = None
    """Of the classes; for binary cross-entropy, of positive answers."""

    def of(self, outputs: int) -> "Loss":
        """The loss of so many outputs, with a weight for each of them if there are weights."""
        given = self.weights
        if given is None or len(given) == outputs:
            return self
        if len(given) == 1 and self.kind == LossKind.BINARY_CROSS_ENTROPY:
            return self._replace(weights=given * outputs)
        raise Unsupported(f"the loss has {len(given)} weights for {outputs} outputs")


def loss_of(task: Task) -> Loss:
    """A task's loss as the kernels know it."""
    found = _known(task)
    if found.kind == LossKind.CROSS_ENTROPY and not task.goal.has_classes:
        # They may be shares of all classes, or numbers that torch takes for "does not count".
        why = f"the task {task.goal.task} does not have one class for each sample"
        raise Unsupported(f"the loss is cross-entropy, and {why}")
    if found.kind != LossKind.CROSS_ENTROPY and not task.facts.paired:
        raise Unsupported("the loss broadcasts outputs or targets, whose shapes differ")
    return found


def _known(task: Task) -> Loss:
    loss = task.loss
    if loss is cross_entropy:
        return Loss()
    if getattr(loss, "reduction", "") == "none":
        # A class that is ignored has a number below 0, which no sample has.
        if type(loss) is nn.CrossEntropyLoss and loss.ignore_index < 0:
            return Loss(LossKind.CROSS_ENTROPY, loss.label_smoothing, _numbers(loss.weight))
        if type(loss) is nn.BCEWithLogitsLoss and loss.weight is None:
            return Loss(LossKind.BINARY_CROSS_ENTROPY, 0.0, _numbers(loss.pos_weight))
        if type(loss) is nn.MSELoss:
            return Loss(LossKind.SQUARED_ERROR)
    if isinstance(loss, EachLabel):
        return Loss(
            LossKind.BINARY_CROSS_ENTROPY, loss.settings.smoothing, loss.settings.weights or None
        )
    if isinstance(loss, YesOrNo) and task.facts.scores == 1 and not loss.settings.weights:
        return Loss(LossKind.BINARY_CROSS_ENTROPY, loss.settings.smoothing)
    if loss == Deviation("mse"):
        return Loss(LossKind.SQUARED_ERROR)
    raise Unsupported("the loss is not cross-entropy, binary cross-entropy or the squared error")


def _numbers(weights: Tensor | None) -> tuple[float, ...] | None:
    return None if weights is None else tuple(weights.flatten().tolist())


class Parameters(NamedTuple):
    """Where the kernels find them."""

    offsets: Mapping[str, int]
    """Of those that are learned, in a flat vector"""
    size: int
    """of so many numbers."""
    frozen: Mapping[str, Tensor]
    """The others: contiguous, in float32."""
    statistics: Mapping[str, int]
    """Where running statistics are, in a flat vector of their own."""


class Mask(NamedTuple):
    """What one dropout draws for a batch."""

    kept: float
    """How likely a value is kept."""
    shape: tuple[int, ...]
    """For each sample."""


class Plan:
    """A network laid out for the kernels, for chunks of so many vectors of samples."""

    def __init__(
        self,
        network: Network,
        parameters: Parameters,
        vecs: int,
        loss: Loss,
        training: bool = True,
    ) -> None:
        steps = network.steps
        self.samples = vecs * kernels.lanes()
        """Of a chunk."""
        self.classes = network.answer[0]
        self.answer = network.of_each
        """The shape of what the model gives for a sample."""
        self.flops = sum(OPERATIONS[step.operation].flops(step) for step in steps)
        """Operations of a forward pass for one sample; a gradient takes three times as many."""
        self.loss = loss.kind
        self.masks = [_mask(step) for step in steps if step.operation == "masking"]
        """In the order in which they are drawn."""
        coupling = [step for step in steps if OPERATIONS[step.operation].couples]
        self.couples = network.couples
        """Whether in training samples depend on each other, so that a batch has to be one chunk."""
        self.fewest = 2 if any(prod(step.result[1:]) == 1 for step in coupling) else 1
        """Samples of a batch in training: one value has no variance."""
        self._frozen = parameters.frozen  # the nodes have their addresses
        self._nodes = (Node * len(steps))(
            *(_node(k, step, parameters) for k, step in enumerate(steps))
        )
        shapes = [steps[0].shapes[0], *(step.result for step in steps)]
        self._values = (Value * len(shapes))(*(Value(*s, NOTHING, NOTHING) for s in shapes))
        self._weights = (
            (ctypes.c_float * len(loss.weights))(*loss.weights) if loss.weights else None
        )
        self.graph = Graph(
            nodes=len(steps),
            parameters=parameters.size,
            input=0,
            output=network.output,
            vecs=vecs,
            loss=loss.kind,
            smoothing=loss.smoothing,
            class_weights=ctypes.cast(self._weights, ctypes.c_void_p) if self._weights else None,
            node=self._nodes,
            value=self._values,
        )
        self._library = kernels.library()
        self.vectors = self._lay_out(network, parameters.offsets, training)
        """Of the workspace."""

    def _lay_out(self, network: Network, learned: Collection[str], training: bool) -> int:
        spans = _Spans(network, self._nodes, learned if training else (), training)
        asked = Sizes()
        steps, scratch = network.steps, 0
        end = 2 * len(steps)
        for value, span in enumerate(spans.values):
            span.size = self._library.parley_map_size(self.graph, value) if value else 0
        for value, span in spans.slopes.items():
            span.size = max(span.size, self._library.parley_map_size(self.graph, value))
        saved, prepared = {}, {}
        for k in range(len(steps)):
            self._library.parley_sizes(self.graph, k, asked)
            saved[k] = _Span(k, end - k if training else k, asked.saved)
            prepared[k] = _Span(-1, end + 1, asked.prepared)
            scratch = max(scratch, asked.scratch)
        last = _Span(-1, end + 1, scratch)
        everything = [
            *spans.values,
            *spans.slopes.values(),
            *saved.values(),
            *prepared.values(),
            last,
        ]
        vectors = _place(everything)
        for value, span in enumerate(spans.values):
            self._values[value].at = span.at
        for value, span in spans.slopes.items():
            self._values[value].slope = span.at
        for k in range(len(steps)):
            self._nodes[k].saved, self._nodes[k].prepared = saved[k].at, prepared[k].at
        self.graph.scratch = last.at
        return vectors


def _mask(step: Step) -> Mask:
    assert isinstance(step.options, MaskingOptions)
    channels, *pixels = step.result
    shape = (channels, 1, 1) if step.options.channels else (channels, *pixels)
    return Mask(1 - step.options.dropped, shape)


def _node(k: int, step: Step, parameters: Parameters) -> Node:
    node = Node(kind=KINDS[step.operation], first=step.inputs[0], second=NOTHING)
    node.result = k + 1
    if len(step.inputs) > 1:
        node.second = step.inputs[1]
    for i in range(len(node.parameter)):
        node.parameter[i] = NOTHING
    for place, name in step.parameters.items():
        node.parameter[place] = parameters.offsets.get(name, NOTHING)
        if name in parameters.frozen:
            node.frozen[place] = parameters.frozen[name].data_ptr()
    for i, name in enumerate(step.statistics):
        node.statistic[i] = parameters.statistics[name]
    if (options := step.options) is not None:
        setattr(node, member(type(options)), STRUCTURES[type(options)](*options))
    return node


class _Span:
    """Something that lives for a while."""

    def __init__(self, begin: int, end: int, size: int = 0) -> None:
        self.begin, self.end, self.size = begin, end, size
        self.at = 0

    def lives_with(self, other: "_Span") -> bool:
        return self.begin <= other.end and other.begin <= self.end


class _Spans:
    """How long every value and every gradient lives; says in the nodes who adds to what."""

    def __init__(
        self,
        network: Network,
        nodes: "ctypes.Array[Node]",
        learned: Collection[str],
        training: bool,
    ) -> None:
        self.steps = network.steps
        self.training = training
        self.end = 2 * len(self.steps)
        self.consumers: list[list[int]] = [[] for _ in range(len(self.steps) + 1)]
        for k, step in enumerate(self.steps):
            for value in step.inputs:
                self.consumers[value].append(k)
        self.learns = [False]  # whether a gradient reaches the value
        for step in self.steps:
            own = any(name in learned for name in step.parameters.values())
            self.learns.append(own or any(self.learns[value] for value in step.inputs))
        self.values = self._values(network.output)
        self.slopes: dict[int, _Span] = {}
        self._pending: dict[int, set[int]] = {}  # values whose gradients share a place, by span
        self._slopes(network.output, nodes)

    def _values(self, output: int) -> list[_Span]:
        spans = [_Span(-1, self.end + 1)]
        for k, step in enumerate(self.steps):
            spans.append(_Span(k, k))
            keeps = OPERATIONS[step.operation].keeps(step)
            named = dict(zip(("first", "second"), step.inputs, strict=False)) | {"result": k + 1}
            for value in step.inputs:
                spans[value].end = max(spans[value].end, k)
            for name in keeps if self.training else ():
                spans[named[name]].end = max(spans[named[name]].end, self.end - k)
        spans[output].end = max(spans[output].end, len(self.steps))
        return self._in_place(spans)

    def _in_place(self, spans: list[_Span]) -> list[_Span]:
        """A result takes the place of a value that nobody reads again."""
        for k, step in enumerate(self.steps):
            if step.operation not in ("addition", "activation", "norm", "batch_norm"):
                continue
            for value in step.inputs:
                span, result = spans[value], spans[k + 1]
                if value and span.end == k and len({*step.inputs}) == len(step.inputs):
                    result.begin = span.begin
                    spans[value] = spans[k + 1] = result
                    break
        return spans

    def _slopes(self, output: int, nodes: "ctypes.Array[Node]") -> None:
        if self.learns[output]:
            self._new(output, len(self.steps))
        for k in reversed(range(len(self.steps))):
            step, now = self.steps[k], self.end - k
            if k + 1 not in self.slopes:  # nothing is learned from it
                continue
            mine = self.slopes[k + 1]
            mine.end = max(mine.end, now)
            waiting = self._pending[id(mine)]
            waiting.discard(k + 1)
            for i, value in enumerate(step.inputs):
                if not self.learns[value]:
                    continue
                nodes[k].wanted[i] = 1
                if value in self.slopes:
                    nodes[k].add[i] = 1
                    self.slopes[value].end = max(self.slopes[value].end, now)
                elif self._may_share(k, value, waiting):
                    self.slopes[value] = mine
                    waiting.add(value)
                else:
                    self._new(value, now)

    def _new(self, value: int, now: int) -> None:
        span = _Span(now, now)
        self.slopes[value] = span
        self._pending[id(span)] = {value}

    def _may_share(self, k: int, value: int, waiting: set[int]) -> bool:
        """Whether a gradient may take the place of the result's.

        Not while another gradient there waits to be read, unless this step only passes it on and
        nobody adds to either before both have been read.
        """
        step = self.steps[k]
        if not OPERATIONS[step.operation].in_place or len({*step.inputs}) < len(step.inputs):
            return False
        if not waiting:
            return True
        if step.operation != "addition" or len(waiting) > 1:
            return False
        (other,) = waiting
        made = {value: other - 1, other: value - 1}
        return all(c < made[v] for v in made for c in self.consumers[v] if c != k)


def _place(spans: list[_Span]) -> int:
    """Gives every span a place that nobody needs at the same time, the largest first."""
    placed: list[_Span] = []
    total = 0
    for span in sorted({id(s): s for s in spans}.values(), key=lambda s: -s.size):
        if not span.size:
            continue
        span.size = -(-span.size // ALIGNED) * ALIGNED
        at = 0
        for other in sorted((p for p in placed if p.lives_with(span)), key=lambda p: p.at):
            if at + span.size <= other.at:
                break
            at = max(at, other.at + other.size)
        span.at = at
        placed.append(span)
        total = max(total, at + span.size)
    return total
