"""Data parallel: DistributedDataParallel with the bare module's names, and without its forward in evaluation."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten

PLAIN = (torch.Tensor, bool, int, float, complex, str, bytes, type(None))


class DataParallel(DistributedDataParallel):
    """A replica whose gradients are averaged over the ranks.

    Without gradients it calls the bare module: no rank waits for another, so shards may be uneven.
    Its state dict has the bare module's names.

    Attributes:
        is_held: whether a `no_sync` is open.
        was_called: whether a forward has prepared the synchronisation of the next backward's gradients.
    """

    was_called = False
    is_held = False

    def synchronise(self, wanted: bool) -> None:
        """Chooses whether the next backward synchronises; within `no_sync` it does not in any case."""
        self.require_backward_grad_sync = wanted and not self.is_held

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward; synchronised only where gradients are."""
        if not torch.is_grad_enabled() or self.reducer is None:
            return self.module(*inputs, **kwargs)
        if self.require_backward_grad_sync:
            self.was_called = True
        output = super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        if self.static_graph:
            check_static(output)
        return output

    def leave_group(self) -> None:
        """Lets go of the process group when that ends; from then on this is the bare module."""
        vars(self).update(reducer=None, logger=None, process_group=None)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The bare module's state."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads the bare module's state."""
        return self.module.load_state_dict(*args, **kwargs)


def check_static(output: Any) -> None:
    """Refuses outputs in which torch does not find the tensors that a static graph's first backward starts from.

    Raises:
        RuntimeError: there is a container that torch does not open, such as a dataclass.
    """
    closed = [leaf for leaf in tree_flatten(output)[0] if not isinstance(leaf, PLAIN)]
    if closed:
        raise RuntimeError(
            f"with `static_graph=True` a model's output must be tensors in tuples, lists and dictionaries, got "
            f"{type(closed[0]).__name__}: torch would not average the gradients behind it. Leave `static_graph` out"
        )


def wrap(module: nn.Module, device: torch.device, options: dict[str, Any]) -> nn.Module:
    """Makes a module data parallel.

    Args:
        module: on its device already.
        device: this rank's.
        options: keyword arguments of DistributedDataParallel, and `sync_batchnorm`.

    Raises:
        ValueError: batch norms cannot be synchronised on this device.

    Returns:
        The wrapped module; the module itself where nothing in it is trained.
    """
    options = dict(options)
    if options.pop("sync_batchnorm", False):
        if device.type != "cuda":
            raise ValueError(f"`sync_batchnorm` in `ddp_options` needs CUDA devices, got {device}; leave it out")
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    if not any(each.requires_grad for each in module.parameters()):
        return module
    if device.type == "cuda":
        options.setdefault("device_ids", [device.index])
    return DataParallel(module, **options)


@contextlib.contextmanager
def unsynchronised(modules: list[DataParallel]) -> Iterator[None]:
    """Keeps backward from synchronising gradients."""
    before = [(module.require_backward_grad_sync, module.is_held) for module in modules]
    for module in modules:
        module.require_backward_grad_sync, module.is_held = False, True
    try:
        yield
    finally:
        for module, (flag, held) in zip(modules, before):
            module.require_backward_grad_sync, module.is_held = flag, held
