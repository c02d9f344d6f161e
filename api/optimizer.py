"""Optimizers with their learning-rate schedulers."""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict
from typing import Any, Iterable, Mapping, Sequence

import torch

CODE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, weakref.ref)


class Optimizer:
    """A torch optimizer and the scheduler of its learning rate.

    Args:
        opt: the torch optimizer.
        scheduler: its scheduler, or None.
        sched_on: whether the scheduler moves once an 'epoch' or once a 'step', that is an update.
        sched_with_loss: whether its `step` takes the loss, as ReduceLROnPlateau's does.

    Raises:
        TypeError: `opt` is not a torch optimizer.
        ValueError: `sched_on` is neither 'epoch' nor 'step', the scheduler drives another optimizer, or it needs the
            loss and is not to get it.
    """

    def __init__(
        self, opt: torch.optim.Optimizer, scheduler: Any = None, sched_on: str = "epoch", sched_with_loss: bool = False
    ) -> None:
        if not isinstance(opt, torch.optim.Optimizer):
            raise TypeError(f"`opt` must be a torch.optim.Optimizer, got {type(opt).__name__}")
        if sched_on not in ("epoch", "step"):
            raise ValueError(f"`sched_on` must be 'epoch' or 'step', got {sched_on!r}")
        if scheduler is not None and getattr(scheduler, "optimizer", opt) is not opt:
            raise ValueError("`scheduler` drives another optimizer than `opt`; make it with the same one")
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) and not sched_with_loss:
            raise ValueError("ReduceLROnPlateau follows the loss; add `sched_with_loss=True`")
        self.opt = opt
        self.scheduler = scheduler
        self.sched_on = sched_on
        self.sched_with_loss = sched_with_loss

    def zero_grad(self) -> None:
        """Frees the gradients."""
        self.opt.zero_grad()

    def step(self, at: str = "step", loss: Any = None) -> None:
        """Updates the parameters, or moves the scheduler that waits for this moment.

        Args:
            at: 'step' updates the parameters and moves a step scheduler; 'epoch' moves an epoch scheduler.
            loss: for a scheduler that takes it.

        Raises:
            ValueError: `at` is neither.
        """
        if at not in ("epoch", "step"):
            raise ValueError(f"`at` must be 'epoch' or 'step', got {at!r}")
        if at == "step":
            self.opt.step()
        if self.sched_on == at:
            self.sched_step(loss)

    def sched_step(self, loss: Any = None) -> None:
        """Moves the scheduler, if there is one.

        Args:
            loss: a number or 0-dim tensor for a scheduler that takes it.

        Raises:
            ValueError: the scheduler takes the loss, and there is none.
        """
        if self.scheduler is None:
            return
        if not self.sched_with_loss:
            self.scheduler.step()
        elif loss is None:
            raise ValueError(
                "a scheduler with `sched_with_loss=True` needs a metric named 'loss', and the steps gave none; "
                "call self.loss(...) in the step or return {'loss': ValuePatch(...)}"
            )
        else:
            self.scheduler.step(loss)

    def state_dict(self) -> dict[str, Any]:
        """The states of the optimizer (`opt_state`) and of its scheduler (`sched_state`), without functions in it."""
        return {
            "opt_state": self.opt.state_dict(),
            "sched_state": None if self.scheduler is None else without_code(self.scheduler.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave; functions in the scheduler's state stay the present ones."""
        self.opt.load_state_dict(state["opt_state"])
        if self.scheduler is not None and state["sched_state"] is not None:
            self.scheduler.load_state_dict(with_code(state["sched_state"], self.scheduler.state_dict()))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups."""
        return self.opt.param_groups

    def get_last_lr(self) -> list[float] | None:
        """The scheduler's last learning rates, one a group; None without a scheduler."""
        return None if self.scheduler is None else list(self.scheduler.get_last_lr())

    def get_current_lr(self) -> float:
        """The learning rate of the first group."""
        return float(self.param_groups[0]["lr"])


def without_code(state: Any) -> Any:
    """A scheduler's state without functions, classes and methods, as some versions of torch put into it.

    Args:
        state: a dictionary, list or tuple, however nested. An entry of a dictionary goes; an item of a list, whose
            place counts, becomes None.
    """
    if type(state) in (dict, OrderedDict):
        return {name: without_code(value) for name, value in state.items() if not is_code(value)}
    if type(state) in (list, tuple):
        return type(state)(None if is_code(value) else without_code(value) for value in state)
    return state


def with_code(state: Any, present: Any) -> Any:
    """What `without_code` left, with the functions that the present state has in their places."""
    if type(state) in (dict, OrderedDict) and isinstance(present, Mapping):
        kept = {name: value for name, value in present.items() if name not in state and is_code(value)}
        return {**{name: with_code(value, present.get(name)) for name, value in state.items()}, **kept}
    if type(state) in (list, tuple) and type(present) is type(state) and len(present) == len(state):
        return type(state)(
            own if value is None and is_code(own) else with_code(value, own) for value, own in zip(state, present)
        )
    return state


def is_code(value: Any) -> bool:
    """Whether it is a function, a method or a class: a file can hold no more than its name."""
    return isinstance(value, CODE)


class Optimizers(list):  # type: ignore[type-arg]
    """Several `Optimizer` objects as one."""

    def zero_grad(self) -> None:
        """Frees all gradients."""
        for opt in self:
            opt.zero_grad()

    def step(self, at: str = "step", loss: Any = None) -> None:
        """Calls `step` of each."""
        for opt in self:
            opt.step(at, loss)

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of each, in order."""
        return [opt.state_dict() for opt in self]

    def load_state_dict(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restores each.

        Raises:
            ValueError: the number of states differs.
        """
        if len(states) != len(self):
            raise ValueError(f"the state holds {len(states)} optimizers, the trainer has {len(self)}")
        for opt, state in zip(self, states):
            opt.load_state_dict(state)

    def get_last_lr(self) -> list[list[float] | None]:
        """The last learning rates of each."""
        return [opt.get_last_lr() for opt in self]

    def get_current_lr(self) -> list[float]:
        """The current learning rate of each."""
        return [opt.get_current_lr() for opt in self]


def as_optimizers(opt: Any, model: torch.nn.Module) -> Optimizers:
    """Turns what a user may give as `opt` into Optimizers.

    Args:
        opt: None (Adam with learning rate 1e-3), a torch optimizer, an Optimizer, Optimizers, or a list of these.
        model: whose parameters Adam takes.

    Raises:
        TypeError: `opt` is something else.
        ValueError: an optimizer is there twice.
    """
    if opt is None:
        trained = [each for each in model.parameters() if each.requires_grad]
        return Optimizers([Optimizer(torch.optim.Adam(trained, lr=0.001))] if trained else [])
    if isinstance(opt, (Optimizer, torch.optim.Optimizer)):
        opt = [opt]
    if not isinstance(opt, (list, tuple)) or not all(
        isinstance(each, (Optimizer, torch.optim.Optimizer)) for each in opt
    ):
        got = [type(each).__name__ for each in opt] if isinstance(opt, (list, tuple)) else type(opt).__name__
        raise TypeError(f"`opt` must be a torch optimizer, an Optimizer, Optimizers or a list of these, got {got}")
    optimizers = Optimizers([each if isinstance(each, Optimizer) else Optimizer(each) for each in opt])
    if len({id(each.opt) for each in optimizers}) < len(optimizers):
        raise ValueError("`opt` holds the same torch optimizer twice, it would step twice; leave one out")
    return optimizers


def check_parameters(optimizers: Iterable[Optimizer], modules: Sequence[Any], strict: bool) -> None:
    """Refuses an optimizer that does not train the model.

    Args:
        optimizers: to check.
        modules: the model, and the loss where it is a module.
        strict: refuse any foreign parameter, since other ranks would not see its gradient.

    Raises:
        ValueError: its parameters are those of another model.
    """
    own = {id(each) for module in modules if isinstance(module, torch.nn.Module) for each in module.parameters()}
    for index, optimizer in enumerate(optimizers):
        held = [each for group in optimizer.param_groups for each in group["params"]]
        foreign = sum(id(each) not in own for each in held)
        if foreign == len(held) or (strict and foreign):
            raise ValueError(
                f"optimizer {index} ({type(optimizer.opt).__name__}) holds {foreign} of {len(held)} parameters that "
                "are not the model's; make it from the parameters of the model that the trainer gets"
            )
