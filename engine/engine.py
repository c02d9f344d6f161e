"""Engine: the one face over device, precision, accumulation, processes and data; for custom loops and the trainer."""

from __future__ import annotations

import datetime
import functools
import weakref
from typing import Any, Callable, ContextManager, Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from . import state
from .accumulation import Scope, Window, check_steps
from .data import Loader
from .device import choose_device
from .precision import Precision
from .preparation import Preparation
from .processes.group import Processes, find_place
from .replicas import Replicas, check_options
from .seeding import check_seed
from .updates import Updates, rescale


class Engine(Preparation):
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
        TypeError: `ddp_options` is no mapping, or holds an option that nobody knows.
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
        steps = check_steps(gradient_accumulation_steps)
        seed = None if seed is None else check_seed(seed)
        place = find_place()
        self.device = choose_device(device, place.local_rank)
        self._precision = Precision(precision, self.device)
        options = check_options(ddp_options)
        timeout = datetime.timedelta(seconds=options.pop("timeout", 1800))
        self.processes = Processes(place, self.device, timeout)
        self.split_batches = split_batches
        if seed is None and self.world_size > 1:
            seed = self.processes.broadcast_object(torch.initial_seed())
        self.seed = seed
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self._replicas = Replicas(self.processes, self.device, options)
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()
        self._window = Window(
            steps,
            self.processes.rank,
            self.world_size,
            self.processes.sum_later,
            functools.partial(rescale, self.optimizers),
            self.drop_window,
        )
        self._is_single = self._window.is_single
        self._updates = Updates(self._precision, self._window, self.optimizers)
        self._is_fp32 = precision == "fp32"
        self._is_plain = self._is_single and self._is_fp32  # each micro-batch is an update, and no loss has a factor
        self._no_autocast = self._precision.autocast() if self._is_fp32 else None
        waits = not self._is_single or precision == "fp16"
        self._scope = Scope(self._end_micro_batch if waits else None, self.drop_window)
        self.when_left_out: Callable[[], None] | None = None

    # ---- what it is

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
        if self._replicas.members:
            self._replicas.synchronise(models, self._window.closes)
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
        return self._replicas.no_sync(models)

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the loss's gradients to the window, with its weight there.

        Args:
            loss: a scalar: the mean over the micro-batch.

        Raises:
            RuntimeError: a data-parallel module gets gradients that no forward of it has made known to the ranks.
        """
        if self._is_plain:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        if not self._is_single:
            loss = self._window.weigh(loss)
        if self._replicas.members:
            self._replicas.backward(loss, self._backward)
        else:
            self._backward(loss)

    def _backward(self, loss: torch.Tensor) -> None:
        if self._is_fp32:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._precision.backward(loss, self.optimizers)

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
        return self._updates.clip_norm(optimizers, max_norm, norm_type)

    def clip_grad_value(self, optimizers: Optimizer | Sequence[Optimizer], max_value: float) -> None:
        """Clips each element of the unscaled gradients to [-max_value, max_value]; nothing before the window's end."""
        self._updates.clip_value(optimizers, max_value)

    def step(self, optimizer: Optimizer) -> bool:
        """Updates the parameters at the window's end: unscale, step unless overflowed, free the gradients.

        Args:
            optimizer: a prepared one.

        Returns:
            Whether parameters changed; advance a step scheduler only then. False within a window.

        Raises:
            RuntimeError: it is not prepared, though gradients are accumulated.
        """
        if self._is_plain and not self._updates.skipped:
            optimizer.step()
            optimizer.zero_grad()
            return True
        return self._updates.step(optimizer)

    def step_all(self, optimizers: Sequence[Optimizer]) -> list[bool]:
        """Steps several optimizers and only then frees the gradients, which they may share.

        Args:
            optimizers: prepared ones.

        Returns:
            For each whether its parameters changed; all False within a window.

        Raises:
            RuntimeError: one is not prepared, though gradients are accumulated.
        """
        return self._updates.step_all(optimizers)

    def _end_micro_batch(self) -> None:
        if self._window.is_open and not self._window.is_trained:
            self._leave_out()
        if self._window.closes:
            self._updates.end_window()
        self._window.end()
        if self._replicas.members:
            self._replicas.synchronise((), True)

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
        self._updates.drop()
        self._window.restart()
        if self._replicas.members:
            self._replicas.synchronise((), True)

    # ---- several processes

    def check_replicas(self) -> None:
        """Checks that all ranks hold the same weights, between updates: one small exchange.

        Raises:
            RuntimeError: they have parted.
        """
        self._replicas.check()

    def sync_buffers(self, model: nn.Module) -> None:
        """Gives all ranks rank 0's buffers, such as batch norm's running means: those that a checkpoint holds.

        Args:
            model: any module; the exchange is one a dtype, and none without buffers or in one process.
        """
        self._replicas.sync_buffers(model)

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
