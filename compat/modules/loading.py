"""Loading: a module or data module made anew from a .ckpt file."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.checkpoint_io import read_checkpoint
from ..overrides import overrides_module


def make_module(kind: Any, path: Any, strict: bool | None, weights_only: bool | None, given: dict[str, Any]) -> Any:
    """A module with the hyper-parameters and weights of a file.

    Args:
        kind: its class.
        path: the file.
        strict: whether weights must match exactly; None leaves that to the module.
        weights_only: see `read_checkpoint`.
        given: arguments that count more than the file's.

    Raises:
        CheckpointError: the file cannot be used.
        RuntimeError: its weights do not match.
    """
    found = read_checkpoint(path, weights_only)
    module = construct(kind, found, given)
    if overrides_module(module, "configure_model"):
        module.configure_model()
    module.on_load_checkpoint(found)
    keys = module.load_state_dict(found["state_dict"], strict=module.strict_loading if strict is None else strict)
    for word, names in (("missing", keys.missing_keys), ("unknown", keys.unexpected_keys)):
        if names:
            warnings.warn(f"{Path(path).name}: {word} weights {names}", stacklevel=3)
    return module


def make_datamodule(kind: Any, path: Any, weights_only: bool | None, given: dict[str, Any]) -> Any:
    """A data module with the hyper-parameters and state of a file."""
    found = read_checkpoint(path, weights_only)
    datamodule = construct(kind, found, given)
    if kind.__qualname__ in found:
        datamodule.load_state_dict(found[kind.__qualname__])
    return datamodule


def construct(kind: Any, found: dict[str, Any], given: dict[str, Any]) -> Any:
    """Makes an object with the hyper-parameters of a file."""
    saved = dict(found.get(kind.CHECKPOINT_HYPER_PARAMS_KEY, {}))
    saved.update(given)
    parameters = inspect.signature(kind.__init__).parameters
    names = list(parameters)[1:]
    name = found.get(kind.CHECKPOINT_HYPER_PARAMS_NAME)
    if name in names and name != "kwargs":
        saved = {name: saved, **given}
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return kind(**{key: value for key, value in saved.items() if takes_all or key in names})


def refuse_hparams_file(path: Any) -> None:
    """Refuses a file of hyper-parameters.

    Raises:
        NotImplementedError: there is one.
    """
    if path is not None:
        raise NotImplementedError("`hparams_file` is not supported; give the arguments as keywords")


def to_device(module: torch.nn.Module, map_location: Any) -> torch.nn.Module:
    """The module where the caller wants it."""
    return module if map_location is None else module.to(map_location)
