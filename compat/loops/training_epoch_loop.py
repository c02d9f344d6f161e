"""Epoch: the batches of one training epoch, with the validations between them."""

from __future__ import annotations

import time
import warnings
from typing import Any

from ..data.combined import Fetcher
from ..logs.results import Results
from ..overrides import MisconfigurationException, takes
from .evaluation import EvaluationLoop
from .optimization import AutomaticOptimization, ManualOptimization
from .progress import DONE, ENDING, BatchProgress, Progress


class EpochLoop:
    """Trains on the batches of an epoch.

    Args:
        trainer: who runs it.
        min_steps: no early stop before so many updates.
        max_steps: ends after so many updates; -1 never.
    """

    def __init__(self, trainer: Any, min_steps: int | None, max_steps: int) -> None:
        self.trainer = trainer
        self.min_steps, self.max_steps = min_steps, max_steps
        self.batch_progress = BatchProgress()
        self.scheduler_progress = Progress(("ready", "completed"))
        self.automatic_optimization = AutomaticOptimization(trainer)
        self.manual_optimization = ManualOptimization(trainer)
        self.val_loop = EvaluationLoop(trainer, "validate", inference_mode=False, verbose=False)
        self._results = Results(training=True)
        self._batches_that_stepped = 0
        self._takes_index = True
        self.is_restarting = False  # until the first batch after a checkpoint within an epoch
        self.place: tuple[int, int, int] | None = None  # where in its batch that checkpoint was written
        self._skips_validation = False  # whether the loaded batch has been validated

    # ---- where it stands

    @property
    def batch_idx(self) -> int:
        """The present batch's index in its epoch."""
        return self.batch_progress.current.ready - 1

    @property
    def total_batch_idx(self) -> int:
        """The present batch's index in the run."""
        return self.batch_progress.total.ready - 1

    @property
    def global_step(self) -> int:
        """Finished updates; each optimizer's count in manual optimisation."""
        module = self.trainer.lightning_module
        if module is None or module.automatic_optimization:
            return self.automatic_optimization.steps.total.completed
        return self.manual_optimization.steps.total.completed

    @property
    def has_reached_max_steps(self) -> bool:
        """Whether the last update is done."""
        return self.max_steps != -1 and self.global_step >= self.max_steps

    def is_at_last_batch(self) -> bool:
        """Whether the present batch is the epoch's last."""
        progress = self.batch_progress
        return progress.is_last_batch or progress.current.ready == self.trainer.num_training_batches

    def should_accumulate(self) -> bool:
        """Whether the present batch ends no update."""
        return self.batch_progress.current.ready % self.trainer.accumulate_grad_batches != 0 and (
            not self.is_at_last_batch()
        )

    def _is_done(self) -> bool:
        is_trained = self.has_reached_max_steps or self.is_at_last_batch()
        if is_trained and (not self.is_restarting or self.val_loop._has_run):
            return True
        return bool(self.trainer.should_stop) and self.trainer.fit_loop._can_stop_early

    # ---- the loop

    def run(self, fetcher: Fetcher) -> None:
        """Runs the epoch.

        Args:
            fetcher: gives the batches.
        """
        self._takes_index = takes(self.trainer.lightning_module.training_step, "batch_idx", at_least=2)
        if self.is_restarting:
            self._resume_pass()
        else:
            self.begin_pass()
            if self.trainer.current_epoch > 0 and not self.trainer.fit_loop.is_resuming:
                fetcher.begin()
        fetcher.fetched += self.batch_progress.current.ready
        while not self._is_done():
            try:
                if not self.is_restarting or self._may_go_on():
                    self._batch(fetcher)
                self._after_batch()
            except StopIteration:
                break
            finally:
                self.is_restarting = self.val_loop.is_restarting = False
        self.is_restarting = self.val_loop.is_restarting = False  # also where there was nothing left

    def find_place(self) -> None:
        """Notes in which moment of a batch the loaded checkpoint was written; None without one."""
        self.place = self.batch_progress.total.place() if self.is_restarting else None
        self.val_loop.find_place()

    def _resume_pass(self) -> None:
        """Counts go on; what had begun when the checkpoint was written begins anew."""
        if not self.should_accumulate() and self.place != DONE:
            self._batches_that_stepped += 1  # counted only after a batch's validation
        batches = self.batch_progress
        if self.place == ENDING:
            batches.completed()
            if batches.current.completed >= self.trainer.num_training_batches:
                self.begin_pass()
        steps, zero_grads = self.automatic_optimization.steps, self.automatic_optimization.zero_grads
        for progress in (batches, self.scheduler_progress, steps, zero_grads):
            progress.current.rewind()

    def _may_go_on(self) -> bool:
        """Whether the first batch after a checkpoint follows at once; else the loaded one is brought to its end."""
        if self._should_validate():
            if self.val_loop.is_within_pass:
                return False
            if self.place == DONE:
                self._skips_validation = True
                return False
            self.val_loop.pass_over()
        self.val_loop.is_restarting = False
        return True

    def begin_pass(self) -> None:
        """Counts of this epoch begin."""
        self.batch_progress.begin_pass()
        for progress in (self.scheduler_progress, self.automatic_optimization.steps):
            progress.current.reset()
        self.automatic_optimization.zero_grads.current.reset()
        self.val_loop.batch_progress.total.reset()

    def _batch(self, fetcher: Fetcher) -> None:
        trainer, calls, progress = self.trainer, self.trainer.calls, self.batch_progress
        batch, _, _ = next(fetcher)
        index = self.batch_idx + 1
        progress.is_last_batch = fetcher.done
        batch = trainer.transfer(batch, 0)
        progress.ready()
        trainer.logged.on_batch_start(batch)
        output: dict[str, Any] = {}
        skips_rest = False
        if batch is None:
            warnings.warn("the train loader gave None as a batch: it is skipped", stacklevel=2)
        else:
            skips_rest = calls.both("on_train_batch_start", batch, index) == -1
            if skips_rest:
                progress.is_last_batch = True
            else:
                progress.started()
                output = self._optimize(batch, index)
        progress.processed()
        self.update_schedulers("step", plateau=False)
        if self.is_at_last_batch():
            self.update_schedulers("epoch", plateau=False)
        if skips_rest:
            raise StopIteration
        calls.both("on_train_batch_end", output, batch, index)
        trainer.logged.on_batch_end()
        progress.completed()
        trainer.logged.update_train_step()

    def _optimize(self, batch: Any, index: int) -> dict[str, Any]:
        arguments = (batch, index) if self._takes_index else (batch,)
        if self.trainer.lightning_module.automatic_optimization:
            return self.automatic_optimization.run(index, arguments)
        return self.manual_optimization.run(arguments)

    def _after_batch(self) -> None:
        trainer = self.trainer
        validates = self._should_validate()
        if self._skips_validation:
            validates = self._skips_validation = False
        if validates:
            trainer.validating = True
            is_first = trainer.logged._first_batch
            if not self.should_accumulate():
                trainer.calls.module("on_validation_model_zero_grad")
            self.val_loop.run()
            trainer.training = True
            trainer.logged._first_batch = is_first
        self.update_schedulers("step", plateau=True)
        if not self.should_accumulate():
            self._batches_that_stepped += 1
        if trainer.should_stop:
            for logger in trainer.loggers:
                logger.save()

    # ---- validation

    def _should_check_val_epoch(self) -> bool:
        every = self.trainer.check_val_every_n_epoch
        return self.trainer.enable_validation and (every is None or (self.trainer.current_epoch + 1) % every == 0)

    def _should_validate(self) -> bool:
        trainer = self.trainer
        if not self._should_check_val_epoch():
            return False
        every, is_last = trainer.val_check_batch, self.batch_progress.is_last_batch
        if is_last and every == float("inf"):
            return True
        if trainer.should_stop and trainer.fit_loop._can_stop_early:
            return True
        if trainer._val_check_time_interval is not None:
            return bool(time.monotonic() - trainer._last_val_time >= trainer._val_check_time_interval)
        if every == float("inf"):
            limit = trainer.limit_train_batches
            return bool((self.batch_idx + 1) % limit == 0) if isinstance(limit, int) else is_last
        counted = self.total_batch_idx if trainer.check_val_every_n_epoch is None else self.batch_idx
        return bool((counted + 1) % every == 0)

    # ---- schedulers

    def update_schedulers(self, interval: str, plateau: bool) -> None:
        """Moves the schedulers that wait for this moment.

        Args:
            interval: 'step' or 'epoch'.
            plateau: those that follow a metric, or the others.

        Raises:
            MisconfigurationException: a metric that one follows was not logged.
        """
        trainer = self.trainer
        configs = trainer.lr_scheduler_configs
        if not configs or not trainer.lightning_module.automatic_optimization:
            return
        if interval == "step" and self.should_accumulate():
            return
        count = (self.batch_idx if interval == "step" else trainer.current_epoch) + 1
        for config in configs:
            if config.reduce_on_plateau is not plateau or config.interval != interval or count % config.frequency:
                continue
            value = trainer.callback_metrics.get(config.monitor) if plateau else None
            if plateau and value is None:
                missing = f"a scheduler follows {config.monitor!r}, which was not logged"
                if config.strict:
                    known = sorted(trainer.callback_metrics)
                    raise MisconfigurationException(f"{missing}; there are {known}. Or set 'strict': False")
                warnings.warn(f"{missing}: it does not move", RuntimeWarning, stacklevel=2)
                continue
            self.scheduler_progress.ready()
            trainer.calls.module("lr_scheduler_step", config.scheduler, value)
            self.scheduler_progress.completed()
