"""Restoring: a trainer's whole state into a .ckpt file and out of it, in Lightning's form."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

from ..overrides import MisconfigurationException, is_a
from .checkpoint_io import VERSION, VERSION_KEY, read_checkpoint

PRECISIONS = ("MixedPrecision", "MixedPrecisionPlugin", "native_amp_scaling_state")  # under which scales are saved


def dump(trainer: Any, weights_only: bool | None = None) -> dict[str, Any]:
    """What a .ckpt file holds of a trainer.

    Args:
        trainer: with its module.
        weights_only: leaves optimizers, schedulers and callbacks out.
    """
    module, datamodule = trainer.lightning_module, trainer.datamodule
    checkpoint: dict[str, Any] = {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        VERSION_KEY: VERSION,
        "state_dict": module.state_dict(),
        "loops": {
            "fit_loop": trainer.fit_loop.state_dict(),
            **{
                f"{name}_loop": {"state_dict": {}, "batch_progress": loop.batch_progress.state_dict()}
                for name, loop in (
                    ("validate", trainer.validate_loop),
                    ("test", trainer.test_loop),
                    ("predict", trainer.predict_loop),
                )
            },
        },
    }
    if not weights_only:
        states = {each.state_key: each.state_dict() for each in trainer.callbacks}
        checkpoint["callbacks"] = {key: state for key, state in states.items() if state}
        checkpoint["optimizer_states"] = [each.state_dict() for each in trainer.optimizers]
        checkpoint["lr_schedulers"] = [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs]
        scale = trainer.precision_plugin.state_dict()
        if scale:
            checkpoint[PRECISIONS[0]] = scale
    for owner in (module, datamodule):
        if owner is not None and owner.hparams:
            if hasattr(owner, "_hparams_name"):
                checkpoint[owner.CHECKPOINT_HYPER_PARAMS_NAME] = owner._hparams_name
            checkpoint[owner.CHECKPOINT_HYPER_PARAMS_KEY] = dict(owner.hparams)
    if datamodule is not None:
        state = trainer.calls.datamodule("state_dict")
        if state:
            checkpoint[type(datamodule).__qualname__] = state
    if not weights_only:
        trainer.calls.callbacks("on_save_checkpoint", checkpoint)
    trainer.calls.module("on_save_checkpoint", checkpoint)
    return checkpoint


class Restorer:
    """Restores a trainer from a file, in two parts: before its module moves to the device, and after.

    Args:
        trainer: whose module, callbacks and loops.
        path: the file, None for none.
        weights_only: see `read_checkpoint`.
    """

    def __init__(self, trainer: Any, path: Any, weights_only: bool | None) -> None:
        self._trainer = trainer
        self._found = None if path is None else read_checkpoint(path, weights_only)

    def restore_module(self) -> None:
        """Weights, the data module's state, the callbacks'."""
        if self._found is None:
            return
        trainer, found = self._trainer, self._found
        module, datamodule = trainer.lightning_module, trainer.datamodule
        trainer.calls.module("on_load_checkpoint", found)
        module.load_state_dict(found["state_dict"], strict=module.strict_loading)
        if datamodule is not None and type(datamodule).__qualname__ in found:
            trainer.calls.datamodule("load_state_dict", found[type(datamodule).__qualname__])
        states = found.get("callbacks")
        if states is None:
            return
        trainer.calls.callbacks("on_load_checkpoint", found)
        for callback in trainer.callbacks:
            state = states.get(callback.state_key)
            if state:
                callback.load_state_dict(copy.deepcopy(state))

    def restore_training(self) -> None:
        """Loss scale, loops, optimizers and schedulers.

        Raises:
            KeyError: the file holds weights alone.
            MisconfigurationException: its epochs are more than the trainer's.
        """
        found, trainer = self._found, self._trainer
        if found is None or trainer.state.fn != "fit":
            return
        for key in PRECISIONS:
            if key in found:
                trainer.precision_plugin.load_state_dict(found[key])
        if "loops" in found:
            trainer.fit_loop.load_state_dict(found["loops"]["fit_loop"])
        if trainer.max_epochs != -1 and trainer.current_epoch > trainer.max_epochs:
            raise MisconfigurationException(
                f"the checkpoint was written in epoch {trainer.current_epoch}, `max_epochs={trainer.max_epochs}`: "
                "there is nothing left to train"
            )
        if "optimizer_states" not in found or "lr_schedulers" not in found:
            raise KeyError(
                "the checkpoint holds weights alone (`save_weights_only=True`); training cannot go on from it"
            )
        for optimizer, state in zip(trainer.optimizers, found["optimizer_states"]):
            optimizer.load_state_dict(state)
        trainer.strategy._move_optimizers(trainer.strategy.root_device)
        for config, state in zip(trainer.lr_scheduler_configs, found["lr_schedulers"]):
            config.scheduler.load_state_dict(state)


def select(trainer: Any, path: Any, model_given: bool) -> Any:
    """The file that `ckpt_path` means, None for none.

    Args:
        trainer: whose checkpoint callbacks know the best and the last.
        path: a path, 'best', 'last' or None.
        model_given: without a model, None means the best.

    Raises:
        ValueError: there is no best one.
    """
    rescuers = [each for each in trainer.callbacks if is_a(each, "OnExceptionCheckpoint")]
    if path is None and trainer.state.fn == "fit" and rescuers:
        path = "last"  # what they wrote when an earlier fit failed
    if path is None and not model_given:
        path = "best"
    if path == "last":
        return find_last(trainer, [each.ckpt_path for each in rescuers])
    if path != "best":
        return path
    callback = trainer.checkpoint_callback
    if callback is None:
        raise ValueError("`ckpt_path='best'` needs a ModelCheckpoint callback; add one or give a path")
    found = getattr(callback, "best_model_path", None)
    if not found:
        raise ValueError("`ckpt_path='best'`: no checkpoint has been written yet; give a path")
    return found


def find_last(trainer: Any, others: list[Any]) -> str | None:
    """The newest file of those that `save_last` wrote, here or in an earlier process, and of others."""
    paths = {str(each) for each in others}
    for callback in trainer.checkpoint_callbacks:
        if hasattr(callback, "_find_last_checkpoints"):
            paths |= callback._find_last_checkpoints(trainer)
    there = [each for each in sorted(paths) if os.path.exists(each)]
    if not there:
        warnings.warn("`ckpt_path='last'`: there is no such file, nothing is loaded", stacklevel=5)
        return None
    return max(there, key=os.path.getmtime)
