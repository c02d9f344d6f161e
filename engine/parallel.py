"""Data parallel: DistributedDataParallel with the bare module's names, and without its forward in evaluation."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class DataParallel(DistributedDataParallel):
    """A replica whose gradients are averaged over the ranks.

    Without gradients it calls the bare module: no rank waits for another, so shards may be uneven.
    Its state dict has the bare module's names.
    """

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward; synchronised only where gradients are."""
        if not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The bare module's state."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads the bare module's state."""
        return self.module.load_state_dict(*args, **kwargs)


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


def unwrap(module: nn.Module) -> nn.Module:
    """The module as its author wrote it, without the wrappers of data parallel and compilation."""
    while True:
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod  # type: ignore[assignment]
        else:
            return module


@contextlib.contextmanager
def unsynchronised(modules: list[DataParallel]) -> Iterator[None]:
    """Keeps backward from synchronising gradients."""
    before = [module.require_backward_grad_sync for module in modules]
    for module in modules:
        module.require_backward_grad_sync = False
    try:
        yield
    finally:
        for module, flag in zip(modules, before):
            module.require_backward_grad_sync = flag
