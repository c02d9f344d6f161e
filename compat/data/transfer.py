"""Transfer: a batch's way onto the device, through the hooks of module or data module."""

from __future__ import annotations

from typing import Any, Callable

from deepepochs.engine import placer

from ..overrides import base_of, is_untouched, overrides

HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class Transfer:
    """Moves batches for one run; hooks that would do nothing are not called.

    Args:
        trainer: its module, device and precision.
        datamodule: whose hooks count more than the module's, None for none.
    """

    def __init__(self, trainer: Any, datamodule: Any) -> None:
        self._device = trainer.strategy.root_device
        self._convert = None if trainer.precision_plugin.dtype is None else trainer.precision_plugin.convert_input
        self._before, self._move, self._after = [self._choose(trainer, datamodule, hook) for hook in HOOKS]
        self._place = placer(self._device)

    def _choose(self, trainer: Any, datamodule: Any, hook: str) -> Callable[..., Any] | None:
        """How to call a hook; the data module's where it has one, else the module's; None where it is the default."""
        module, calls = trainer.lightning_module, trainer.calls
        owner, base, call = module, "LightningModule", calls.module
        if datamodule is not None and overrides(datamodule, hook, "LightningDataModule"):
            owner, base, call = datamodule, "LightningDataModule", calls.datamodule
        parent = base_of(type(owner), base)
        if parent is None or is_untouched(owner, hook, base):
            return None
        return lambda *args: call(hook, *args)

    def __call__(self, batch: Any, loader_index: int) -> Any:
        if self._convert is not None:
            batch = self._convert(batch)
        if self._before is not None:
            batch = self._before(batch, loader_index)
        batch = self._place(batch) if self._move is None else self._move(batch, self._device, loader_index)
        return batch if self._after is None else self._after(batch, loader_index)
