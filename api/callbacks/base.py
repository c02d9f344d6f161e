"""Callbacks: the events of fit and test, and the pool that fires them in order."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Sequence

from ..protocols import Run, Task

Listener = Callable[..., Any]


class Callback:
    """Base of all callbacks: override the events you need.

    The events in their order, each with keyword arguments::

        on_before_fit
            on_before_epoch
                on_before_train_epochs
                    on_before_train_epoch               # for each training task
                        on_before_train_batch           # for each batch
                            on_before_train_forward
                            on_after_train_forward
                            on_before_backward
                            on_after_backward
                            on_before_optimize          # at the end of an accumulation window
                            on_after_optimize
                            on_train_metrics
                        on_after_train_batch
                    on_after_train_epoch
                on_after_train_epochs
                on_before_val_epochs                    # the same for val, without backward and optimize
                ...
                on_after_val_epochs
            on_after_epoch
        on_after_fit

        on_before_test_epochs                           # in test(): the same family without epoch_idx
        ...
        on_after_test_epochs

    Args:
        priority: a larger one runs earlier in `before` events and later in all others.

    Example:
        >>> class Printer(Callback):
        ...     def on_after_epoch(self, trainer, epoch_idx, **others):
        ...         trainer.print("finished epoch", epoch_idx)
    """

    priority: float = 1  # also for a subclass that does not call __init__

    def __init__(self, priority: float = 1) -> None:
        self.priority = priority

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it: tensors, numbers, strings and containers of these; nothing by default."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""

    def on_before_fit(self, trainer: Run, epochs: int) -> None:
        """Before training; `epochs` is the total."""

    def on_before_epoch(
        self, trainer: Run, train_tasks: Sequence[Task], val_tasks: Sequence[Task], epoch_idx: int
    ) -> None:
        """Before an epoch; `epoch_idx` counts from 0."""

    def on_before_train_epochs(self, trainer: Run, tasks: Sequence[Task], epoch_idx: int) -> None:
        """Before the training tasks of an epoch."""

    def on_before_train_epoch(self, trainer: Run, task: Task) -> None:
        """Before a training task."""

    def on_before_train_batch(self, trainer: Run, batch_x: Any, batch_y: Any, batch_idx: int) -> None:
        """Before a training batch, which is on the device already."""

    def on_before_train_forward(self, trainer: Run) -> None:
        """Before each call of the model."""

    def on_after_train_forward(self, trainer: Run, model_out: Any) -> None:
        """After each call of the model; `model_out` is detached."""

    def on_before_backward(self, trainer: Run, loss: Any) -> None:
        """Before backward; `loss` is detached."""

    def on_after_backward(self, trainer: Run, loss: Any) -> None:
        """After backward; the gradients may still be scaled."""

    def on_before_optimize(self, trainer: Run, optimize_index: int | None) -> None:
        """Before an update by one optimizer, or by all (None)."""

    def on_after_optimize(self, trainer: Run, optimize_index: int | None) -> None:
        """After an update; the gradients are freed."""

    def on_train_metrics(self, trainer: Run, loss: Any, model_out: Any, batch_y: Any, task: Task) -> None:
        """When a step hands over what metrics are made of; everything is detached."""

    def on_after_train_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """After a training batch; `metrics` maps names to values that are computed when they are read."""

    def on_after_train_epoch(self, trainer: Run, task: Task, metrics: dict[str, Any]) -> None:
        """After a training task; `metrics` are those of all its samples."""

    def on_after_train_epochs(
        self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any], epoch_idx: int
    ) -> None:
        """After the training tasks of an epoch; `metrics` are those of all of them."""

    def on_before_val_epochs(self, trainer: Run, tasks: Sequence[Task], epoch_idx: int) -> None:
        """Before the validation tasks of an epoch."""

    def on_before_val_epoch(self, trainer: Run, task: Task) -> None:
        """Before a validation task."""

    def on_before_val_batch(self, trainer: Run, batch_x: Any, batch_y: Any, batch_idx: int) -> None:
        """Before a validation batch, which is on the device already."""

    def on_before_val_forward(self, trainer: Run) -> None:
        """Before each call of the model."""

    def on_after_val_forward(self, trainer: Run, model_out: Any) -> None:
        """After each call of the model; `model_out` is detached."""

    def on_val_metrics(self, trainer: Run, loss: Any, model_out: Any, batch_y: Any, task: Task) -> None:
        """When a step hands over what metrics are made of; everything is detached."""

    def on_after_val_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """After a validation batch; `metrics` maps names to values that are computed when they are read."""

    def on_after_val_epoch(self, trainer: Run, task: Task, metrics: dict[str, Any]) -> None:
        """After a validation task; `metrics` are those of all its samples."""

    def on_after_val_epochs(self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any], epoch_idx: int) -> None:
        """After the validation tasks of an epoch; `metrics` are those of all of them."""

    def on_before_test_epochs(self, trainer: Run, tasks: Sequence[Task]) -> None:
        """Before the test tasks."""

    def on_before_test_epoch(self, trainer: Run, task: Task) -> None:
        """Before a test task."""

    def on_before_test_batch(self, trainer: Run, batch_x: Any, batch_y: Any, batch_idx: int) -> None:
        """Before a test batch, which is on the device already."""

    def on_before_test_forward(self, trainer: Run) -> None:
        """Before each call of the model."""

    def on_after_test_forward(self, trainer: Run, model_out: Any) -> None:
        """After each call of the model; `model_out` is detached."""

    def on_test_metrics(self, trainer: Run, loss: Any, model_out: Any, batch_y: Any, task: Task) -> None:
        """When a step hands over what metrics are made of; everything is detached."""

    def on_after_test_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """After a test batch; `metrics` maps names to values that are computed when they are read."""

    def on_after_test_epoch(self, trainer: Run, task: Task, metrics: dict[str, Any]) -> None:
        """After a test task; `metrics` are those of all its samples."""

    def on_after_test_epochs(self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any]) -> None:
        """After the test tasks; `metrics` are those of all of them."""

    def on_after_epoch(
        self,
        trainer: Run,
        train_tasks: Sequence[Task],
        val_tasks: Sequence[Task],
        train_metrics: dict[str, Any],
        val_metrics: dict[str, Any],
        epoch_idx: int,
    ) -> None:
        """After an epoch and its schedulers; `val_metrics` is empty in an epoch without validation."""

    def on_after_fit(self, trainer: Run) -> None:
        """After training, also when it was stopped."""


class CallbackPool(list):  # type: ignore[type-arg]
    """The callbacks of a trainer, in the order of their priorities.

    Args:
        callbacks: any number of Callback objects.

    Raises:
        TypeError: something else is among them.
    """

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        super().__init__()
        for callback in callbacks:
            self.append(callback)

    def append(self, callback: Callback) -> None:
        """Adds a callback at the place of its priority."""
        if not isinstance(callback, Callback):
            hint = "; pass an instance, not the class" if isinstance(callback, type) else ""
            raise TypeError(f"`callbacks` must hold Callback objects, got {callback!r}{hint}")
        super().append(callback)
        self.sort(key=lambda each: -each.priority)

    def listeners(self, event: str) -> tuple[Listener, ...]:
        """The methods that listen to an event, in the order in which it calls them.

        Args:
            event: such as 'before_fit'. A larger priority comes first in `before` events and last in all others.
        """
        name = f"on_{event}"
        ordered = self if "before" in event else reversed(self)
        methods = [getattr(callback, name) for callback in ordered]
        unused = getattr(Callback, name)
        return tuple([method for method in methods if getattr(method, "__func__", method) is not unused])

    def trigger(self, event: str, **arguments: Any) -> None:
        """Calls all listeners of an event."""
        for listener in self.listeners(event):
            listener(**arguments)
