"""Summary: a model's layers, their output shapes and parameters as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

import torch
from torch.nn.parameter import is_lazy

from deepepochs.engine import describe, leaves, preserved_rng, unwrap


@dataclass(frozen=True)
class Layer:
    """A layer of a model.

    Attributes:
        name: its path within the model.
        kind: its class.
        shape: what came out of its last call, '' where it was not called.
        parameters: elements of the parameters that it is the first to own.
        trainable: how many of them are trained.
    """

    name: str
    kind: str
    shape: str
    parameters: int
    trainable: int


@dataclass(frozen=True)
class Summary:
    """A model's layers; `print` shows them as a table.

    Attributes:
        layers: in the order in which the model names them.
        parameters: elements of all parameters, each counted once.
        trainable: how many of them are trained.
    """

    layers: list[Layer]
    parameters: int
    trainable: int

    def __str__(self) -> str:
        rows = [("layer", "kind", "output", "parameters", "trainable")]
        rows += [(x.name, x.kind, x.shape, f"{x.parameters:,}", f"{x.trainable:,}") for x in self.layers]
        rows.append(("total", "", "", f"{self.parameters:,}", f"{self.trainable:,}"))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = [
            "  ".join([text.ljust(w) if i < 3 else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths))])
            for row in rows
        ]
        rule = "-" * max(map(len, lines))
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def summarise(model: torch.nn.Module, example_input: Any = None) -> Summary:
    """Lists a model's layers.

    Args:
        model: the module; it stays as it is.
        example_input: what to call it with, to learn the shapes: one input, a tuple of several, or a dictionary of
            keyword arguments; None leaves the shapes out.

    Returns:
        The layers and totals; `print` it.

    Example:
        >>> print(summarise(model, torch.zeros(1, 784)))  # doctest: +SKIP
    """
    module = unwrap(model)
    shapes = {} if example_input is None else output_shapes(module, example_input)
    counted: set[int] = set()
    layers = []
    for name, each in module.named_modules():
        own = [p for p in each.parameters(recurse=False) if id(p) not in counted and not is_lazy(p)]
        counted.update(map(id, own))
        if own or not list(each.children()):
            trainable = sum(p.numel() for p in own if p.requires_grad)
            size = sum(p.numel() for p in own)
            layers.append(Layer(name or "(model)", type(each).__name__, shapes.get(name, ""), size, trainable))
    return Summary(layers, sum(x.parameters for x in layers), sum(x.trainable for x in layers))


def output_shapes(module: torch.nn.Module, example: Any) -> dict[str, str]:
    """The shapes of what each part of a module returns, by name; modes, buffers and generators stay as they are."""
    found: dict[str, str] = {}
    handles = [each.register_forward_hook(_noting(name, found)) for name, each in module.named_modules()]
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        with torch.no_grad(), preserved_rng():
            if isinstance(example, Mapping):
                module(**example)
            else:
                module(*example) if isinstance(example, (tuple, list)) else module(example)
    finally:
        for handle in handles:
            handle.remove()
        for each, mode in modes:
            each.training = mode
    return found


def _noting(name: str, found: dict[str, str]) -> Any:
    def hook(module: Any, inputs: Any, output: Any) -> None:
        tensors = [each for each in leaves(output) if isinstance(each, torch.Tensor)]
        found[name] = " ".join([str(tuple(each.shape)) for each in tensors]) or describe(output)

    return hook
