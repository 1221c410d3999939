"""A PyTorch model as a list of operations.

`torch.fx` follows the model's own code with a symbol in place of the input, down to the layers that
`layers.py` knows; functions and operators between them are read as well. A few random inputs then
pass through the same list, so that every shape, and every size that the model asks for, is known.
What a trace does not show (gradients that are off, values changed in place, a backward of its own)
is seen where the kernels are compared with the loop, in `agreement.py`.
Tensors without data (PyTorch's meta device) would need no arithmetic, but they load the compiler,
which takes longer than the arithmetic does. `torch.export` would give finer operations, but takes
seconds and pulls norms to pieces.
"""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from parley.compute.beside import Attributes, code_of_its_own, named
from parley.compute.buffers import without_graphs
from parley.compute.kernels.interface import (
    ActivationOptions,
    ConvolutionOptions,
    Curve,
    Method,
    PoolOptions,
)
from parley.compute.layers import DROPOUTS, FUNCTIONS, LAYERS, METHODS, Call, Unsupported, shape_of
from parley.compute.operations import OPERATIONS, Shape, Step

SAMPLES = 3
"""As many inputs are sent through a model; no other size in it should depend on this."""


class Network(NamedTuple):
    """A model for inputs of one shape: operations in the order in which they are carried out."""

    steps: tuple[Step, ...]
    output: int
    """The value that is the answer; value 0 is the input, value k the result of step k - 1."""
    of_each: tuple[int, ...]
    """The shape of what the model gives for a sample: of one number (), of a row of them (C,)."""

    @property
    def couples(self) -> bool:
        """Whether in training a sample's answer depends on the others of its batch."""
        return any(OPERATIONS[step.operation].couples for step in self.steps)

    @property
    def answer(self) -> Shape:
        """Its channels, rows and columns."""
        return self.steps[self.output - 1].result


class Traced:
    """A model that has been followed once, whatever the shape of its inputs.

    >>> layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    >>> [step.operation for step in Traced(nn.Sequential(*layers)).read((3, 8, 8)).steps]
    ['convolution', 'activation', 'reshape', 'convolution']
    """

    def __init__(self, model: nn.Module) -> None:
        if why := code_of_its_own(model):
            raise Unsupported(why)
        self.graph = _trace(model)
        self.model = model
        self._networks: dict[tuple[int, ...], Network] = {}
        layers = dict(model.named_modules(remove_duplicate=False))
        for node in self.graph.nodes:
            _check(node, layers)

    def read(self, shape: tuple[int, ...]) -> Network:
        """The operations for inputs of this shape."""
        if shape not in self._networks:
            self._networks[shape] = self._network(_run(self.model, self.graph, shape))
        return self._networks[shape]

    def _network(self, results: dict[fx.Node, Any]) -> Network:
        layers = dict(self.model.named_modules(remove_duplicate=False))
        names = {id(p): name for name, p in self.model.named_parameters()}
        values: dict[fx.Node, int] = {}
        steps: list[Step] = []
        output, of_each = -1, ()
        for node in self.graph.nodes:
            if node.op == "placeholder":
                shape_of(results[node], "the input")
                values[node] = 0
            elif node.op == "output":
                (given,) = node.args
                if not isinstance(given, fx.Node) or given not in values:
                    raise Unsupported("the model's answer is not one tensor")
                output, of_each = values[given], tuple(results[given].shape[1:])
            elif isinstance(results[node], Tensor):
                layer = layers[str(node.target)] if node.op == "call_module" else None
                call = Call(node, layer, _where(node, layers), values, results, names, steps)
                values[node] = _reader(node, layer)(call)
        if not output:
            raise Unsupported("the model does nothing that the kernels know")
        steps = _pools_first(steps, output)
        steps, output = _pools_within(steps, output)
        network = Network(tuple(steps), output, of_each)
        if network.answer[1:] != (1, 1):
            raise Unsupported(f"the model gives maps of shape {list(network.answer)}, not scores")
        return network


def _pools_first(steps: list[Step], output: int) -> list[Step]:
    """Max-pools before the ReLU in front of them: the same values and slopes, with less work."""
    uses = Counter(value for step in steps for value in step.inputs)
    for between in range(1, len(steps)):
        act, pool = steps[between - 1 : between + 1]
        if act.options not in (ActivationOptions(Curve.RELU), ActivationOptions(Curve.RELU6)):
            continue
        only = uses[between] == 1 and output != between
        if pool.operation == "max_pool" and pool.inputs == (between,) and only:
            steps[between - 1] = replace(pool, inputs=act.inputs)
            steps[between] = replace(act, inputs=(between,), shapes=(pool.result, pool.result))
    return steps


def _pools_within(steps: list[Step], output: int) -> tuple[list[Step], int]:
    """Max-pools as part of the convolution in front of them, where there is a kernel for both."""
    uses = Counter(value for step in steps for value in step.inputs)
    made: list[Step] = []
    now = {0: 0}  # the numbers of values
    for value, step in enumerate(steps, start=1):
        step = replace(step, inputs=tuple(now[given] for given in step.inputs))
        before = made[-1] if made else None
        only = uses[value - 1] == 1 and output != value - 1 and step.inputs == (len(made),)
        if before and only and _fits_within(before, step):
            assert isinstance(before.options, ConvolutionOptions)
            options = before.options._replace(pooled=1)
            made[-1] = replace(before, shapes=(before.shapes[0], step.result), options=options)
        else:
            made.append(step)
        now[value] = len(made)
    return made, now[output]


def _fits_within(step: Step, pool: Step) -> bool:
    given, (_, rows, columns) = step.options, step.result
    if not (isinstance(given, ConvolutionOptions) and given.method == Method.BY_ROWS):
        return False
    halved = pool.operation == "max_pool" and pool.options == PoolOptions((2, 2), (2, 2))
    return halved and not given.pooled and pool.result[1:] == (rows // 2, columns // 2)


def _trace(model: nn.Module) -> fx.Graph:
    """The model's code, followed; the model stays as it was."""
    tracer, as_it_was = _Tracer(), Attributes(model)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        before = torch.get_rng_state()
        try:
            graph = tracer.trace(model)
        except Unsupported:
            raise
        except Exception as error:  # whatever a model does with its symbolic input
            raise Unsupported(f"{tracer.here(model)} cannot be traced: {_why(error)}") from error
        finally:
            as_it_was.restore()
        if not torch.equal(before, torch.get_rng_state()):
            raise Unsupported("the model's code draws random numbers outside of its layers")
    return graph


class _Tracer(fx.Tracer):
    """Stops at the layers that are known and at PyTorch's own."""

    def __init__(self) -> None:
        super().__init__()
        self._inside: list[tuple[str, nn.Module]] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LAYERS or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(m, nn.modules.dropout._DropoutNd) and not m.training:
            where = named(self.path_of_module(m), m)
            raise Unsupported(f"{where} is switched off while the model is trained")
        self._inside.append((self.path_of_module(m), m))
        result = super().call_module(m, forward, args, kwargs)
        self._inside.pop()  # not where it has failed: then this is where
        return result

    def here(self, model: nn.Module) -> str:
        """The layer that is being followed."""
        return named(*(self._inside[-1] if self._inside else ("", model)))


def _why(error: Exception) -> str:
    """What an error in tracing says, in the words of somebody who wrote the model."""
    said = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, fx.proxy.TraceError):
        if "cannot be iterated" in said:
            return "its code goes through a tensor, or takes it apart, in Python"
        if "control flow" in said:
            return "its code branches on the values or the size of a tensor"
    return said


def _where(node: fx.Node, layers: dict[str, nn.Module]) -> str:
    """The layer to which a step belongs, and the function, if it is one."""
    if node.op == "call_module":
        return named(str(node.target), layers[str(node.target)])
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", nn.Module)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    inside = f"layer {path} ({kind.__name__})" if path else "the model"
    return f"{inside}: {name}()"


def _reader(node: fx.Node, layer: nn.Module | None) -> Any:
    if layer is not None:
        return LAYERS.get(type(layer))
    if node.op == "call_function":
        return FUNCTIONS.get(node.target)
    return METHODS.get(str(node.target)) if node.op == "call_method" else None


def _check(node: fx.Node, layers: dict[str, nn.Module]) -> None:
    """Refuses what is not known, before any shape is."""
    where = _where(node, layers)
    if node.op == "call_module":
        layer = layers[str(node.target)]
        if type(layer) not in LAYERS:
            raise Unsupported(f"{where} is not one that the kernels know")
    elif node.op in ("call_function", "call_method") and _reader(node, None) is None:
        raise Unsupported(f"{where} is not an operation that the kernels know")
    elif node.op == "get_attr":
        raise Unsupported(f"the model uses {str(node.target)!r} outside of a known layer")
    elif node.op == "placeholder" and node.prev.op == "placeholder":
        raise Unsupported("the model takes more than one input")


@torch.no_grad()
def _run(model: nn.Module, graph: fx.Graph, shape: tuple[int, ...]) -> dict[fx.Node, Any]:
    """What every node gives for a few inputs of this shape."""
    # A copy in use, not in training: neither the model's own buffers nor random numbers change.
    copied = copy.deepcopy(without_graphs(model)).eval()
    module = fx.GraphModule(copied, graph)
    kind = next((p.dtype for p in model.parameters()), torch.get_default_dtype())
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, *shape, generator=generator).to(kind)
    interpreter = fx.Interpreter(module)
    interpreter.garbage_collect_values = False
    layers = dict(module.named_modules(remove_duplicate=False))
    results: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            results[node] = inputs
        elif node.target in DROPOUTS:  # traced in training, where they draw
            results[node] = results[node.all_input_nodes[0]]
        elif node.op != "output":
            interpreter.env = results
            try:
                results[node] = interpreter.run_node(node)
            except Exception as error:  # whatever PyTorch says about shapes
                said = (str(error).splitlines() or [type(error).__name__])[0]
                raise Unsupported(
                    f"inputs of shape {list(shape)} do not fit the model: "
                    f"{_where(node, layers)}: {said}"
                ) from error
    return results
