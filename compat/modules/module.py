"""LightningModule: the light base of modules, with the contract of Lightning's, for where that is not installed."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch
from lightning_utilities.core.apply_func import apply_to_collection

from ..logs.log_mixin import Logs
from ..overrides import MisconfigurationException
from .datamodule import DataHooks
from .hparams import Hyperparameters
from .loading import make_module, refuse_hparams_file, to_device
from .module_hooks import ModuleHooks


class LightningModule(ModuleHooks, DataHooks, Logs, Hyperparameters, torch.nn.Module):
    """Base of modules that say how they are trained.

    Subclasses define `training_step`, `configure_optimizers` and what else they need.

    Attributes:
        automatic_optimization: whether the trainer runs backward and updates; else `training_step` does.
        strict_loading: whether a checkpoint's weights must match exactly.
        example_input_array: an input, for graphs.

    Example:
        >>> class Net(LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = nn.Linear(4, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         x, y = batch
        ...         return F.mse_loss(self.layer(x), y)
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    """

    automatic_optimization: bool = True
    strict_loading: bool = True
    example_input_array: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trainer: Any = None
        self._current_fx_name: str | None = None
        self._metric_attributes: dict[int, str] | None = None
        self._param_requires_grad_state: dict[Any, bool] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy, also a pickled one, has no trainer."""
        return {**self.__dict__, "_trainer": None}

    # ---- where

    @property
    def trainer(self) -> Any:
        """Who runs it.

        Raises:
            RuntimeError: nobody does.
        """
        if self._trainer is None:
            raise RuntimeError(f"{type(self).__name__} has no trainer: it is not running")
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        for child in self.children():
            if isinstance(child, LightningModule):
                child.trainer = trainer
        self._trainer = trainer

    @property
    def device(self) -> torch.device:
        """Where its weights are; before they move, where they will be."""
        if self._trainer is not None and self._trainer.state.status == "running":
            found: torch.device = self._trainer.strategy.root_device
            return found
        first = next(self.parameters(), next(self.buffers(), torch.empty(0)))
        return first.device

    @property
    def dtype(self) -> Any:
        """The dtype of its weights."""
        return next((each.dtype for each in self.parameters()), torch.get_default_dtype())

    @property
    def on_gpu(self) -> bool:
        """Whether it is on CUDA."""
        return self.device.type == "cuda"

    @property
    def current_epoch(self) -> int:
        """Finished epochs."""
        return int(self._trainer.current_epoch) if self._trainer else 0

    @property
    def global_step(self) -> int:
        """Finished updates."""
        return int(self._trainer.global_step) if self._trainer else 0

    @property
    def global_rank(self) -> int:
        """This process's number among all."""
        return int(self._trainer.global_rank) if self._trainer else 0

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return int(self._trainer.local_rank) if self._trainer else 0

    @property
    def logger(self) -> Any:
        """The first logger, None without one."""
        return self._trainer.logger if self._trainer else None

    @property
    def loggers(self) -> list[Any]:
        """All loggers."""
        return list(self._trainer.loggers) if self._trainer else []

    def print(self, *values: Any, **options: Any) -> None:
        """Prints in the main process."""
        if self.trainer.is_global_zero:
            print(*values, **options)

    # ---- steps

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output."""
        return super().forward(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Computes a training batch's loss from (batch, batch_idx).

        Returns:
            The loss, a dictionary with 'loss', or None to skip the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no `training_step`")

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Validates on (batch, batch_idx), with several loaders also dataloader_idx."""
        raise NotImplementedError(f"{type(self).__name__} defines no `validation_step`")

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Tests on (batch, batch_idx), with several loaders also dataloader_idx."""
        raise NotImplementedError(f"{type(self).__name__} defines no `test_step`")

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Predicts for (batch, batch_idx): `forward` of the batch, if not overridden."""
        batch = kwargs.get("batch", args[0] if args else None)
        return self(batch)

    # ---- optimisation

    def configure_optimizers(self) -> Any:
        """What trains it: an optimizer, several, with schedulers, or None."""
        raise NotImplementedError(f"{type(self).__name__} defines no `configure_optimizers`")

    def configure_callbacks(self) -> Any:
        """Callbacks of its own."""
        return []

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer, or a list where there are several.

        Args:
            use_pl_optimizer: with counting and precision around `step`, or the user's own.
        """
        strategy = self.trainer.strategy
        found = strategy._lightning_optimizers if use_pl_optimizer else strategy.optimizers
        return found[0] if len(found) == 1 else found

    def lr_schedulers(self) -> Any:
        """The scheduler, a list where there are several, None without any."""
        found = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        return None if not found else found[0] if len(found) == 1 else found

    def manual_backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Backward in manual optimisation.

        Raises:
            MisconfigurationException: the trainer optimises.
        """
        if self.automatic_optimization:
            raise MisconfigurationException(
                "manual_backward() is for manual optimisation; set `self.automatic_optimization = False` in __init__"
            )
        self.trainer.strategy.backward(loss, None, *args, **kwargs)

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Computes the gradients of a loss."""
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Updates; the closure, which must be called, runs step, zero_grad and backward."""
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Frees the gradients."""
        optimizer.zero_grad()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Moves a scheduler, one that follows a metric with its value."""
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clips between backward and step; the arguments are the trainer's."""
        self.clip_gradients(
            optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm
        )

    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clips an optimizer's gradients.

        Args:
            optimizer: whose.
            gradient_clip_val: the limit; None takes the trainer's.
            gradient_clip_algorithm: 'norm' or 'value'; None takes the trainer's.

        Raises:
            MisconfigurationException: the trainer has other values, or one is unknown.
        """
        own_value, own_algorithm = self.trainer.gradient_clip_val, self.trainer.gradient_clip_algorithm
        algorithm = None if gradient_clip_algorithm is None else str(gradient_clip_algorithm).lower()
        if own_value is not None and gradient_clip_val not in (None, own_value):
            raise MisconfigurationException(
                f"clip_gradients({gradient_clip_val}) contradicts the trainer's `gradient_clip_val={own_value}`"
            )
        if own_algorithm is not None and algorithm not in (None, own_algorithm):
            raise MisconfigurationException(
                f"clip_gradients(..., {algorithm!r}) contradicts the trainer's {own_algorithm!r}"
            )
        algorithm = algorithm or own_algorithm or "norm"
        if algorithm not in ("norm", "value"):
            raise MisconfigurationException(f"`gradient_clip_algorithm` must be 'norm' or 'value', got {algorithm!r}")
        value = gradient_clip_val if gradient_clip_val is not None else own_value or 0.0
        self.trainer.precision_plugin.clip_gradients(optimizer, value, algorithm)

    def toggle_optimizer(self, optimizer: Any) -> None:
        """Lets only the parameters of one optimizer need gradients, until `untoggle_optimizer`."""
        state: dict[Any, bool] = {}
        for each in self.trainer.optimizers:
            for parameter in parameters_of(each):
                if parameter not in state:
                    state[parameter], parameter.requires_grad = parameter.requires_grad, False
        for parameter in parameters_of(optimizer):
            parameter.requires_grad = state[parameter]
        self._param_requires_grad_state = state

    def untoggle_optimizer(self, optimizer: Any) -> None:
        """Undoes `toggle_optimizer`."""
        for parameter, needs in self._param_requires_grad_state.items():
            parameter.requires_grad = needs
        self._param_requires_grad_state = {}

    @contextlib.contextmanager
    def toggled_optimizer(self, optimizer: Any) -> Iterator[None]:
        """The context in which only the parameters of one optimizer need gradients."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    # ---- others

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Nested tensors of all processes, stacked along a new first dimension; alone, `data`."""
        strategy = self.trainer.strategy
        data = apply_to_collection(data, (int, float), lambda number: torch.tensor(number, device=self.device))
        return apply_to_collection(data, torch.Tensor, strategy.all_gather, group=group, sync_grads=sync_grads)

    def freeze(self) -> None:
        """Ends training of all its parameters."""
        for parameter in self.parameters():
            parameter.requires_grad = False
        self.eval()

    def unfreeze(self) -> None:
        """Trains all its parameters."""
        for parameter in self.parameters():
            parameter.requires_grad = True
        self.train()

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Makes a module with a checkpoint's hyper-parameters and weights, also of a file that Lightning wrote.

        Args:
            checkpoint_path: the file.
            map_location: the device; None means the CPU.
            hparams_file: not supported.
            strict: whether the weights must match exactly; None leaves that to `strict_loading`.
            weights_only: False loads files of objects of any class, which may run code.
            kwargs: arguments that count more than the file's.

        Raises:
            CheckpointError: the file cannot be used.
            NotImplementedError: `hparams_file` is given.
            RuntimeError: the weights do not match.
        """
        refuse_hparams_file(hparams_file)
        return to_device(make_module(cls, checkpoint_path, strict, weights_only, kwargs), map_location)


def parameters_of(optimizer: Any) -> list[torch.nn.Parameter]:
    """All parameters of an optimizer."""
    return [each for group in optimizer.param_groups for each in group["params"]]
