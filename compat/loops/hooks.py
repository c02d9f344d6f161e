"""Calls: finds the hooks of module, data module and callbacks, and calls them in Lightning's order."""

from __future__ import annotations

from typing import Any, Callable

from ..overrides import is_a, is_untouched

PASSES = [f"{stage}{part}" for stage in ("train", "validation", "test", "predict") for part in ("", "_epoch", "_batch")]
MOMENTS = [f"on_{what}_{end}" for what in [*PASSES, "fit", "sanity_check"] for end in ("start", "end")]
UPDATES = ["on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"]
OTHERS = ["on_exception", "setup", "teardown", "on_save_checkpoint", "on_load_checkpoint"]
SILENT = frozenset([*MOMENTS, *UPDATES, *OTHERS])  # hooks whose version in the library's base does nothing
UNKNOWN: Any = object()


class Calls:
    """Calls hooks of one module with its data module and callbacks; what would do nothing is not called.

    Args:
        trainer: handed to the callbacks.
        module: the LightningModule.
    """

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer, self._module = trainer, module
        self._state: dict[str, Any] = module.__dict__  # where the running hook's name lies, without Module's checks
        self._methods: dict[str, Callable[..., Any] | None] = {}
        self._listeners: dict[tuple[str, bool | None], tuple[list[Any], list[Callable[..., Any]]]] = {}

    def module(self, hook: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a hook of the module; `self.log` in it knows where it is."""
        method = self._methods.get(hook, UNKNOWN)
        if method is UNKNOWN:
            method = self._methods[hook] = self._find(hook)
        if method is None:
            return None
        return self.within(hook, method, *args, **kwargs)

    def _find(self, hook: str) -> Callable[..., Any] | None:
        if hook in SILENT and is_untouched(self._module, hook, "LightningModule"):
            return None
        method = getattr(self._module, hook, None)
        return method if callable(method) else None

    def within(self, hook: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function as a part of a hook of the module."""
        state = self._state
        before = state.get("_current_fx_name")
        state["_current_fx_name"] = hook
        result = function(*args, **kwargs)
        state["_current_fx_name"] = before
        return result

    def datamodule(self, hook: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a hook of the data module, where there is one."""
        method = getattr(self._trainer.datamodule, hook, None)
        return method(*args, **kwargs) if callable(method) else None

    def callbacks(self, hook: str, *args: Any, monitoring: bool | None = None, **kwargs: Any) -> None:
        """Calls a hook of all callbacks.

        Args:
            hook: its name.
            args: what the hook gets besides trainer and module.
            monitoring: only the callbacks that follow a metric, or only the others; None means all.
            kwargs: the same by name.
        """
        listeners = self._listening(hook, monitoring)
        if not listeners:
            return
        state = self._state
        before = state.get("_current_fx_name")
        state["_current_fx_name"] = hook
        for listener in listeners:
            listener(self._trainer, self._module, *args, **kwargs)
        state["_current_fx_name"] = before

    def _listening(self, hook: str, monitoring: bool | None) -> list[Callable[..., Any]]:
        found = self._listeners.get((hook, monitoring))
        callbacks = self._trainer.callbacks
        if found is not None and found[0] == callbacks:
            return found[1]
        chosen = [each for each in callbacks if monitoring is None or monitors(each) is monitoring]
        methods = [getattr(each, hook, None) for each in chosen if not is_silent(each, hook)]
        listeners = [method for method in methods if callable(method)]
        self._listeners[hook, monitoring] = list(callbacks), listeners
        return listeners

    def both(self, hook: str, *args: Any) -> Any:
        """Calls a hook of the callbacks, then the module's, whose result counts."""
        self.callbacks(hook, *args)
        return self.module(hook, *args)


def is_silent(callback: Any, hook: str) -> bool:
    """Whether a callback's hook would do nothing."""
    return hook in SILENT and is_untouched(callback, hook, "Callback")


def monitors(callback: Any) -> bool:
    """Whether a callback follows a metric, so that it must come after what logs it."""
    return is_a(callback, "EarlyStopping") or is_a(callback, "Checkpoint")
