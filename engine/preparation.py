"""Preparation: models, optimizers and loaders as an engine takes them in, and lets them go."""

from __future__ import annotations

import inspect
import weakref
from typing import Any, Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from .accumulation import Window
from .data import Loader
from .device import move
from .gradients import parameters
from .precision import Precision
from .processes.collectives import Collectives
from .replicas import Replicas, unwrap
from .updates import Updates


class Preparation(Collectives):
    """The part of an engine that takes in what a loop works with.

    Attributes:
        device: where models and batches go.
        split_batches: whether the loaders' batch size counts for all processes together.
        seed: the run's seed; None leaves the order of a single process to torch.
        models: the prepared models.
        optimizers: the prepared optimizers.
    """

    device: torch.device
    split_batches: bool
    seed: int | None
    models: list[nn.Module]
    optimizers: list[Optimizer]
    _precision: Precision
    _replicas: Replicas
    _updates: Updates
    _window: Window
    _loaders: weakref.WeakSet[Loader]

    def prepare(self, *items: Any) -> Any:
        """Prepares models, optimizers and training loaders.

        Args:
            items: modules are moved to the device and made data parallel; DataLoaders are shared among the ranks and
                move their batches; optimizers are remembered; schedulers pass.

        Returns:
            What to use instead, in the same order; for one item, that item.

        Raises:
            TypeError: an item is none of these.
        """
        prepared = tuple([self._prepare_one(item) for item in items])
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepare_one(self, item: Any) -> Any:
        if isinstance(item, nn.Module):
            return self.prepare_model(item)
        if isinstance(item, Optimizer):
            return self.prepare_optimizer(item)
        if isinstance(item, torch.utils.data.DataLoader):
            return self.prepare_loader(item)
        if isinstance(item, torch.optim.lr_scheduler.LRScheduler):
            return item
        raise TypeError(
            f"prepare() takes modules, torch optimizers, schedulers and DataLoaders, got {type(item).__name__}; "
            "for other iterables of batches use prepare_loader()"
        )

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Moves a module to the device, in place, and makes it data parallel where there are several processes."""
        model.to(self.device)
        model = self._replicas.add(model)
        self.models.append(model)
        return model

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Remembers an optimizer, whose gradients an interrupted window drops.

        Raises:
            TypeError: its `step` needs a closure, as LBFGS's does: a window's gradients are computed once.
            ValueError: in fp16, another one holds a parameter of it: the scale would be taken off twice.
        """
        if any(optimizer is known for known in self.optimizers):
            return optimizer
        check_step(optimizer)
        if self._precision.scaler is not None:
            held = {id(each) for known in self.optimizers for each in parameters(known)}
            if any(id(each) in held for each in parameters(optimizer)):
                raise ValueError("two optimizers share parameters, which `precision='fp16'` does not allow; use 'bf16'")
        self.optimizers.append(optimizer)
        return optimizer

    def forget(self, model: nn.Module) -> None:
        """Lets go of a prepared model and of the optimizers that step nothing but it; it may be prepared again.

        This engine drops, weighs and synchronises no gradients of it any more: what `prepare` returned for it computes
        as the bare module does from now on.

        Args:
            model: the module, as it was given or as it was returned.
        """
        forgotten = [each for each in self.models if unwrap(each) is unwrap(model)]
        self.models = [each for each in self.models if unwrap(each) is not unwrap(model)]
        self._replicas.forget(model)
        own = {id(each) for module in forgotten for each in module.parameters()}
        others = {id(each) for module in self.models for each in module.parameters()}
        for optimizer in list(self.optimizers):
            held = {id(each) for each in parameters(optimizer)}
            if held & own and not held & others:
                self._updates.forget(optimizer)

    def prepare_loader(self, loader: Iterable[Any], train: bool = True, move_batches: bool = True) -> Loader:
        """Shares a loader among the ranks and moves its batches to the device.

        Args:
            loader: a DataLoader, or any iterable of batches.
            train: training shards are equally long, and their passes drive the accumulation window; evaluation
                shards are contiguous and may be empty.
            move_batches: whether batches go to the device.
        """
        device = self.device if move_batches else None
        window = self._window if train else None
        prepared = Loader(loader, self.processes, window, device, self.split_batches, self.seed)
        self._loaders.add(prepared)
        return prepared

    def move(self, data: Any) -> Any:
        """Moves nested data to the device, see `deepepochs.engine.move`."""
        return move(data, self.device)


def check_step(optimizer: Optimizer) -> None:
    """Refuses an optimizer that evaluates the model anew within its step.

    Raises:
        TypeError: its `step` cannot be called without a closure.
    """
    try:
        inspect.signature(type(optimizer).step).bind(optimizer)  # of the class: schedulers wrap the object's own
    except TypeError:
        raise TypeError(
            f"{type(optimizer).__name__} evaluates the model several times in each step, by a closure, which a window "
            "of micro-batches does not allow; use an optimizer whose step() needs none, or write its loop by hand"
        ) from None
    except ValueError:  # there is no signature to read
        return
