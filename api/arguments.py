"""Arguments: what a trainer is given, checked at the door."""

from __future__ import annotations

import os
from typing import Any

import torch

from deepepochs.engine import Engine, choose_device

from .aggregation.metric_functions import as_list
from .loop.task import EpochTask


def check_parts(model: Any, loss: Any, epochs: Any) -> None:
    """Refuses a trainer's main arguments of a wrong kind.

    Raises:
        TypeError: the model is no module, or the loss cannot be called.
        ValueError: `epochs` is not a whole number of at least 0.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
    if loss is not None and not callable(loss):
        raise TypeError(f"`loss` must be a function (output, target) -> scalar, got {type(loss).__name__}")
    check_epochs(epochs)


def check_epochs(epochs: Any) -> None:
    """Refuses a number of epochs that is none.

    Raises:
        ValueError: it is not a whole number of at least 0.
    """
    if not isinstance(epochs, int) or epochs < 0:
        raise ValueError(f"`epochs` must be a whole number of at least 0, got {epochs!r}")


def make_tasks(loader: Any, tasks: Any, **options: Any) -> list[EpochTask]:
    """The tasks of a stage: the loader's own first.

    Raises:
        TypeError: `tasks` holds something else than EpochTask objects.
    """
    made = as_list(tasks)
    for task in made:
        if not isinstance(task, EpochTask):
            raise TypeError(
                f"tasks must be EpochTask objects, got {type(task).__name__}; wrap a loader: EpochTask(loader)"
            )
    return made if loader is None else [EpochTask(loader, **options), *made]


def check_engine(engine: Engine, device: Any, precision: str, steps: int, split_batches: bool) -> None:
    """Refuses arguments that an engine given beside them contradicts.

    Raises:
        ValueError: one differs both from its default and from the engine's.
    """
    given = {
        "device": (None, None if device is None else choose_device(device, engine.local_rank), engine.device),
        "precision": ("fp32", precision, engine.precision),
        "gradient_accumulation_steps": (1, steps, engine.gradient_accumulation_steps),
        "split_batches": (False, split_batches, engine.split_batches),
    }
    for name, (default, asked, has) in given.items():
        if asked not in (default, None) and asked != has:
            raise ValueError(f"`{name}` belongs to the engine, which has {has!s}, got {asked!s}; leave one of them out")


def check_running_id(running_id: int | str) -> str:
    """A run's name as text.

    Raises:
        ValueError: it could leave the folder of logs and checkpoints.
    """
    name = str(running_id)
    if name in ("", ".", "..") or os.path.basename(name) != name or "\\" in name or "\0" in name:
        raise ValueError(f"`running_id` names a folder and must not hold a path, got {name!r}")
    return name
