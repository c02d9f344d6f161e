"""Run: what lies around a loop: checks, data, setup, checkpoints, and at its end the same backwards."""

from __future__ import annotations

from typing import Any, Callable

from ..checkpoints.checkpoint_state import Restorer
from ..data.transfer import Transfer
from ..overrides import MisconfigurationException, base_of, overrides, overrides_module, takes
from ..parts import ordered
from .evaluation import check_evaluation

STEPS = ("training_step", "validation_step", "test_step", "predict_step")
GONE = {"training_epoch_end": "on_train_epoch_end", "validation_epoch_end": "on_validation_epoch_end"}


class Run:
    """One call of fit(), validate(), test() or predict().

    Args:
        trainer: whose call it is.
        module: the LightningModule.
        datamodule: the one that this call was given; its hooks move the batches.
        restorer: knows the checkpoint to begin with.
    """

    def __init__(self, trainer: Any, module: Any, datamodule: Any, restorer: Restorer) -> None:
        self._trainer, self._module, self._datamodule, self._restorer = trainer, module, datamodule, restorer
        self._calls, self._fn = trainer.calls, trainer.state.fn

    def go(self, loop: Callable[[], Any]) -> Any:
        """Runs a loop with all that belongs around it.

        Returns:
            What the loop gives.
        """
        trainer, calls, fits = self._trainer, self._calls, self._fn == "fit"
        self._attach_callbacks()
        self._check()
        trainer.transfer = Transfer(trainer, self._datamodule)
        self._prepare_data()
        self._setup()
        if overrides_module(self._module, "configure_model"):
            calls.module("configure_model")
        self._restorer.restore_module()
        trainer.logged.reset_results()
        trainer.logged.reset_metrics()
        trainer.strategy.setup(trains=fits)
        if fits:
            calls.both("on_fit_start")
        self._log_hyperparams()
        self._restorer.restore_training()
        trainer.strategy.barrier("run")
        self._module.zero_grad()
        results = loop()
        trainer._teardown()
        if fits:
            calls.both("on_fit_end")
        self._tear_down()
        trainer.state.status, trainer.state.stage = "finished", None
        return results

    def _attach_callbacks(self) -> None:
        trainer = self._trainer
        own = self._calls.module("configure_callbacks")
        if own:
            own = list(own) if isinstance(own, (list, tuple)) else [own]
            kinds = {type(each) for each in trainer.callbacks} - {base_of(type(own[0]), "Callback")}
            replaced = {kind for kind in kinds if any(issubclass(type(each), kind) for each in own)}
            trainer.callbacks = ordered([each for each in trainer.callbacks if type(each) not in replaced] + own)
        for callback in trainer.callbacks:
            callback.log, callback.log_dict = self._module.log, self._module.log_dict

    def _check(self) -> None:
        """Refuses modules that cannot do what the call asks for."""
        module, kind = self._module, type(self._module).__name__
        for method in STEPS:
            if takes(getattr(module, method), "dataloader_iter", explicit=True):
                raise NotImplementedError(f"`{method}(dataloader_iter)` is not supported; take (batch, batch_idx)")
        if self._fn != "fit":
            check_evaluation(module, self._fn)
            return
        for method in ("training_step", "configure_optimizers"):
            if not overrides_module(module, method):
                raise MisconfigurationException(f"fit() needs the method `{method}`, {kind} has none")
        for method, new in GONE.items():
            if callable(getattr(module, method, None)):
                raise NotImplementedError(f"`{method}` is of Lightning 1; write `{new}` and keep outputs on the module")
        if not module.automatic_optimization:
            self._check_manual()

    def _check_manual(self) -> None:
        trainer = self._trainer
        if trainer.gradient_clip_val:
            raise MisconfigurationException(
                "`gradient_clip_val` is for automatic optimisation; call self.clip_gradients(...) in `training_step`"
            )
        if trainer.accumulate_grad_batches != 1:
            raise MisconfigurationException(
                "`accumulate_grad_batches` is for automatic optimisation; step every so many batches in `training_step`"
            )

    def _prepare_data(self) -> None:
        trainer, calls = self._trainer, self._calls
        for owner, base, call in (
            (trainer.datamodule, "LightningDataModule", calls.datamodule),
            (self._module, "LightningModule", calls.module),
        ):
            if owner is not None and overrides(owner, "prepare_data", base):
                if (trainer.local_rank if owner.prepare_data_per_node else trainer.global_rank) == 0:
                    call("prepare_data")
                trainer.strategy.barrier("prepare_data")

    def _setup(self) -> None:
        trainer = self._trainer
        for each in self._module.modules():
            if base_of(type(each), "LightningModule") and hasattr(each, "_device"):
                each._device = trainer.strategy.root_device  # where `setup` may look for it already
        for logger in trainer.loggers:
            getattr(logger, "experiment", None)  # made now, so that the hooks find it
        trainer.strategy.barrier("setup")
        self._everyone("setup")
        trainer.strategy.barrier("setup")

    def _tear_down(self) -> None:
        self._everyone("teardown")
        self._module._current_fx_name = self._module._metric_attributes = None
        for logger in self._trainer.loggers:
            logger.finalize("success")

    def _everyone(self, hook: str) -> None:
        if self._trainer.datamodule is not None:
            self._calls.datamodule(hook, stage=self._fn)
        self._calls.callbacks(hook, stage=self._fn)
        self._calls.module(hook, stage=self._fn)

    def _log_hyperparams(self) -> None:
        trainer = self._trainer
        if not trainer.enable_autolog_hparams or not trainer.loggers:
            return
        found: dict[str, Any] | None = None
        for owner in (self._module, trainer.datamodule):
            if owner is not None and getattr(owner, "_log_hyperparams", False):
                found = merged(found or {}, owner.hparams_initial)
        for logger in trainer.loggers:
            if found is not None:
                logger.log_hyperparams(found)
            logger.log_graph(self._module)
            logger.save()


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of module and data module together.

    Raises:
        RuntimeError: they have different values under one name.
    """
    different = [name for name in one.keys() & other.keys() if type(one[name]) is not type(other[name])]
    different += [name for name in one.keys() & other.keys() if name not in different and one[name] != other[name]]
    if different:
        raise RuntimeError(
            f"module and data module have different hyper-parameters under the names {sorted(different)}; rename one, "
            "or call save_hyperparameters(logger=False) in one of them"
        )
    return {**one, **other}
