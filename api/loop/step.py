"""Step: what one batch goes through: loss, backward, update, and the data of its metrics."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Callable, ContextManager, Iterator, Sequence

import torch

from deepepochs.engine import Engine, describe, unwrap

from ..aggregation.collector import Collector
from ..aggregation.patches import ValuePatch, detach
from ..optimizer import Optimizer
from ..protocols import Run


class Step:
    """The tools that step methods use in one stage of one task.

    Args:
        trainer: who runs it.
        task: the task.
        stage: 'train', 'val' or 'test'.
        collector: the stage's totals.
        do_loss: whether evaluation computes the loss.

    Attributes:
        batch_size: samples in the present batch.
        records: what the present batch's step handed over for metrics; None where nobody reads batch metrics.
        returned: what the present batch's step returned.
    """

    def __init__(self, trainer: Run, task: Any, stage: str, collector: Collector, do_loss: bool = True) -> None:
        self._trainer, self._task, self.collector = trainer, task, collector
        self._engine: Engine = trainer.engine
        self._is_training = stage == "train"
        self._do_loss = do_loss or self._is_training
        self._loss_fn = trainer.loss_fn or model_loss
        self._unlabelled_loss_fn = loss_of_output(self._loss_fn)
        self._has_metrics = collector.has_metrics
        self._is_mixed = self._engine.precision != "fp32"
        listeners = trainer.callbacks.listeners
        self._before_backward, self._after_backward = listeners("before_backward"), listeners("after_backward")
        self._before_optimize, self._after_optimize = listeners("before_optimize"), listeners("after_optimize")
        self._on_metrics = listeners(f"{stage}_metrics")
        self._schedules = [each for each in trainer.opt if each.scheduler is not None and each.sched_on == "step"]
        self._window_loss = WindowLoss(self._engine) if any(each.sched_with_loss for each in self._schedules) else None
        self._loss_total: ValuePatch | None = collector.loss_total
        self.batch_size: Any = 0
        listens = listeners(f"after_{stage}_batch")
        self.records: list[Any] | None = [] if listens else None
        self.returned: dict[str, Any] = {}

    def loss(
        self, model_out: Any, batch_y: Any, loss_adjust: float = 1.0, do_optimize: bool = True, do_metric: bool = True
    ) -> Any:
        """Computes the loss; in training also its gradients and the update.

        Args:
            model_out: the model's output.
            batch_y: the label.
            loss_adjust: the part of the batch that this is, where a step cuts it: samples here / samples in the batch.
            do_optimize: whether to update (at the end of an accumulation window).
            do_metric: whether to hand loss and output over to the metrics.

        Returns:
            The loss, 0-dim; None in an evaluation without loss.

        Raises:
            ValueError: the loss is not a scalar tensor.
        """
        loss = detached = None
        if self._do_loss:
            loss = (self._unlabelled_loss_fn if batch_y is None else self._loss_fn)(model_out, batch_y)
            if not isinstance(loss, torch.Tensor) or loss.ndim:
                raise ValueError(
                    f"the loss must be a scalar tensor, such as a mean over the batch, got {describe(loss)}"
                )
            detached = loss.detach()
            if self._is_training:
                self._train(loss if loss_adjust == 1.0 else loss * loss_adjust, detached, loss_adjust, do_optimize)
        if do_metric:
            self._measure(
                detached, model_out, batch_y, self.batch_size if loss_adjust == 1.0 else self.batch_size * loss_adjust
            )
        return loss

    def _train(self, loss: torch.Tensor, detached: torch.Tensor, part: float, do_optimize: bool) -> None:
        for listener in self._before_backward:
            listener(trainer=self._trainer, loss=detached)
        self._engine.backward(loss)
        if self._window_loss is not None:
            self._window_loss.add(detached, self.batch_size * part)
        for listener in self._after_backward:
            listener(trainer=self._trainer, loss=detached)
        if do_optimize:
            self.optimize()

    def optimize(self, optimize_index: int | None = None) -> None:
        """Updates the parameters, if the accumulation window ends here.

        Args:
            optimize_index: which optimizer; None means all.
        """
        trainer, engine = self._trainer, self._engine
        if not engine.closes_window:
            return
        for listener in self._before_optimize:
            listener(trainer=trainer, optimize_index=optimize_index)
        if optimize_index is not None or len(trainer.opt) == 1:
            optimizer = trainer.opt[optimize_index or 0]
            if engine.step(optimizer.opt) and self._schedules:
                self._schedule([optimizer])
        else:
            changed = engine.step_all([each.opt for each in trainer.opt])
            if self._schedules:
                self._schedule([each for each, has_stepped in zip(trainer.opt, changed) if has_stepped])
        if self._window_loss is not None:
            self._window_loss.close()
        trainer.global_step += 1
        for listener in self._after_optimize:
            listener(trainer=trainer, optimize_index=optimize_index)

    def _schedule(self, stepped: Sequence[Optimizer]) -> None:
        """Moves the step schedulers of the optimizers that have stepped."""
        moving = [each for each in self._schedules if any(each is optimizer for optimizer in stepped)]
        loss = self._window_loss.mean() if self._window_loss is not None else None
        for each in moving:
            each.sched_step(loss)

    def do_metric(self, loss: Any = None, model_out: Any = None, batch_y: Any = None) -> None:
        """Hands the whole batch's loss, output and label over to the metrics."""
        self._measure(detach(loss), model_out, batch_y, self.batch_size)

    def _measure(self, loss: Any, model_out: Any, batch_y: Any, batch_size: Any) -> None:
        if loss is not None:
            if self._loss_total is None:
                self._loss_total = self.collector.start_loss(loss, batch_size)
            else:
                self._loss_total.update(loss, batch_size)
        if self._has_metrics:
            self._add_output(model_out, batch_y, batch_size)
        for listener in self._on_metrics:
            listener(trainer=self._trainer, loss=loss, model_out=detach(model_out), batch_y=batch_y, task=self._task)
        if self.records is not None:
            self.records.append((loss, model_out, batch_y, batch_size))

    def _add_output(self, model_out: Any, batch_y: Any, batch_size: Any) -> None:
        if not self._is_mixed:
            self.collector.add_output(model_out, batch_y, batch_size)
            return
        with torch.autocast(self._engine.device.type, enabled=False):  # it covers forward and loss only
            self.collector.add_output(model_out, batch_y, batch_size)

    def no_sync(self) -> ContextManager[None]:
        """The context for parts of a batch that are not its last; nothing in one process."""
        return self._engine.no_sync()

    def take(self, returned: Any, method: Callable[..., Any]) -> None:
        """Takes in what a step returned."""
        self.collector.add_returned(returned, method)
        self.returned = returned

    def batch_metrics(self) -> BatchMetrics:
        """The present batch's metrics, computed when they are read; the next batch starts anew."""
        records, returned = self.records or [], self.returned
        self.records, self.returned = [], {}
        return BatchMetrics(self.collector, records, returned)


class StepTools:
    """`loss`, `optimize` and `do_metric` for step methods; they work while a stage runs."""

    def _tools(self) -> Step:
        """The tools of the stage that runs.

        Raises:
            RuntimeError: none does.
        """
        raise NotImplementedError

    def loss(
        self, model_out: Any, batch_y: Any, loss_adjust: float = 1.0, do_optimize: bool = True, do_metric: bool = True
    ) -> Any:
        """Computes the loss, in training also gradients and update; for use in step methods.

        Args:
            model_out: the model's output.
            batch_y: the label.
            loss_adjust: samples here / samples in the batch, where a step cuts the batch.
            do_optimize: whether to update (at the end of an accumulation window).
            do_metric: whether to hand loss and output over to the metrics.

        Returns:
            The loss, 0-dim; None in an evaluation without loss.
        """
        return self._tools().loss(model_out, batch_y, loss_adjust, do_optimize, do_metric)

    def optimize(self, optimize_index: int | None = None) -> None:
        """Updates the parameters with one optimizer or all (None), if the accumulation window ends here."""
        self._tools().optimize(optimize_index)

    def do_metric(self, loss: Any = None, model_out: Any = None, batch_y: Any = None) -> None:
        """Hands a whole batch's loss, output and label over to the metrics."""
        self._tools().do_metric(loss, model_out, batch_y)


class BatchMetrics(Mapping):  # type: ignore[type-arg]
    """A batch's metrics by name, computed when the first of them is read; the loss alone costs nothing."""

    def __init__(self, collector: Collector, records: list[Any], returned: dict[str, Any]) -> None:
        self._collector, self._records, self._returned = collector, records, returned
        self._values: dict[str, Any] | None = None

    def _all(self) -> dict[str, Any]:
        if self._values is None:
            with torch.no_grad():
                self._values = self._collector.batch_values(self._records, self._returned)
        return self._values

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


class WindowLoss:
    """The mean loss of an accumulation window over all ranks, for a scheduler that takes it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._total: ValuePatch | None = None
        self._is_closed = False

    def add(self, loss: torch.Tensor, samples: float) -> None:
        """Adds a part of the window; the first one after `close` begins a new window."""
        if self._total is None or self._is_closed:
            self._total, self._is_closed = ValuePatch(samples).load(loss), False
        else:
            self._total.update(loss, samples)

    def close(self) -> None:
        """Ends the window, also where no optimizer stepped; `mean` stays what it is until the next begins."""
        self._is_closed = True

    def mean(self) -> float:
        """The mean over the window's samples (a sync point); NaN without any."""
        own = (0.0, 0.0) if self._total is None else (float(self._total.batch_value), float(self._total.batch_size))
        total, samples = self._engine.reduce(own)
        return total / samples if samples else float("nan")


def model_loss(model_out: Any, batch_y: Any) -> Any:
    """The loss that a model has computed itself: its output, or the entry `loss` of it."""
    if isinstance(model_out, Mapping):
        if "loss" not in model_out:
            raise ValueError(
                "without a loss function the model must return a scalar or a dictionary with 'loss', "
                f"got {describe(model_out)}"
            )
        return model_out["loss"]
    return model_out


def loss_of_output(loss_fn: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """A loss function for batches without label: called with the output alone if it takes no second argument."""
    try:
        inspect.signature(unwrap(loss_fn).forward if isinstance(loss_fn, torch.nn.Module) else loss_fn).bind(None, None)
    except TypeError:
        return lambda model_out, batch_y: loss_fn(model_out)
    except ValueError:  # builtins may have no signature
        return loss_fn
    return loss_fn
