"""The shapes of the classes that run here: which library's base a class has, and what it overrides of it."""

from __future__ import annotations

import inspect
from typing import Any, Callable

from lightning_utilities.core.overrides import is_overridden

FAMILIES = ("deepepochs", "lightning", "pytorch_lightning")


class MisconfigurationException(ValueError):
    """What a module, its data and the trainer's arguments ask for does not go together."""


class Word(str):
    """A word that also has Lightning's `value`."""

    @property
    def value(self) -> str:
        """The word."""
        return str(self)


def base_of(kind: type, name: str) -> Any:
    """The class called `name` that a library gave to the ancestors of a class.

    Args:
        kind: any class.
        name: such as 'LightningModule', 'LightningDataModule', 'Callback'.

    Returns:
        The base of Lightning or of this package; None where the class has none.
    """
    for each in kind.__mro__:
        if each.__name__ == name and each.__module__.split(".")[0] in FAMILIES:
            return each
    return None


def is_a(instance: object, name: str) -> bool:
    """Whether an object is of a kind that a library calls `name`."""
    return base_of(type(instance), name) is not None


def overrides(instance: Any, method: str, base_name: str) -> bool:
    """Whether a class, or the object itself, has its own version of a method of its library's base."""
    parent = base_of(type(instance), base_name)
    if parent is None or not hasattr(parent, method):
        return callable(getattr(instance, method, None))
    return bool(is_overridden(method, instance, parent))


def overrides_module(module: Any, method: str) -> bool:
    """`overrides` for a LightningModule."""
    return overrides(module, method, "LightningModule")


def is_untouched(instance: Any, method: str, base_name: str) -> bool:
    """Whether calling a method would run the library's own version, which neither the class nor anybody replaced."""
    parent = base_of(type(instance), base_name)
    if parent is None or method in getattr(instance, "__dict__", {}):
        return False
    return getattr(type(instance), method, None) is getattr(parent, method, None)


def takes(function: Callable[..., Any], name: str, at_least: int | None = None, explicit: bool = False) -> bool:
    """Whether a method takes an argument.

    Args:
        function: a bound method.
        name: the argument's name.
        at_least: so many arguments count as taking it, whatever their names.
        explicit: whether `*args` does not count.
    """
    function = inspect.unwrap(function)
    found = inspect.getfullargspec(function)
    arguments = found.args[1:]  # without self
    if name in arguments or name in found.kwonlyargs:
        return True
    return (not explicit and found.varargs is not None) or (at_least is not None and len(arguments) >= at_least)


def sign_of(mode: str) -> int:
    """1 where small is good, -1 where large is.

    Raises:
        MisconfigurationException: `mode` is neither 'min' nor 'max'.
    """
    if mode not in ("min", "max"):
        raise MisconfigurationException(f"`mode` must be 'min' or 'max', got {mode!r}")
    return 1 if mode == "min" else -1
