"""Parts: the callbacks and loggers that a trainer begins with, and checks of what fit() and its like are given."""

from __future__ import annotations

import warnings
from typing import Any, Iterable

import torch

from .callbacks.defaults import ModelSummary, ProgressBar, Timer
from .callbacks.model_checkpoint import ModelCheckpoint
from .logs.loggers import TensorBoardLogger
from .overrides import MisconfigurationException, Word, base_of, is_a


def check_clipping(value: Any, algorithm: Any) -> tuple[float | None, str | None]:
    """Clipping's arguments.

    Raises:
        MisconfigurationException: one is out of its range.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise TypeError(f"`gradient_clip_val` must be a number, got {value!r}")
    name = None if algorithm is None else str(getattr(algorithm, "value", algorithm)).lower()
    if name not in (None, "norm", "value"):
        raise MisconfigurationException(f"`gradient_clip_algorithm` must be 'norm' or 'value', got {algorithm!r}")
    return value, None if name is None else Word(name)


def set_determinism(deterministic: Any, benchmark: bool | None) -> None:
    """Sets torch's switches, where they are asked for."""
    if deterministic not in (None, True, False, "warn"):
        raise MisconfigurationException(f"`deterministic` must be True, False or 'warn', got {deterministic!r}")
    if deterministic:
        torch.use_deterministic_algorithms(True, warn_only=deterministic == "warn")
    if benchmark is not None or deterministic:
        torch.backends.cudnn.benchmark = bool(benchmark)


def make_loggers(logger: Any, directory: str) -> list[Any]:
    """The loggers that `logger` means."""
    if logger is None or logger is True:
        return [TensorBoardLogger(directory)]
    if not logger:
        return []
    return list(logger) if isinstance(logger, Iterable) else [logger]


def make_callbacks(
    callbacks: Any,
    checkpointing: bool | None,
    progress_bar: bool | None,
    summary: bool | None,
    max_time_s: float | None,
) -> list[Any]:
    """The callbacks that the arguments mean.

    Raises:
        MisconfigurationException: one contradicts an argument.
        TypeError: one is no callback of Lightning's kind.
    """
    found = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks is not None else []
    for each in found:
        if base_of(type(each), "Callback") is None or not hasattr(each, "on_train_batch_end"):
            raise TypeError(
                f"`callbacks` must be callbacks of Lightning or of deepepochs.compat, got {type(each).__name__}; "
                "callbacks of deepepochs.Trainer listen to other events"
            )
    for name, wanted, kind, argument in (
        ("Checkpoint", checkpointing, ModelCheckpoint, "enable_checkpointing"),
        ("ProgressBar", progress_bar, ProgressBar, "enable_progress_bar"),
        ("ModelSummary", summary, ModelSummary, "enable_model_summary"),
    ):
        own = [each for each in found if is_a(each, name)]
        if own and wanted is False and name != "ModelSummary":
            raise MisconfigurationException(f"`{argument}=False`, but `callbacks` holds {type(own[0]).__name__}")
        if not own and wanted is not False:
            found.append(kind())
    if max_time_s is not None:
        found.append(Timer(max_time_s))
    return found


def ordered(callbacks: list[Any]) -> list[Any]:
    """Callbacks with those that write checkpoints last."""
    return sorted(callbacks, key=lambda each: is_a(each, "Checkpoint"))


def as_datamodule(loaders: Any, datamodule: Any) -> tuple[Any, Any]:
    """A data module may be given in the loaders' place."""
    return (None, loaders) if is_a(loaders, "LightningDataModule") else (loaders, datamodule)


def check_module(module: Any, fn: str) -> Any:
    """The module that a run is for.

    Raises:
        TypeError: there is none, or it is no LightningModule.
    """
    if hasattr(module, "_orig_mod"):
        module = module._orig_mod
        warnings.warn(
            f"{type(module).__name__} runs uncompiled: compile the layers in it, as in `self.net = torch.compile(net)`",
            stacklevel=4,
        )
    if module is None:
        raise TypeError(f"{fn}() needs a module: none was given, and no earlier run had one")
    if base_of(type(module), "LightningModule") is None or not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"{fn}() needs a LightningModule, of Lightning or of deepepochs.compat, got {type(module).__name__}; "
            "for other modules there is deepepochs.Trainer"
        )
    return module
