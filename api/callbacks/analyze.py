"""AnalyzeCallback: the distribution of every layer's outputs, or of the gradients that reach them."""

from __future__ import annotations

from typing import Any, Mapping

import torch

from deepepochs.engine import leaves, unwrap

from ..protocols import Run
from .base import Callback


class AnalyzeCallback(Callback):
    """Writes mean, standard deviation and histogram of each layer to TensorBoard while it trains.

    A layer that is called several times in a batch is seen once: its last output, or the gradient of its first. In fp16
    gradients carry the loss scale, and in an accumulation window the batch's weight.

    Args:
        mode: 'forward' looks at the outputs, 'backward' at the gradients of the outputs.
        log_dir: the folder of all runs.
        every: look at every so many batches.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(self, mode: str = "backward", log_dir: str = "./logs", every: int = 1) -> None:
        super().__init__()
        if mode not in ("forward", "backward"):
            raise ValueError(f"`mode` must be 'forward' or 'backward', got {mode!r}")
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"`every` must be a whole number of at least 1, got {every!r}")
        self.mode, self.log_dir, self.every = mode, log_dir, every
        self._batches = 0
        self._looks = False
        self._seen: dict[str, torch.Tensor] = {}

    def on_before_fit(self, trainer: Run, epochs: int) -> None:
        """Opens the log and hooks the layers; the hooks go with the end of the fit, however it ends."""
        trainer.writer.open(self.log_dir, self.last_step)
        if not trainer.main_process:
            return
        for name, module in unwrap(trainer.model).named_modules():
            if not list(module.children()):
                handle = module.register_forward_hook(self._hook(name or type(module).__name__))
                trainer.cleanup.callback(handle.remove)

    def _hook(self, name: str) -> Any:
        def after_forward(module: Any, inputs: Any, output: Any) -> None:
            if not self._looks:
                return
            tensors = [each for each in leaves(output) if isinstance(each, torch.Tensor) and each.is_floating_point()]
            if not tensors:
                return
            if self.mode == "forward":
                self._seen[name] = tensors[0].detach().clone()  # a later layer may change it in place
            elif tensors[0].requires_grad:
                tensors[0].register_hook(after_backward)  # type: ignore[no-untyped-call]

        def after_backward(gradient: torch.Tensor) -> None:
            self._seen[name] = gradient.detach().clone()

        return after_forward

    def on_before_train_batch(self, trainer: Run, batch_x: Any, batch_y: Any, batch_idx: int) -> None:
        """Decides whether to look at this batch."""
        self._looks = trainer.main_process and self._batches % self.every == 0
        self._batches += 1

    def on_after_train_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """Writes what was seen (a sync point)."""
        seen, self._seen, self._looks = self._seen, {}, False
        values: dict[str, float] = {}
        for name, tensor in seen.items():
            tensor = tensor.float()
            values[f"{self.mode}_mean/{name}"] = float(tensor.mean())
            values[f"{self.mode}_std/{name}"] = float(tensor.std(unbiased=False))
            if bool(torch.isfinite(tensor).all()):  # a histogram of anything else does not exist
                trainer.writer.board.add_histogram(f"{self.mode}/{name}", tensor, self._batches)
        trainer.writer.scalars(values, self._batches)

    def on_before_val_epochs(self, trainer: Run, tasks: Any, epoch_idx: int) -> None:
        """Does not look at evaluation."""
        self._looks = False

    def on_after_fit(self, trainer: Run) -> None:
        """Brings the log onto the disk."""
        trainer.writer.flush()

    def last_step(self, tag: str, epochs: int) -> int | None:
        """The last step of a curve that was counted; None for those of others, and if nothing was counted."""
        is_own = tag.split("/")[0] in (self.mode, f"{self.mode}_mean", f"{self.mode}_std")
        return self._batches or None if is_own else None

    def state_dict(self) -> dict[str, Any]:
        """How many batches were counted."""
        return {"batches": self._batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on counting there."""
        self._batches = state["batches"]

    def run_tensorboard(self) -> Any:
        """Starts TensorBoard on the log folder, see `deepepochs.run_tensorboard`."""
        from ..board import run_tensorboard

        return run_tensorboard(self.log_dir)
