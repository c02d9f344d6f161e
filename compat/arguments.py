"""Arguments: the trainer's, checked; what is not supported is refused by name."""

from __future__ import annotations

import datetime
import warnings
from typing import Any

import torch

from deepepochs.engine import Engine

from .overrides import MisconfigurationException
from .precision import canonical, engine_precision

STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false")
UNSUPPORTED: dict[str, Any] = {  # an argument, and the values of it that ask for nothing
    "num_nodes": (1,),
    "profiler": (None,),
    "plugins": (None, []),
    "model_registry": (None,),
    "barebones": (False,),
}
INSTEAD = {
    "num_nodes": "start one process a device with torchrun on all machines",
    "profiler": "use torch.profiler around fit()",
    "plugins": "use `precision` and `strategy`",
    "model_registry": "copy the checkpoint files yourself",
    "barebones": "pass `logger=False, enable_checkpointing=False, enable_progress_bar=False`",
}


def refuse_unsupported(given: dict[str, Any]) -> None:
    """Refuses arguments that ask for something that is not there.

    Raises:
        NotImplementedError: one of Lightning's arguments that is not supported.
    """
    for name, harmless in UNSUPPORTED.items():
        if given[name] not in harmless:
            raise NotImplementedError(f"`{name}={given[name]!r}` is not supported; {INSTEAD[name]}")


def make_engine(
    accelerator: Any, devices: Any, strategy: Any, precision: Any, sync_batchnorm: bool
) -> tuple[Engine, str]:
    """The engine for Lightning's arguments, and the full name of the precision.

    Raises:
        MisconfigurationException: they ask for more processes than there are.
        ValueError: one of them is unknown.
    """
    if strategy not in STRATEGIES:
        raise NotImplementedError(f"`strategy` must be one of {list(STRATEGIES)}, got {strategy!r}")
    options: dict[str, Any] = {"sync_batchnorm": True} if sync_batchnorm else {}
    if strategy == "ddp_find_unused_parameters_true":
        options["find_unused_parameters"] = True
    device = choose(accelerator, devices)
    name = canonical(precision)
    if name == "16-mixed" and (device == "cpu" or (device is None and not torch.cuda.is_available())):
        warnings.warn("'16-mixed' on the CPU computes as 'bf16-mixed', as in Lightning", stacklevel=4)
        name = "bf16-mixed"
    engine = Engine(device, engine_precision(name), ddp_options=options)
    wanted = count(devices)
    if wanted not in (None, engine.world_size):
        there = engine.world_size
        engine.close()
        raise MisconfigurationException(
            f"`devices={devices!r}` asks for {wanted} processes, this job has {there}; start it with "
            f"`torchrun --nproc-per-node={wanted} script.py`, or call deepepochs.launch(main, {wanted})"
        )
    return engine, name


def choose(accelerator: Any, devices: Any) -> str | None:
    """The engine's device for Lightning's accelerator; None lets the engine choose."""
    known = {"auto": None, "gpu": "cuda", "cuda": "cuda", "cpu": "cpu", "mps": "mps"}
    if accelerator not in known:
        raise NotImplementedError(f"`accelerator` must be one of {list(known)}, got {accelerator!r}")
    device = known[accelerator]
    is_one_index = isinstance(devices, (list, tuple)) and len(devices) == 1
    if device != "cpu" and torch.cuda.is_available() and is_one_index:
        return f"cuda:{devices[0]}"
    return device


def count(devices: Any) -> int | None:
    """How many processes `devices` asks for, None where it leaves that open.

    Raises:
        ValueError: it is none of the known forms.
    """
    if devices in ("auto", -1, "-1", None):
        return None
    if isinstance(devices, (list, tuple)):
        return len(devices)
    if isinstance(devices, str):
        return len([each for each in devices.split(",") if each.strip()]) if "," in devices else int(devices)
    if isinstance(devices, int) and devices > 0:
        return devices
    raise ValueError(f"`devices` must be a number of devices, a list of their indices or 'auto', got {devices!r}")


def batch_limit(value: Any, name: str) -> int | float:
    """A limit on batches: a whole number of them, or a share from 0.0 to 1.0; None means all.

    Raises:
        MisconfigurationException: it is neither.
    """
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise MisconfigurationException(f"`{name}` must be a number of batches or a share of them, got {value!r}")
    if isinstance(value, float) and value > 1.0:
        raise MisconfigurationException(f"`{name}` must be a share from 0.0 to 1.0 or a whole number, got {value!r}")
    return value


def seconds(value: Any, name: str) -> float:
    """A time span in seconds: 'DD:HH:MM:SS', a timedelta, or a dictionary of its arguments.

    Raises:
        MisconfigurationException: it is none of these.
    """
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return datetime.timedelta(**value).total_seconds()
    parts = value.split(":") if isinstance(value, str) else []
    if len(parts) != 4 or not all(each.isdigit() for each in parts):
        raise MisconfigurationException(f"`{name}` must be 'DD:HH:MM:SS', a timedelta or a dictionary, got {value!r}")
    days, hours, minutes, secs = map(int, parts)
    return datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=secs).total_seconds()


def at_least(value: Any, low: int, name: str) -> int:
    """A whole number with a lower bound.

    Raises:
        MisconfigurationException: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise MisconfigurationException(f"`{name}` must be a whole number of at least {low}, got {value!r}")
    return value
