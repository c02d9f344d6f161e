"""Groups: parameter groups of optimizers by the names of their parameters, and those that were added while training."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch

from deepepochs.engine import unwrap

from ..modules import given_modules
from ..protocols import Run


def parameter_names(trainer: Run) -> dict[str, torch.nn.Parameter]:
    """All parameters of the model and of the loss, by canonical names."""
    return {
        f"{owner}.{name.replace('_orig_mod.', '')}": each
        for owner, module in given_modules(trainer).items()
        for name, each in unwrap(module).named_parameters()
    }


def held_parameters(trainer: Run) -> list[list[list[str | None]]]:
    """The names of the parameters in each group of each optimizer."""
    names = {id(each): name for name, each in parameter_names(trainer).items()}
    return [[[names.get(id(each)) for each in group["params"]] for group in opt.param_groups] for opt in trainer.opt]


def check_groups(trainer: Run, saved: Any) -> None:
    """Refuses optimizers that hold other parameters than those of a file: each would get another one's state.

    Args:
        trainer: whose optimizers.
        saved: from `held_parameters`; None in a file that does not say.

    Raises:
        ValueError: a group differs, or one that was added holds what this model does not have.
    """
    if saved is None or len(saved) != len(trainer.opt):  # the number is refused where the states are loaded
        return
    known = parameter_names(trainer)
    for own, groups in zip(held_parameters(trainer), saved):
        for index, (present, names) in enumerate(zip(own, groups)):
            if present != names:
                other = next((name for name in names if name not in present), "the same ones in another order")
                raise ValueError(f"group {index} of an optimizer trains other parameters than in the file: {other}")
        missing = [name for names in groups[len(own) :] for name in names if name not in known]
        if missing:
            raise ValueError(f"its optimizer trains {missing[0]!r}, which this model does not have")


def of_first_groups(state: Mapping[str, Any], count: int) -> dict[str, Any]:
    """An optimizer's state without the groups after the first ones.

    Args:
        state: an `Optimizer`'s, as a file holds it.
        count: how many groups stay.
    """
    inner = state["opt_state"]
    groups = inner["param_groups"][:count]
    kept = {index for group in groups for index in group["params"]}
    values = {index: value for index, value in inner["state"].items() if index in kept}
    return {**state, "opt_state": {**inner, "state": values, "param_groups": groups}}


def grown(trainer: Run, saved: Any) -> bool:
    """Whether the file's optimizers have groups that are added while training."""
    return saved is not None and any(len(groups) > len(opt.param_groups) for opt, groups in zip(trainer.opt, saved))


def complete_groups(trainer: Run, states: Sequence[Mapping[str, Any]], saved: Any) -> None:
    """Gives the optimizers the groups that a callback had added by then, if it has not done so again, and their states.

    Args:
        trainer: whose optimizers.
        states: the optimizers' in the file.
        saved: from `held_parameters`.

    Raises:
        ValueError: a callback has added other ones than in the file.
    """
    known = parameter_names(trainer)
    for opt, groups in zip(trainer.opt, saved):
        for names in groups[len(opt.param_groups) :]:
            opt.opt.add_param_group({"params": [known[name].requires_grad_() for name in names]})
    check_groups(trainer, saved)
    for opt, state in zip(trainer.opt, states):
        opt.opt.load_state_dict(state["opt_state"])
