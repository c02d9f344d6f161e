"""Optimizers: what `configure_optimizers` may return, and the wrapper that modules step."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, fields
from typing import Any, Callable, Iterator

import torch
from torch.optim import Optimizer

from .overrides import MisconfigurationException, overrides_module, takes

FORMS = (
    "`configure_optimizers` must return an optimizer, a list of optimizers, ([optimizers], [schedulers]), "
    "{'optimizer': ..., 'lr_scheduler': ..., 'monitor': ...}, a list of such dictionaries, or None"
)


@dataclass
class SchedulerConfig:
    """A scheduler and when it moves.

    Attributes:
        scheduler: with torch's interface.
        name: for monitors of the learning rate.
        interval: 'epoch' or 'step'.
        frequency: every so many of these.
        reduce_on_plateau: whether it follows `monitor`.
        monitor: a logged metric.
        strict: whether a missing metric is an error.
    """

    scheduler: Any
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True


class NoOptimizer(Optimizer):
    """Stands for the optimizer of a module that has none: it calls its closure and changes nothing."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {})

    def step(self, closure: Any = None) -> Any:
        """Calls the closure."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        """Takes nothing."""


def do_nothing() -> None:
    """A closure that does nothing."""


class LightningOptimizer:
    """What modules step: the user's optimizer, with clipping, precision and counting around its `step`.

    It is an instance of the optimizer's class too, and gives all else on to the optimizer.

    Args:
        optimizer: the user's.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._strategy: Any = None
        self._on_before_step: Callable[[], None] = do_nothing
        self._on_after_step: Callable[[], None] = do_nothing
        self.__class__ = type(f"Lightning{type(optimizer).__name__}", (type(self), type(optimizer)), {})

    @property
    def optimizer(self) -> Optimizer:
        """The user's optimizer."""
        return self._optimizer

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Updates the parameters.

        Args:
            closure: computes the gradients.
            kwargs: for the optimizer's own step.

        Raises:
            TypeError: `closure` cannot be called.
        """
        if closure is not None and not callable(closure):
            raise TypeError(f"`closure` must be a function, got {type(closure).__name__}")
        self._on_before_step()
        result = self._strategy.optimizer_step(self._optimizer, closure or do_nothing, **kwargs)
        self._on_after_step()
        return result

    @contextlib.contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """The context in which only this optimizer's parameters get gradients.

        Args:
            sync_grad: whether the ranks' gradients are averaged.
        """
        module = self._strategy.lightning_module
        with contextlib.nullcontext() if sync_grad else self._strategy.no_sync():
            module.toggle_optimizer(self)
            yield
            module.untoggle_optimizer(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


def configure(module: Any, calls: Any) -> tuple[list[Any], list[SchedulerConfig]]:
    """Asks a module for its optimizers and schedulers.

    Args:
        module: the LightningModule.
        calls: calls its hook.

    Returns:
        The optimizers, and the schedulers with their settings.

    Raises:
        MisconfigurationException: what it returns is none of the known forms.
        RuntimeError: several optimizers in automatic optimisation.
    """
    returned = calls.module("configure_optimizers")
    if returned is None:
        warnings.warn("`configure_optimizers` returned None: this fit trains nothing", stacklevel=2)
        returned = NoOptimizer()
    optimizers, schedulers, monitor = parse(returned)
    configs = [as_config(each, monitor, module.automatic_optimization) for each in schedulers]
    check(module, optimizers, configs)
    return optimizers, configs


def parse(returned: Any) -> tuple[list[Any], list[Any], str | None]:
    """Splits what `configure_optimizers` returned into optimizers, schedulers and the common monitor."""
    if is_optimizer(returned):
        return [returned], [], None
    if isinstance(returned, dict):
        check_keys(returned)
        schedulers = [returned["lr_scheduler"]] if "lr_scheduler" in returned else []
        return [returned["optimizer"]], schedulers, returned.get("monitor")
    if isinstance(returned, (list, tuple)):
        if len(returned) == 2 and isinstance(returned[0], list) and all(map(is_optimizer, returned[0])):
            schedulers = returned[1] if isinstance(returned[1], list) else [returned[1]]
            return returned[0], schedulers, None
        if all(isinstance(each, dict) for each in returned):
            for each in returned:
                check_keys(each)
            found = [each["lr_scheduler"] for each in returned if "lr_scheduler" in each]
            return [each["optimizer"] for each in returned], found, None
        if all(map(is_optimizer, returned)):
            return list(returned), [], None
    raise MisconfigurationException(f"{FORMS}; got {returned!r}")


def is_optimizer(candidate: Any) -> bool:
    """Whether something has what an optimizer needs."""
    return isinstance(candidate, Optimizer) or all(
        hasattr(candidate, name) for name in ("param_groups", "step", "zero_grad", "state_dict", "load_state_dict")
    )


def check_keys(returned: dict[str, Any]) -> None:
    """Refuses a dictionary without optimizer, warns of keys that mean nothing."""
    if "optimizer" not in returned:
        raise MisconfigurationException(f"{FORMS}; got a dictionary with {sorted(returned)}")
    unknown = set(returned) - {"optimizer", "lr_scheduler", "monitor"}
    if unknown:
        warnings.warn(f"`configure_optimizers` returned keys that have no meaning: {sorted(unknown)}", stacklevel=2)


def as_config(scheduler: Any, monitor: str | None, automatic: bool) -> SchedulerConfig:
    """A scheduler's settings.

    Args:
        scheduler: a scheduler, or a dictionary with it and its settings.
        monitor: the metric for one that stands alone.
        automatic: whether the trainer moves it; in manual optimisation the module does.

    Raises:
        MisconfigurationException: a setting is missing or out of its range.
    """
    settings = dict(scheduler) if isinstance(scheduler, dict) else {"scheduler": scheduler}
    plateau = isinstance(settings.get("scheduler"), torch.optim.lr_scheduler.ReduceLROnPlateau)
    if plateau and not isinstance(scheduler, dict):
        settings["monitor"] = monitor
    unknown = set(settings) - {each.name for each in fields(SchedulerConfig)}
    if unknown:
        warnings.warn(f"an lr_scheduler dictionary holds keys that have no meaning: {sorted(unknown)}", stacklevel=2)
        settings = {key: value for key, value in settings.items() if key not in unknown}
    if "scheduler" not in settings:
        raise MisconfigurationException(f"an lr_scheduler dictionary needs the key 'scheduler', got {sorted(settings)}")
    if not automatic:
        for key in ("reduce_on_plateau", "monitor", "strict"):
            settings.pop(key, None)
        return SchedulerConfig(**settings)
    if settings.get("interval", "epoch") not in ("step", "epoch"):
        raise MisconfigurationException(f"`interval` must be 'step' or 'epoch', got {settings['interval']!r}")
    settings.setdefault("reduce_on_plateau", plateau)
    if settings["reduce_on_plateau"] and settings.get("monitor") is None:
        raise MisconfigurationException(
            "ReduceLROnPlateau follows a logged metric; name it, as in {'optimizer': optimizer, 'lr_scheduler': "
            "{'scheduler': scheduler, 'monitor': 'val_loss'}}"
        )
    return SchedulerConfig(**settings)


def check(module: Any, optimizers: list[Any], configs: list[SchedulerConfig]) -> None:
    """Refuses what cannot train together."""
    several = "set `self.automatic_optimization = False` and step them in `training_step`: `a, b = self.optimizers()`"
    if takes(module.training_step, "optimizer_idx", explicit=True):
        raise RuntimeError(f"`training_step` must not take `optimizer_idx`; for several optimizers {several}")
    if module.automatic_optimization and len(optimizers) > 1:
        raise RuntimeError(f"automatic optimisation takes one optimizer, got {len(optimizers)}; {several}")
    for config in configs:
        scheduler = config.scheduler
        kind = type(scheduler).__name__
        if not hasattr(scheduler, "state_dict") or not hasattr(scheduler, "load_state_dict"):
            raise TypeError(f"the scheduler {kind} needs `state_dict` and `load_state_dict`")
        if not any(scheduler.optimizer is each for each in optimizers):
            raise MisconfigurationException(f"the scheduler {kind} drives an optimizer that was not returned with it")
        known = isinstance(
            scheduler, (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        )
        if not known and module.automatic_optimization and not overrides_module(module, "lr_scheduler_step"):
            raise MisconfigurationException(f"{kind} is not a torch scheduler; override `lr_scheduler_step` to move it")
