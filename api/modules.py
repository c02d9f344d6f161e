"""Modules: those that a trainer is given, the model and a loss that is one; what is done to one is done to both."""

from __future__ import annotations

from typing import Any

import torch

from deepepochs.engine import Engine


def prepare_loss(engine: Engine, loss: Any, model: torch.nn.Module) -> Any:
    """The loss as steps call it.

    Args:
        engine: moves it to the device, and makes it data parallel where it has parameters and there are several ranks.
        loss: a function, a module, or None.
        model: the model as its author wrote it.

    Raises:
        ValueError: on several ranks the loss trains parameters of its own beside some of the model's.
    """
    if not isinstance(loss, torch.nn.Module):
        return loss
    trained = [each for each in loss.parameters() if each.requires_grad]
    of_model = {id(each) for each in model.parameters()}
    shared = sum(id(each) in of_model for each in trained)
    if not trained or shared == len(trained):
        return loss.to(engine.device)
    if shared and engine.world_size > 1:
        raise ValueError(
            f"the loss {type(loss).__name__} holds {shared} parameters of the model beside "
            f"{len(trained) - shared} of its own: their gradients cannot be averaged twice; give the loss its own only"
        )
    return engine.prepare_model(loss)


def given_modules(trainer: Any) -> dict[str, torch.nn.Module]:
    """The modules of a trainer: 'model', and 'loss' where the loss is a module."""
    pairs = {"model": trainer.model, "loss": trainer.loss_fn}
    return {name: module for name, module in pairs.items() if isinstance(module, torch.nn.Module)}
