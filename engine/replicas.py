"""Replicas: the models that train on several ranks at once, kept alike; where another way to train them would begin."""

from __future__ import annotations

import datetime
import inspect
from typing import Any, Callable, ContextManager, Mapping, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .data_parallel import DataParallel, unsynchronised, wrap
from .processes.group import Processes

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


def check_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a user says of several ranks, checked in one process too: it is found out before the first job of many.

    Args:
        options: keyword arguments of DistributedDataParallel; also `timeout` and `sync_batchnorm`.

    Raises:
        TypeError: they are no mapping, or one is unknown.
        ValueError: `timeout` is no number of seconds.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"`ddp_options` must be a dictionary of options, got {type(options).__name__}")
    found = dict(options or {})
    known = {*inspect.signature(DistributedDataParallel.__init__).parameters, "timeout", "sync_batchnorm"}
    known -= {"self", "module"}
    unknown = [name for name in found if name not in known]
    if unknown:
        raise TypeError(f"`ddp_options` must be some of {sorted(known)}, got {', '.join(map(repr, unknown))}")
    timeout = found.get("timeout", 1)
    most = datetime.timedelta.max.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < most:
        raise ValueError(f"`timeout` in `ddp_options` must be a finite number of seconds above 0, got {timeout!r}")
    return found


class Replicas:
    """The prepared models of this rank that have their like on the others; none where there is one process.

    All that the engine knows of how several ranks train one model is asked here, so that models which are cut up rather
    than copied need another class of these methods and nothing else.

    Args:
        processes: the ranks.
        device: where this rank's models are.
        options: keyword arguments of DistributedDataParallel, and `sync_batchnorm`.

    Attributes:
        members: the wrapped models.
    """

    def __init__(self, processes: Processes, device: torch.device, options: dict[str, Any]) -> None:
        self._processes, self._device, self._options = processes, device, options
        self.members: list[DataParallel] = []

    def add(self, model: nn.Module) -> nn.Module:
        """Makes a model, on its device already, one of several alike; one that has nothing to train stays as it is."""
        if self._processes.world_size == 1:
            return model
        wrapped = wrap(model, self._device, self._options)
        if isinstance(wrapped, DataParallel):
            self.members.append(wrapped)
            self._processes.admit(wrapped)
        return wrapped

    def forget(self, model: nn.Module) -> None:
        """Lets go of a model, as it was given or as it was returned."""
        for each in self.members:
            if each.module is unwrap(model):
                each.leave_group()  # it holds the weights and the group, and hooks at each parameter
        self.members = [each for each in self.members if each.module is not unwrap(model)]

    # ---- gradients

    def _chosen(self, models: Sequence[nn.Module]) -> list[DataParallel]:
        return [each for each in models or self.members if isinstance(each, DataParallel)]

    def synchronise(self, models: Sequence[nn.Module], wanted: bool) -> None:
        """Chooses whether the next backward exchanges the gradients of some models, none given means of all."""
        for each in self._chosen(models):
            each.synchronise(wanted)

    def no_sync(self, models: Sequence[nn.Module]) -> ContextManager[None]:
        """The context for backwards whose gradients stay here, of some models, none given means of all."""
        return unsynchronised(self._chosen(models))

    def backward(self, loss: torch.Tensor, run: Callable[[torch.Tensor], None]) -> None:
        """Runs a backward and sees to it that the gradients it leaves are those of all ranks.

        Args:
            loss: with its weight.
            run: adds its gradients.

        Raises:
            RuntimeError: a model gets gradients that no forward of it has made known to the ranks.
        """
        synchronised = [each for each in self.members if each.require_backward_grad_sync]
        if len(synchronised) == 1 and synchronised[0].was_called:  # it can only be the one that the loss went through
            run(loss)
            synchronised[0].was_called = False
            return
        marks = [(each, gradient_marks(each)) for each in synchronised]
        run(loss)
        check_synchronised([(each, before) for each, before in marks if not each.was_called])
        for each, before in marks:
            each.was_called = each.was_called and gradient_marks(each) == before

    # ---- values

    def check(self) -> None:
        """Checks that all ranks hold the same weights: one small exchange a model.

        Raises:
            RuntimeError: they have parted.
        """
        for replica in self.members:
            own = fingerprint(replica)
            greatest, least = self._processes.reduce(torch.tensor([own, -own]), "max").tolist()
            if greatest != -least:
                raise RuntimeError(
                    f"the ranks' weights of {type(replica.module).__name__} have parted: some update was not "
                    "synchronised. Each backward needs a forward of the prepared module before it, and nothing but "
                    "the optimizers may change weights on one rank alone"
                )

    def sync_buffers(self, model: nn.Module) -> None:
        """Gives all ranks rank 0's buffers of any module; the exchange is one a dtype."""
        if self._processes.world_size > 1:
            for alike in buffers_by_dtype(unwrap(model)):
                joined = torch.cat([each.detach().reshape(-1) for each in alike])
                parts = self._processes.broadcast(joined).split([each.numel() for each in alike])
                for each, part in zip(alike, parts):
                    each.detach().copy_(part.view_as(each))


def gradient_marks(replica: DataParallel) -> list[tuple[int, int] | None]:
    """What changes with each gradient that a replica's parameters get."""
    return [None if each.grad is None else (id(each.grad), each.grad._version) for each in replica.parameters()]


def check_synchronised(replicas: list[tuple[DataParallel, list[tuple[int, int] | None]]]) -> None:
    """Refuses gradients of this rank alone.

    Args:
        replicas: were not called for a backward, with their `gradient_marks` before it.

    Raises:
        RuntimeError: one of them has got gradients.
    """
    for replica, before in replicas:
        if gradient_marks(replica) != before:
            raise RuntimeError(
                f"gradients reached {type(replica.module).__name__} past its data-parallel forward, so they are of "
                "this rank alone and the ranks' weights would part; call the module that prepare() returned (in step "
                "methods self.model) for what is trained, not its `.module` or a part of it"
            )


def buffers_by_dtype(module: nn.Module) -> list[list[torch.Tensor]]:
    """A module's buffers, those of one dtype together."""
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for each in module.buffers():
        found.setdefault(each.dtype, []).append(each)
    return list(found.values())


def fingerprint(replica: DataParallel) -> int:
    """A sum over the bits of all trained parameters: equal wherever they are equal (a sync point)."""
    sums = []
    for name, each in replica.module.named_parameters():
        if each.requires_grad and name not in replica.parameters_to_ignore:
            bits = (torch.view_as_real(each) if each.is_complex() else each).detach().contiguous()
            sums.append(bits.view(INTEGERS[bits.element_size()]).sum(dtype=torch.int64))
    return int(torch.stack(sums).sum()) if sums else 0


def unwrap(module: nn.Module) -> nn.Module:
    """The module as its author wrote it, without the wrappers of data parallel and compilation."""
    while True:
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod  # type: ignore[assignment]
        else:
            return module
