"""Prediction: a model's outputs for all samples of a loader, in the data set's order."""

from __future__ import annotations

from typing import Any

import torch

from deepepochs.engine import concatenate, map_nested, move

from ..protocols import Run
from .splitting import call_model
from .task import evaluating, sync_buffers


def predict(trainer: Run, dl: Any) -> Any:
    """The outputs on the CPU, the same on all ranks; see `Trainer.predict`."""
    loader = trainer.engine.prepare_loader(dl, train=False)
    with evaluating(trainer.model):
        sync_buffers(trainer)
        outputs = [predict_batch(trainer, batch) for batch in loader]
        return trainer.engine.gather(concatenate(outputs) if outputs else None)


def predict_batch(trainer: Run, batch: Any) -> Any:
    """The outputs for one batch, whose label is left out."""
    if isinstance(batch, (list, tuple)):
        batch = tuple(batch[:-1] if trainer.loss_fn is not None and len(batch) > 1 else batch)
        batch = batch[0] if len(batch) == 1 else batch
    with trainer.engine.autocast():
        return map_nested(as_result, move(call_model(trainer.model, batch), torch.device("cpu")))


def as_result(leaf: Any) -> Any:
    """An output in a type that numpy has, too: bfloat16 as float32, which holds all of its values."""
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.bfloat16 else leaf
