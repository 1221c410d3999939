"""A PyTorch model as a list of operations.

`torch.fx` follows the model's own code with a symbol in place of the input, down to the layers that
`layers.py` knows; functions and operators between them are read as well. Tensors without data then
pass through the same list, so that every shape, and every size that the model asks for, is known.
`torch.export` would give finer operations, but takes seconds and pulls norms to pieces.
"""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from parley.compute.layers import FUNCTIONS, LAYERS, METHODS, Call, Unsupported, shape_of
from parley.compute.operations import Shape, Step

SAMPLES = 3
"""Tensors without data have as many; no other size in a model should depend on it."""


class Network(NamedTuple):
    """A model for inputs of one shape: operations in the order in which they are carried out."""

    steps: tuple[Step, ...]
    output: int
    """The value that is the answer; value 0 is the input, value k the result of step k - 1."""

    @property
    def answer(self) -> Shape:
        """Its shape."""
        return self.steps[self.output - 1].result


class Traced:
    """A model that has been followed once, whatever the shape of its inputs.

    >>> layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    >>> [step.operation for step in Traced(nn.Sequential(*layers)).read((3, 8, 8)).steps]
    ['convolution', 'activation', 'reshape', 'convolution']
    """

    def __init__(self, model: nn.Module) -> None:
        if model._forward_hooks or model._forward_pre_hooks:
            raise Unsupported("the model has hooks")
        tracer = _Tracer()
        try:
            self.graph = tracer.trace(model)
        except Unsupported:
            raise
        except Exception as error:  # whatever a model does with its symbolic input
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise Unsupported(f"{tracer.here(model)} cannot be traced: {said}") from error
        self.model = model
        layers = dict(model.named_modules(remove_duplicate=False))
        for node in self.graph.nodes:
            _check(node, layers)
        self._empty: fx.GraphModule | None = None

    def read(self, shape: tuple[int, ...]) -> Network:
        """The operations for inputs of this shape."""
        if self._empty is None:
            self._empty = fx.GraphModule(copy.deepcopy(self.model).to("meta"), self.graph)
        results = _run(self._empty, self.graph, torch.empty(SAMPLES, *shape, device="meta"))
        layers = dict(self.model.named_modules(remove_duplicate=False))
        names = {id(p): name for name, p in self.model.named_parameters()}
        values: dict[fx.Node, int] = {}
        steps: list[Step] = []
        output = -1
        for node in self.graph.nodes:
            if node.op == "placeholder":
                shape_of(results[node], "the input")
                values[node] = 0
            elif node.op == "output":
                (given,) = node.args
                if not isinstance(given, fx.Node) or given not in values:
                    raise Unsupported("the model's answer is not one tensor")
                output = values[given]
            elif isinstance(results[node], Tensor):
                layer = layers[str(node.target)] if node.op == "call_module" else None
                call = Call(node, layer, _where(node, layers), values, results, names, steps)
                values[node] = _reader(node, layer)(call)
        if not output:
            raise Unsupported("the model does nothing that the kernels know")
        network = Network(tuple(steps), output)
        if network.answer[1:] != (1, 1):
            raise Unsupported(f"the model gives maps of shape {list(network.answer)}, not scores")
        return network


class _Tracer(fx.Tracer):
    """Stops at the layers that are known and at PyTorch's own."""

    def __init__(self) -> None:
        super().__init__()
        self._inside: list[tuple[str, nn.Module]] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LAYERS or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        self._inside.append((self.path_of_module(m), m))
        result = super().call_module(m, forward, args, kwargs)
        self._inside.pop()  # not where it has failed: then this is where
        return result

    def here(self, model: nn.Module) -> str:
        """The layer that is being followed."""
        path, layer = self._inside[-1] if self._inside else ("(the model)", model)
        return f"layer {path} ({type(layer).__name__})"


def _where(node: fx.Node, layers: dict[str, nn.Module]) -> str:
    """The layer to which a step belongs, and the function, if it is one."""
    if node.op == "call_module":
        return f"layer {node.target} ({type(layers[str(node.target)]).__name__})"
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
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise Unsupported(f"{where} has hooks")
        if type(layer) not in LAYERS:
            raise Unsupported(f"{where} is not one that the kernels know")
    elif node.op in ("call_function", "call_method") and _reader(node, None) is None:
        raise Unsupported(f"{where} is not an operation that the kernels know")
    elif node.op == "get_attr":
        raise Unsupported(f"the model uses {str(node.target)!r} outside of a known layer")
    elif node.op == "placeholder" and node.prev.op == "placeholder":
        raise Unsupported("the model takes more than one input")


def _run(module: fx.GraphModule, graph: fx.Graph, inputs: Tensor) -> dict[fx.Node, Any]:
    """What every node gives for these inputs, without data."""
    interpreter = fx.Interpreter(module)
    interpreter.garbage_collect_values = False
    layers = dict(module.named_modules(remove_duplicate=False))
    results: dict[fx.Node, Any] = {}
    arguments = iter([inputs])
    for node in graph.nodes:
        if node.op == "placeholder":
            results[node] = next(arguments)
        elif node.op == "output":
            break
        else:
            interpreter.env = results
            try:
                results[node] = interpreter.run_node(node)
            except Exception as error:  # whatever PyTorch says about shapes
                said = (str(error).splitlines() or [type(error).__name__])[0]
                shape = list(inputs.shape[1:])
                raise Unsupported(
                    f"inputs of shape {shape} do not fit the model: {_where(node, layers)}: {said}"
                ) from error
    return results
