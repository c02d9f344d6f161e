"""Engine: the one face over device, precision, accumulation, processes and data; for custom loops and the trainer."""

from __future__ import annotations

import datetime
import weakref
from typing import Any, Callable, ContextManager, Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from . import clipping, state
from .accumulation import Scope, Window
from .data import Loader
from .device import choose_device, move
from .precision import Precision, gradients, multiply, parameters
from .processes.group import Processes, find_place
from .replicas import (
    DataParallel,
    buffers_by_dtype,
    check_synchronised,
    fingerprint,
    gradient_marks,
    unsynchronised,
    unwrap,
    wrap,
)
from .seeding import check_seed


class Engine:
    """Runs custom loops on any device, in any precision, on any number of processes, with exact accumulation.

    Args:
        device: a name or torch.device; None takes this rank's CUDA device, or the CPU where there is none.
        precision: 'fp32', 'fp16' (with a loss scale) or 'bf16'.
        gradient_accumulation_steps: micro-batches in one update.
        split_batches: whether the loaders' batch size counts for all processes together.
        ddp_options: keyword arguments of DistributedDataParallel; also `timeout` (seconds that a process waits for
            the others) and `sync_batchnorm`.
        seed: makes the order of shuffled loaders a function of (seed, epoch). None: one process leaves it to torch,
            several take torch's seed of rank 0.

    Attributes:
        when_left_out: updates the parameters where the micro-batch that ends a window had no backward; None refuses.

    Raises:
        ValueError: an argument is out of its range, or the device is not there.
        RuntimeError: the environment describes a distributed job only in part.

    Example:
        >>> with Engine(gradient_accumulation_steps=4) as engine:
        ...     model, opt, loader = engine.prepare(model, opt, loader)
        ...     for x, y in loader:
        ...         with engine.accumulate(model, n_samples=len(x)):
        ...             with engine.autocast():
        ...                 loss = F.cross_entropy(model(x), y)
        ...             engine.backward(loss)
        ...             engine.step(opt)
    """

    def __init__(
        self,
        device: str | torch.device | None = None,
        precision: str = "fp32",
        gradient_accumulation_steps: int = 1,
        split_batches: bool = False,
        ddp_options: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        if (
            not isinstance(gradient_accumulation_steps, int)
            or isinstance(gradient_accumulation_steps, bool)
            or gradient_accumulation_steps < 1
        ):
            raise ValueError(
                "`gradient_accumulation_steps` must be a whole number of at least 1, "
                f"got {gradient_accumulation_steps!r}"
            )
        seed = None if seed is None else check_seed(seed)
        place = find_place()
        self.device = choose_device(device, place.local_rank)
        self._precision = Precision(precision, self.device)
        self._ddp_options = dict(ddp_options or {})
        timeout = self._ddp_options.pop("timeout", 1800)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout <= 0:
            raise ValueError(f"`timeout` in `ddp_options` must be a number of seconds above 0, got {timeout!r}")
        self.processes = Processes(place, self.device, datetime.timedelta(seconds=timeout))
        self.split_batches = split_batches
        if seed is None and self.world_size > 1:
            seed = self.processes.broadcast_object(torch.initial_seed())
        self.seed = seed
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self._replicas: list[DataParallel] = []
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()
        self._window = Window(
            gradient_accumulation_steps,
            self.world_size,
            self.processes.sum_later,
            self._rescale_gradients,
            self.drop_window,
        )
        self._is_single = self._window.is_single
        self._is_fp32 = precision == "fp32"
        self._no_autocast = self._precision.autocast() if self._is_fp32 else None
        waits = not self._is_single or precision == "fp16"
        self._scope = Scope(self._end_micro_batch if waits else None, self.drop_window)
        self._skipped: set[int] = set()
        self.when_left_out: Callable[[], None] | None = None

    # ---- who and where

    @property
    def rank(self) -> int:
        """This process's number among all."""
        return self.processes.rank

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self.processes.local_rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.processes.world_size

    @property
    def is_main(self) -> bool:
        """Whether this process prints, logs and writes files."""
        return self.processes.is_main

    @property
    def precision(self) -> str:
        """'fp32', 'fp16' or 'bf16'."""
        return self._precision.name

    @property
    def scaler(self) -> Any:
        """The GradScaler in fp16, else None; for loops that scale and step by themselves."""
        return self._precision.scaler

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches in a full window."""
        return self._window.steps

    @property
    def closes_window(self) -> bool:
        """Whether the present micro-batch is the last of its window: gradients are synchronised, `step` acts."""
        return self._window.closes

    @property
    def is_between_windows(self) -> bool:
        """Whether no window is open: all gradients are spent."""
        return self._window.index == 0

    # ---- preparation

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
        if self.world_size > 1:
            model = wrap(model, self.device, self._ddp_options)
            if isinstance(model, DataParallel):
                self._replicas.append(model)
                self.processes.admit(model)
        self.models.append(model)
        return model

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Remembers an optimizer, whose gradients an interrupted window drops.

        Raises:
            ValueError: in fp16, another one holds a parameter of it: the scale would be taken off twice.
        """
        if any(optimizer is known for known in self.optimizers):
            return optimizer
        if self.precision == "fp16":
            held = {id(each) for known in self.optimizers for each in parameters(known)}
            if any(id(each) in held for each in parameters(optimizer)):
                raise ValueError("two optimizers share parameters, which `precision='fp16'` does not allow; use 'bf16'")
        self.optimizers.append(optimizer)
        return optimizer

    def forget(self, model: nn.Module) -> None:
        """Lets go of a prepared model: it may be prepared again, and this engine drops no gradients of it any more.

        Args:
            model: the module, as it was given or as it was returned.
        """
        self.models = [each for each in self.models if unwrap(each) is not unwrap(model)]
        self._replicas = [each for each in self._replicas if each.module is not unwrap(model)]

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

    # ---- one micro-batch

    def accumulate(self, *models: nn.Module, n_samples: float | None = None, last: bool | None = None) -> Scope:
        """The context of one micro-batch: its forward, backward and step.

        Args:
            models: the modules it trains; None given means all prepared ones.
            n_samples: what its mean loss is a mean over: samples, tokens, or any weight of at least 0. Several ranks
                add theirs up over the network. None: the samples that the prepared loader counts, else equal weights.
            last: whether it ends its window; None leaves that to the window's length and the prepared loader's end.

        Returns:
            A context manager; an exception in it drops the window's gradients.
        """
        if self._is_single:
            return self._scope
        self._window.begin(n_samples, last)
        closes = self._window.closes
        for replica in models or self._replicas:
            if isinstance(replica, DataParallel):
                replica.synchronise(closes)
        return self._scope

    def autocast(self, cache: bool = True) -> ContextManager[Any]:
        """The context for forward and loss in the engine's precision.

        Args:
            cache: whether a weight that is used twice is cast once.
        """
        return self._no_autocast or self._precision.autocast(cache)

    def no_sync(self, *models: nn.Module) -> ContextManager[None]:
        """The context for forwards and backwards whose gradients stay on their rank; nothing in one process.

        Args:
            models: the modules concerned; none given means all prepared ones.
        """
        return unsynchronised([each for each in models or self._replicas if isinstance(each, DataParallel)])

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the loss's gradients to the window, with its weight there.

        Args:
            loss: a scalar: the mean over the micro-batch.

        Raises:
            RuntimeError: a data-parallel module gets gradients that no forward of it has made known to the ranks.
        """
        if self._replicas:
            self._backward_replicas(loss)
            return
        if not self._is_single:
            loss = self._window.weigh(loss)
        self._backward(loss)

    def _backward(self, loss: torch.Tensor) -> None:
        if self._is_fp32:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._precision.backward(loss, self.optimizers)

    def _backward_replicas(self, loss: torch.Tensor) -> None:
        synchronised = [each for each in self._replicas if each.require_backward_grad_sync]
        if len(synchronised) == 1 and synchronised[0].was_called:  # it can only be the one that the loss went through
            self._backward(self._window.weigh(loss))
            synchronised[0].was_called = False
            return
        marks = [(each, gradient_marks(each)) for each in synchronised]
        self._backward(self._window.weigh(loss))
        check_synchronised([(each, before) for each, before in marks if not each.was_called])
        for each, before in marks:
            each.was_called = each.was_called and gradient_marks(each) == before

    def clip_grad_norm(
        self, optimizers: Optimizer | Sequence[Optimizer], max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor | None:
        """Clips the joint norm of the unscaled gradients, between backward and step.

        Args:
            optimizers: whose gradients; with several, those that hold inf or NaN are left out and will not step.
            max_norm: the largest norm allowed.
            norm_type: the order of the norm; may be inf.

        Returns:
            The norm before, or None where the window is not complete yet.
        """
        if not self._window.closes:
            return None
        chosen = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
        finite = [self._precision.unscale(each) for each in chosen]
        norm, skipped = clipping.clip_norm(chosen, finite, max_norm, norm_type)
        self._skipped.difference_update(id(each) for each in chosen)
        self._skipped.update(id(each) for each in skipped)
        return norm

    def clip_grad_value(self, optimizers: Optimizer | Sequence[Optimizer], max_value: float) -> None:
        """Clips each element of the unscaled gradients to [-max_value, max_value]; nothing before the window's end."""
        if self._window.closes:
            for each in [optimizers] if isinstance(optimizers, Optimizer) else optimizers:
                if self._precision.unscale(each):
                    clipping.clip_value(each, max_value)

    def step(self, optimizer: Optimizer) -> bool:
        """Updates the parameters at the window's end: unscale, step unless overflowed, free the gradients.

        Args:
            optimizer: a prepared one.

        Returns:
            Whether parameters changed; advance a step scheduler only then. False within a window.

        Raises:
            RuntimeError: it is not prepared, though gradients are accumulated.
        """
        if self._window.steps > 1:
            self._check_prepared(optimizer)
        if not self._window.closes:
            return False
        if self._is_fp32 and not self._skipped:
            optimizer.step()
            optimizer.zero_grad()
            return True
        changed = self._step_one(optimizer)
        optimizer.zero_grad()
        return changed

    def step_all(self, optimizers: Sequence[Optimizer]) -> list[bool]:
        """Steps several optimizers and only then frees the gradients, which they may share.

        Args:
            optimizers: prepared ones.

        Returns:
            For each whether its parameters changed; all False within a window.

        Raises:
            RuntimeError: one is not prepared, though gradients are accumulated.
        """
        if self._window.steps > 1:
            for optimizer in optimizers:
                self._check_prepared(optimizer)
        if not self._window.closes:
            return [False] * len(optimizers)
        changed = [self._step_one(optimizer) for optimizer in optimizers]
        for optimizer in optimizers:
            optimizer.zero_grad()
        return changed

    def _step_one(self, optimizer: Optimizer) -> bool:
        if id(optimizer) in self._skipped:
            self._skipped.discard(id(optimizer))
            self._precision.skip(optimizer)
            return False
        return self._precision.step(optimizer)

    def _check_prepared(self, optimizer: Optimizer) -> None:
        if optimizer not in self.optimizers:
            raise RuntimeError(
                f"{type(optimizer).__name__} is not prepared: its gradients would miss the window's weights; "
                "pass it to prepare() first"
            )
        window = self._window
        if window.is_open and window.closes and not window.is_trained:
            window.leave_out()  # this is the update of what earlier micro-batches left

    def _end_micro_batch(self) -> None:
        if self._window.is_open and not self._window.is_trained:
            self._leave_out()
        if self._window.closes:
            self._precision.update()
            self._skipped.clear()
        self._window.end()
        for replica in self._replicas:
            replica.synchronise(True)

    def _leave_out(self) -> None:
        """A micro-batch that had no backward: what its window holds without it."""
        try:
            waits = self._window.leave_out()
            if waits and self.when_left_out is None:
                raise RuntimeError(
                    "the micro-batch that ends the window had no backward and no step(), and gradients of "
                    f"{self._window.trained} earlier ones wait: call engine.step() in it all the same"
                )
        except RuntimeError:
            self.drop_window()
            raise
        if waits and self.when_left_out is not None:
            self.when_left_out()

    def drop_window(self) -> None:
        """Drops what an unfinished window left: gradients, weights and scaling state; finished updates stay."""
        for model in self.models:
            model.zero_grad()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self._precision.drop()
        self._skipped.clear()
        self._window.restart()
        for replica in self._replicas:
            replica.synchronise(True)

    def _rescale_gradients(self, factor: float) -> None:
        held = {id(grad): grad for optimizer in self.optimizers for grad in gradients(optimizer)}
        multiply(list(held.values()), factor)  # once each, also where optimizers share parameters

    # ---- several processes

    def check_replicas(self) -> None:
        """Checks that all ranks hold the same weights, between updates: one small exchange.

        Raises:
            RuntimeError: they have parted.
        """
        for replica in self._replicas:
            own = fingerprint(replica)
            greatest, least = self.reduce(torch.tensor([own, -own]), "max").tolist()
            if greatest != -least:
                raise RuntimeError(
                    f"the ranks' weights of {type(replica.module).__name__} have parted: some update was not "
                    "synchronised. Each backward needs a forward of the prepared module before it, and nothing but "
                    "the optimizers may change weights on one rank alone"
                )

    def sync_buffers(self, model: nn.Module) -> None:
        """Gives all ranks rank 0's buffers, such as batch norm's running means: those that a checkpoint holds.

        Args:
            model: any module; the exchange is one a dtype, and none without buffers or in one process.
        """
        if self.world_size > 1:
            for alike in buffers_by_dtype(unwrap(model)):
                joined = torch.cat([each.detach().reshape(-1) for each in alike])
                for each, part in zip(alike, self.broadcast(joined).split([each.numel() for each in alike])):
                    each.detach().copy_(part.view_as(each))

    def barrier(self) -> None:
        """Waits until every process is here."""
        self.processes.barrier()

    def meet(self, name: str, timeout_s: float) -> bool:
        """Whether all processes come to this place soon; without a collective, which could wait for ever."""
        return self.processes.meet(name, timeout_s)

    def reduce(self, data: Any, op: str = "sum") -> Any:
        """Combines nested tensors and numbers over the processes: 'sum', 'mean', 'max' or 'min'."""
        return self.processes.reduce(data, op)

    def gather(self, data: Any) -> Any:
        """Joins nested tensors of all processes along their first dimension, in the order of the ranks."""
        return self.processes.gather(data)

    def broadcast(self, data: Any, source: int = 0) -> Any:
        """Copies one process's nested tensors into those of the others, in place."""
        return self.processes.broadcast(data, source)

    def gather_object(self, item: Any) -> list[Any]:
        """One plain object of each process, in the order of the ranks."""
        return self.processes.gather_object(item)

    def broadcast_object(self, item: Any, source: int = 0) -> Any:
        """The plain object of the process `source`."""
        return self.processes.broadcast_object(item, source)

    def main_process_first(self) -> ContextManager[None]:
        """Runs a block in the main process and only then in the others; if it fails there, they fail too."""
        return self.processes.main_first()

    # ---- state

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """A module's state with canonical names, see `deepepochs.engine.model_state`."""
        return state.model_state(model)

    def load_model_state(self, model: nn.Module, values: Mapping[str, Any]) -> None:
        """Loads a state with canonical names into a module, however it is wrapped."""
        state.load_model_state(model, values)

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs of the engine itself: the loss scale and the loaders' seed."""
        return {"scaler": self._precision.state_dict(), "seed": self.seed}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        seed = None if values["seed"] is None else check_seed(values["seed"])
        self._precision.load_state_dict(values["scaler"])
        self.seed = seed
        for loader in self._loaders:
            loader.reseed(seed)

    # ---- life

    def close(self) -> None:
        """Leaves the process group, if this engine joined it; may be called again."""
        self.processes.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()
