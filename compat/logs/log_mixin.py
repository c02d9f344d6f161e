"""Logs: `self.log` of modules: where it may be called, and what it does there by default."""

from __future__ import annotations

import warnings
from typing import Any, Mapping

import torch
from torchmetrics import Metric, MetricCollection

from ..overrides import MisconfigurationException
from .results import default_dtype

# what may be logged in a hook: on_step by default, on_epoch by default, and whether that may be chosen
BATCH, EVALUATED, EPOCH = (True, False, True), (False, True, True), (False, True, False)
UPDATES = ["backward", "optimizer_step", "configure_gradient_clipping", "clip_gradients", "optimizer_zero_grad"]
HOOKS = ["on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad"]
LEVELS: dict[str, tuple[bool, bool, bool]] = {
    **dict.fromkeys(["training_step", "on_train_batch_start", "on_train_batch_end", *UPDATES, *HOOKS], BATCH),
    **dict.fromkeys(["validation_step", "on_validation_batch_start", "on_validation_batch_end"], EVALUATED),
    **dict.fromkeys(["test_step", "on_test_batch_start", "on_test_batch_end"], EVALUATED),
    **{
        f"on_{stage}_{moment}": EPOCH
        for stage in ("train", "validation", "test")
        for moment in ("start", "epoch_start", "epoch_end")
    },
}


class Logs:
    """The part of modules that logs."""

    _trainer: Any
    _current_fx_name: str | None
    _metric_attributes: dict[int, str] | None
    device: Any

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Logs a number.

        Args:
            name: its name, the same in all processes.
            value: a number, a tensor of one element, or a torchmetrics object.
            prog_bar: whether the progress bar shows it.
            logger: whether loggers get it.
            on_step: whether the batch's value is logged; by default in training.
            on_epoch: whether the epoch's is; by default in evaluation and in hooks of epochs.
            reduce_fx: how batches become the epoch: 'mean', 'min', 'max' or 'sum'.
            enable_graph: whether the value keeps its graph.
            sync_dist: whether it is reduced over the processes.
            sync_dist_group: over which.
            add_dataloader_idx: whether names tell the loaders apart, where there are several.
            batch_size: the samples that a mean is over; None finds them in the batch.
            metric_attribute: the name of a torchmetrics object in the module; None finds it.
            rank_zero_only: whether only the main process calls this.

        Raises:
            MisconfigurationException: it may not be logged here, or not so.
            ValueError: it is no number.
        """
        trainer = self._trainer
        if trainer is None:
            warnings.warn(f"self.log({name!r}) does nothing: the module has no trainer", stacklevel=2)
            return
        hook, results = self._current_fx_name, trainer._results
        if hook is None or results is None or hook not in LEVELS:
            raise MisconfigurationException(
                f"self.log({name!r}) cannot be called in {hook or 'code that the trainer does not run'}; it works in "
                "the steps of training, validation and test and the hooks between them. Use self.logger there"
            )
        by_step, by_epoch, may_choose = LEVELS[hook]
        step = by_step if on_step is None else on_step
        epoch = by_epoch if on_epoch is None else on_epoch
        if not may_choose and (step, epoch) != (by_step, by_epoch):
            raise MisconfigurationException(f"in {hook} self.log({name!r}) must have on_step=False and on_epoch=True")
        if add_dataloader_idx and "/dataloader_idx_" in name:
            raise MisconfigurationException(f"{name!r} must not hold '/dataloader_idx_', which is added by itself")
        value = self._checked(name, value)
        if trainer.logged.should_reset_tensors(hook):
            results.reset(metrics=False, fx=hook)
        if isinstance(value, Metric) and metric_attribute is None:
            metric_attribute = self._attribute_of(name, value)
        results.log(
            hook,
            name,
            value,
            prog_bar,
            logger is not False,
            step,
            epoch,
            reduce_fx,
            enable_graph,
            sync_dist and trainer.world_size > 1,
            trainer.strategy.reduce,
            sync_dist_group,
            add_dataloader_idx,
            batch_size,
            metric_attribute,
            rank_zero_only,
        )
        trainer.logged._current_fx = hook

    def log_dict(self, dictionary: Mapping[str, Any], **options: Any) -> None:
        """Logs several numbers by name; the options are those of `log`."""
        pairs: Any = dictionary.items()
        if isinstance(dictionary, MetricCollection):
            pairs = dictionary.items(keep_base=False, copy_state=not dictionary._enable_compute_groups)
        for name, value in pairs:
            self.log(name, value, **options)

    def _checked(self, name: str, value: Any) -> Any:
        if isinstance(value, Metric):
            return value
        if isinstance(value, torch.Tensor):
            found = value.detach().clone()
        elif isinstance(value, (int, float)) or hasattr(value, "__float__"):
            found = torch.tensor(float(value), device=self.device, dtype=default_dtype())
        else:
            raise ValueError(f"self.log({name!r}) takes numbers, tensors and metrics, got {type(value).__name__}")
        if found.numel() != 1:
            raise ValueError(f"self.log({name!r}) takes one number, got a tensor of shape {tuple(found.shape)}")
        return found.squeeze()

    def _attribute_of(self, name: str, metric: Metric) -> str:
        if self._metric_attributes is None:
            modules = torch.nn.Module.named_modules(self)  # type: ignore[arg-type]
            self._metric_attributes = {id(each): path for path, each in modules if isinstance(each, Metric)}
        found = self._metric_attributes.get(id(metric))
        if found is None:
            raise MisconfigurationException(
                f"the metric that self.log({name!r}) got is not an attribute of the module; make it one, so that its "
                f"state moves and is reset. There are {sorted(self._metric_attributes.values())}"
            )
        return found
