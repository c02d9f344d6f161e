"""Module hooks: those that do nothing, or little, unless a module overrides them."""

from __future__ import annotations

from typing import Any, Callable


class ModuleHooks:
    """The hooks of training and evaluation, in Lightning's words."""

    trainer: Any
    zero_grad: Callable[..., None]

    def on_fit_start(self) -> None:
        """fit() begins; the module is on its device."""

    def on_fit_end(self) -> None:
        """fit() ends."""

    def on_train_start(self) -> None:
        """Training begins."""

    def on_train_end(self) -> None:
        """Training ends."""

    def on_train_epoch_start(self) -> None:
        """A training epoch begins."""

    def on_train_epoch_end(self) -> None:
        """A training epoch ends."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A training batch ends."""

    def on_validation_start(self) -> None:
        """A validation begins."""

    def on_validation_end(self) -> None:
        """A validation ends."""

    def on_validation_epoch_start(self) -> None:
        """The validation's batches begin."""

    def on_validation_epoch_end(self) -> None:
        """The validation's batches are over."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A validation batch begins."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A validation batch ends."""

    def on_test_start(self) -> None:
        """A test begins."""

    def on_test_end(self) -> None:
        """A test ends."""

    def on_test_epoch_start(self) -> None:
        """The test's batches begin."""

    def on_test_epoch_end(self) -> None:
        """The test's batches are over."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A test batch begins."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A test batch ends."""

    def on_predict_start(self) -> None:
        """A prediction begins."""

    def on_predict_end(self) -> None:
        """A prediction ends."""

    def on_predict_epoch_start(self) -> None:
        """The prediction's batches begin."""

    def on_predict_epoch_end(self) -> None:
        """The prediction's batches are over."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A prediction batch begins."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A prediction batch ends."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        """The gradients are about to be freed."""

    def on_before_backward(self, loss: Any) -> None:
        """The loss is there, the gradients are not."""

    def on_after_backward(self) -> None:
        """The gradients are there, not yet unscaled."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """The optimizer is about to step; the gradients are unscaled, not clipped."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written; it may be changed."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint was read."""

    def configure_model(self) -> None:
        """Makes or wraps layers, in each process, before the optimizers."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """A training batch begins; -1 skips the rest of the epoch."""
        return None

    def on_validation_model_eval(self) -> None:
        """Puts the module into evaluation mode."""
        self.trainer.model.eval()

    def on_test_model_eval(self) -> None:
        """Puts the module into evaluation mode."""
        self.trainer.model.eval()

    def on_predict_model_eval(self) -> None:
        """Puts the module into evaluation mode."""
        self.trainer.model.eval()

    def on_validation_model_train(self) -> None:
        """Puts the module back; overridden it is called instead of restoring each part's mode."""
        self.trainer.model.train()

    def on_test_model_train(self) -> None:
        """Puts the module back; overridden it is called instead of restoring each part's mode."""
        self.trainer.model.train()

    def on_validation_model_zero_grad(self) -> None:
        """Frees the gradients before a validation within training."""
        self.zero_grad()
