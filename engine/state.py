"""State dicts with canonical names: the same whether a module is bare, data parallel or compiled."""

from __future__ import annotations

from typing import Any, Mapping

from torch import nn

from .replicas import unwrap

_COMPILED = "_orig_mod."
_PARALLEL = "module."


def model_state(module: nn.Module) -> dict[str, Any]:
    """A module's state without the prefixes of wrappers.

    Args:
        module: bare, data parallel, compiled, or with compiled parts.

    Returns:
        Names as in the author's module; the tensors are the module's own.
    """
    return {name.replace(_COMPILED, ""): value for name, value in unwrap(module).state_dict().items()}


def load_model_state(module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> Any:
    """Loads a state into a module, whatever either was wrapped in.

    Args:
        module: bare, data parallel, compiled, or with compiled parts.
        state: from `model_state`, or from a wrapped module's own `state_dict`.
        strict: refuse missing and unexpected names.

    Returns:
        What torch's `load_state_dict` returns.

    Raises:
        RuntimeError: names or shapes do not fit.
    """
    target = unwrap(module)
    actual = {name.replace(_COMPILED, ""): name for name in target.state_dict()}
    plain = {name.replace(_COMPILED, ""): value for name, value in state.items()}
    if plain and all(name.startswith(_PARALLEL) for name in plain) and not set(plain) & set(actual):
        plain = {name[len(_PARALLEL) :]: value for name, value in plain.items()}
    return target.load_state_dict({actual.get(name, name): value for name, value in plain.items()}, strict=strict)
