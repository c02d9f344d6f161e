"""Callback: the hooks that a callback of Lightning's kind may have."""

from __future__ import annotations

from typing import Any, Mapping


class Callback:
    """Base of callbacks; each hook gets the trainer and the module first.

    The trainer sets `log` and `log_dict` to the module's.
    """

    log: Any
    log_dict: Any

    @property
    def state_key(self) -> str:
        """The name of its state in checkpoints."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """A run begins: 'fit', 'validate', 'test' or 'predict'."""

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """A run ends."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """fit() begins; the module is on its device."""

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """fit() ends."""

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """The validation before training begins."""

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """It ends."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training ends."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """A training epoch begins."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A training epoch ends."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A training batch begins."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A training batch ends."""

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """A validation begins."""

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """A validation ends."""

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The validation's batches begin."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The validation's batches are over."""

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A validation batch begins."""

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A validation batch ends."""

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """A test begins."""

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """A test ends."""

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The test's batches begin."""

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The test's batches are over."""

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A test batch begins."""

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A test batch ends."""

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """A prediction begins."""

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """A prediction ends."""

    def on_predict_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The prediction's batches begin."""

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The prediction's batches are over."""

    def on_predict_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A prediction batch begins."""

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A prediction batch ends."""

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The loss is there, the gradients are not."""

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """The gradients are there, not yet unscaled."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The optimizer is about to step; the gradients are unscaled, not clipped."""

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The gradients are about to be freed."""

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """An exception ends the run."""

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written; it may be changed."""

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint was read."""
