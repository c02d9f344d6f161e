"""Fitting: epoch after epoch, from the first hook to the last."""

from __future__ import annotations

import time
import warnings
from typing import Any, Mapping

import torch

from ..data.combined import Fetcher, known_length
from ..data.loaders import Source, gather, limited, set_epoch
from ..overrides import MisconfigurationException, overrides_module
from .progress import BEGINNING, ENDING, WITHIN, Progress
from .training_epoch_loop import EpochLoop


class FitLoop:
    """Trains for epochs.

    Args:
        trainer: who runs it.
        min_epochs: no early stop before.
        max_epochs: ends then; -1 never; None decides when fit() begins.
        min_steps: no early stop before so many updates.
        max_steps: ends after so many updates; -1 never.
    """

    def __init__(
        self, trainer: Any, min_epochs: int | None, max_epochs: int | None, min_steps: int | None, max_steps: int
    ) -> None:
        self.trainer = trainer
        self.min_epochs, self.max_epochs = min_epochs, max_epochs
        self.epoch_loop = EpochLoop(trainer, min_steps, max_steps)
        self.epoch_progress = Progress()
        self.max_batches: int | float = float("inf")
        self._data_source = Source("train_dataloader")
        self._combined_loader: Any = None
        self._data_fetcher: Any = None
        self._loaded_in_epoch = float("-inf")
        self.is_resuming = False  # until the first epoch after a checkpoint has ended
        self.is_restarting = False  # whether it goes on within an epoch, or by updates: metrics are not all there
        self._place: tuple[int, int, int] | None = None  # where in its epoch the checkpoint was written, if in one
        self._loader_states: list[Any] = []

    # ---- what others read

    @property
    def _results(self) -> Any:
        return self.epoch_loop._results

    @property
    def batch_idx(self) -> int:
        """The present batch's index in its epoch."""
        return self.epoch_loop.batch_idx

    @property
    def total_batch_idx(self) -> int:
        """The present batch's index in the run."""
        return self.epoch_loop.total_batch_idx

    @property
    def min_steps(self) -> int | None:
        """No early stop before so many updates."""
        return self.epoch_loop.min_steps

    @property
    def max_steps(self) -> int:
        """The last update; -1 for none."""
        return self.epoch_loop.max_steps

    @property
    def _can_stop_early(self) -> bool:
        enough_epochs = not self.min_epochs or self.epoch_progress.current.processed >= self.min_epochs
        return enough_epochs and (not self.min_steps or self.epoch_loop.global_step >= self.min_steps)

    @property
    def _skip_backward(self) -> bool:
        return self.epoch_loop.automatic_optimization._skip_backward

    @_skip_backward.setter
    def _skip_backward(self, value: bool) -> None:
        self.epoch_loop.automatic_optimization._skip_backward = value

    def _should_accumulate(self) -> bool:
        return self.epoch_loop.should_accumulate()

    def _is_done(self) -> bool:
        if self.max_batches == 0 or self.epoch_loop.has_reached_max_steps:
            return True
        current = self.epoch_progress.current
        assert self.max_epochs is not None
        if self.max_epochs != -1 and current.processed >= self.max_epochs:
            current.completed = current.processed
            return True
        return bool(self.trainer.should_stop) and self._can_stop_early

    # ---- the loop

    def run(self) -> None:
        """Trains."""
        self.setup_data()
        if self._is_done() or self.trainer.limit_train_batches == 0:
            return
        torch.set_grad_enabled(True)
        self._find_place()
        self._begin()
        while not self._is_done():
            self._epoch()
        self.trainer.calls.both("on_train_end")

    def _begin(self) -> None:
        trainer, current = self.trainer, self.epoch_progress.current
        if self.max_steps == -1:
            current.completed = current.processed
        if self.epoch_loop._should_check_val_epoch() and trainer.val_dataloaders is None:
            trainer.validating = True
            self.epoch_loop.val_loop.setup_data()
            trainer.training = True
        asleep = [name for name, each in trainer.lightning_module.named_modules() if not each.training]
        if asleep:
            warnings.warn(f"training begins with modules in evaluation mode: {asleep[:8]}", stacklevel=2)
        trainer.calls.both("on_train_start")

    def _epoch(self) -> None:
        trainer, progress = self.trainer, self.epoch_progress
        self.setup_data()
        set_epoch(self._combined_loader.flattened, progress.current.processed)
        if self._place not in (WITHIN, ENDING):
            if self._place != BEGINNING:
                progress.ready()
            trainer.calls.both("on_train_epoch_start")
            progress.started()
        if self._combined_loader.mode == "sequential":
            raise ValueError("training reads its loaders at once; pass CombinedLoader with another mode")
        try:
            self.epoch_loop.run(self._data_fetcher)
            self._end_epoch()
        finally:
            self.is_resuming = self.is_restarting = False
            self._place = None

    def _end_epoch(self) -> None:
        trainer, calls, loop = self.trainer, self.trainer.calls, self.epoch_loop
        trainer.logged.end_pass()
        self.epoch_progress.processed()
        calls.callbacks("on_train_epoch_end", monitoring=False)
        calls.module("on_train_epoch_end")
        calls.callbacks("on_train_epoch_end", monitoring=True)  # they may follow what the module has just logged
        trainer.logged.on_epoch_end()
        if loop.is_at_last_batch() and not self.is_restarting:
            loop.update_schedulers("epoch", plateau=True)
        loop._batches_that_stepped -= 1  # the epoch's metrics belong to its last batch
        trainer.logged.update_train_epoch()
        loop._batches_that_stepped += 1
        self.epoch_progress.completed()

    def teardown(self) -> None:
        """Lets go of the loaders' iterators."""
        if self._data_fetcher is not None:
            self._data_fetcher.teardown()
            self._data_fetcher = None
        self.epoch_loop.val_loop.teardown()

    # ---- data

    def setup_data(self) -> None:
        """Asks for the train loaders, once or as often as the trainer is to reload them."""
        trainer = self.trainer
        every = trainer.reload_dataloaders_every_n_epochs
        must_reload = every and trainer.current_epoch - self._loaded_in_epoch >= every
        if self._combined_loader is not None and not must_reload:
            return
        if trainer.limit_train_batches == 0 or not overrides_module(trainer.lightning_module, "training_step"):
            return
        combined = self._combined_loader = gather(self._data_source, "train", trainer)
        combined.limits = [
            limited("train", known_length(each), trainer.limit_train_batches) for each in combined.flattened
        ]
        self._load_loaders()
        self._data_fetcher = Fetcher(combined)
        batches = combined.length()
        self.max_batches = float("inf") if batches is None else batches
        if self.max_batches:
            self._loaded_in_epoch = trainer.current_epoch
            trainer.val_check_batch = self._validation_interval(is_known=batches is not None)

    def _validation_interval(self, is_known: bool) -> int | float | None:
        trainer, every = self.trainer, self.trainer.val_check_interval
        if trainer._val_check_time_interval is not None:
            trainer._last_val_time = time.monotonic()
            return None
        if isinstance(every, int):
            if (
                every > self.max_batches
                and trainer.check_val_every_n_epoch is not None
                and trainer.limit_val_batches > 0
            ):
                raise ValueError(
                    f"`val_check_interval={every}` is more than the epoch's {self.max_batches} batches; "
                    "`check_val_every_n_epoch=None` counts over epochs, `limit_val_batches=0` leaves validation out"
                )
            return every
        if not is_known:
            if every == 1.0:
                return float("inf")
            raise MisconfigurationException(
                f"`val_check_interval` must be 1.0 or a whole number for loaders of unknown length, got {every}"
            )
        return max(1, int(self.max_batches * every))

    def _load_loaders(self) -> None:
        stateful = [each for each in self._combined_loader.flattened if hasattr(each, "load_state_dict")]
        if self._loader_states and self.is_restarting:
            states, self._loader_states = self._loader_states, []
            if len(states) != len(stateful):
                raise RuntimeError(f"the checkpoint holds {len(states)} loaders' states, there are {len(stateful)}")
            for loader, state in zip(stateful, states):
                loader.load_state_dict(state)

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Where the fit stands, in Lightning's form."""
        loop = self.epoch_loop
        automatic, manual = loop.automatic_optimization, loop.manual_optimization
        own: dict[str, Any] = {}
        if self._combined_loader is not None:
            states = [each.state_dict() for each in self._combined_loader.flattened if hasattr(each, "load_state_dict")]
            if states:
                own["combined_loader"] = states
        return {
            "state_dict": own,
            "epoch_loop.state_dict": {"_batches_that_stepped": loop._batches_that_stepped},
            "epoch_loop.batch_progress": loop.batch_progress.state_dict(),
            "epoch_loop.scheduler_progress": loop.scheduler_progress.state_dict(),
            "epoch_loop.automatic_optimization.state_dict": {},
            "epoch_loop.automatic_optimization.optim_progress": {
                "optimizer": {
                    "step": automatic.steps.state_dict(),
                    "zero_grad": automatic.zero_grads.state_dict(),
                }
            },
            "epoch_loop.manual_optimization.state_dict": {},
            "epoch_loop.manual_optimization.optim_step_progress": manual.steps.state_dict(),
            "epoch_loop.val_loop.state_dict": {},
            "epoch_loop.val_loop.batch_progress": loop.val_loop.batch_progress.state_dict(),
            "epoch_progress": self.epoch_progress.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken, by this library or by Lightning."""
        loop = self.epoch_loop
        loop._batches_that_stepped = state["epoch_loop.state_dict"].get("_batches_that_stepped", 0)
        loop.batch_progress.load_state_dict(state["epoch_loop.batch_progress"])
        loop.scheduler_progress.load_state_dict(state["epoch_loop.scheduler_progress"])
        optimizer = state["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
        loop.automatic_optimization.steps.load_state_dict(optimizer["step"])
        loop.automatic_optimization.zero_grads.load_state_dict(optimizer["zero_grad"])
        manual = state["epoch_loop.manual_optimization.optim_step_progress"]
        loop.manual_optimization.steps.load_state_dict(manual)
        if "epoch_loop.val_loop.batch_progress" in state:
            loop.val_loop.batch_progress.load_state_dict(state["epoch_loop.val_loop.batch_progress"])
        self.epoch_progress.load_state_dict(state["epoch_progress"])
        self._loader_states = list(state["state_dict"].get("combined_loader", []))
        current = self.epoch_progress.current
        self.is_resuming = True
        is_unfinished = current.ready != current.processed or current.started != current.processed
        self.is_restarting = is_unfinished or loop.max_steps != -1  # by updates it goes on within the epoch, too
        loop.is_restarting = loop.val_loop.is_restarting = self.is_restarting

    def _find_place(self) -> None:
        """Decides where in its epoch a run goes on, by the moment in which its checkpoint was written (Lightning's)."""
        epoch, loop = self.epoch_progress, self.epoch_loop
        place = epoch.total.place()
        self._place = place if self.is_restarting and place in (BEGINNING, WITHIN, ENDING) else None
        loop.find_place()
        if self._place == BEGINNING:
            epoch.current.rewind()
        if self.is_resuming and not self.is_restarting and place == ENDING:
            epoch.completed()  # the next one follows
        if loop.place == ENDING and loop.batch_progress.is_last_batch:  # written in its last on_train_batch_end
            if self._place == WITHIN:
                epoch.processed()
                epoch.completed()
            elif not loop.val_loop.batch_progress.is_last_batch:
                epoch.completed()
