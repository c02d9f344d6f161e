"""Hyper-parameters: the arguments that a module was made with, kept for logs and checkpoints."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import inspect
import types
from typing import Any, Iterator, Sequence


class AttributeDict(dict):  # type: ignore[type-arg]
    """A dictionary whose keys can be read and set as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(f"there is no hyper-parameter {name!r}; there are {sorted(map(str, self))}") from error

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __deepcopy__(self, memo: dict[int, Any]) -> AttributeDict:
        return type(self)({key: copy.deepcopy(value, memo) for key, value in self.items()})


class Hyperparameters:
    """The part of modules and data modules that keeps their hyper-parameters."""

    CHECKPOINT_HYPER_PARAMS_KEY = "hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "hparams_name"

    _log_hyperparams = False

    def save_hyperparameters(
        self,
        *args: Any,
        ignore: Sequence[str] | str | None = None,
        frame: types.FrameType | None = None,
        logger: bool = True,
    ) -> None:
        """Keeps the arguments of `__init__`, where it is called.

        Args:
            args: names of the arguments to keep; or one dictionary, namespace or dataclass to keep instead.
            ignore: names of arguments to leave out.
            frame: the frame of `__init__`; None means the caller's.
            logger: whether loggers get them.

        Raises:
            ValueError: something is to be kept that has no names.
        """
        self._log_hyperparams = logger
        if len(args) == 1 and not isinstance(args[0], str) and not args[0]:
            return
        if frame is None:
            here = inspect.currentframe()
            frame = None if here is None else here.f_back
        left_out = {ignore} if isinstance(ignore, str) else set(ignore or ())
        found = {name: value for name, value in self._arguments(frame).items() if name not in left_out}
        given = [each for each in args if not isinstance(each, str)]
        if len(given) == 1:
            names = [name for name, value in found.items() if value is given[0]]
            self._keep(given[0], names[0] if names else None)
        elif args:
            self._keep({name: found[name] for name in args}, "kwargs")
        else:
            self._keep(found, "kwargs" if found else None)
        for name in left_out:
            self.hparams.pop(name, None)
        object.__setattr__(self, "_hparams_initial", copy.deepcopy(self.hparams))

    def _arguments(self, frame: types.FrameType | None) -> dict[str, Any]:
        if dataclasses.is_dataclass(self):
            return {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.init}
        found: dict[str, Any] = {}
        for arguments in constructor_arguments(self, frame):
            found.update(arguments)
        return found

    def _keep(self, values: Any, name: str | None) -> None:
        if isinstance(values, argparse.Namespace):
            values = vars(values)
        elif dataclasses.is_dataclass(values) and not isinstance(values, type):
            values = dataclasses.asdict(values)
        try:
            values = dict(values)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"hyper-parameters must be a dictionary, a namespace or a dataclass, got {type(values).__name__}"
            ) from error
        object.__setattr__(self, "_hparams_name", name)
        self.hparams.update(values)

    @property
    def hparams(self) -> AttributeDict:
        """The hyper-parameters; they may be changed."""
        if "_hparams" not in self.__dict__:
            object.__setattr__(self, "_hparams", AttributeDict())
        found: AttributeDict = self.__dict__["_hparams"]
        return found

    @property
    def hparams_initial(self) -> AttributeDict:
        """The hyper-parameters as they were saved."""
        found: AttributeDict = copy.deepcopy(self.__dict__.get("_hparams_initial", AttributeDict()))
        return found


def constructor_arguments(instance: object, frame: types.FrameType | None) -> Iterator[dict[str, Any]]:
    """The arguments of the constructors of an object that are running, the innermost first.

    Args:
        instance: the object.
        frame: where to begin.
    """
    inside = False
    while frame is not None:
        local = frame.f_locals
        is_own = (
            frame.f_code.co_name == "__init__"
            and "__class__" in local
            and any(value is instance for value in local.values())
        )
        if is_own:
            inside = True
            yield arguments_of(frame, instance)
        elif inside:
            return
        frame = frame.f_back


def arguments_of(frame: types.FrameType, instance: object) -> dict[str, Any]:
    """The arguments that a constructor's frame was called with."""
    names, _, keywords, local = inspect.getargvalues(frame)
    code = frame.f_code
    names = [*names, *code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]]
    found = {name: local[name] for name in dict.fromkeys(names) if name in local and local[name] is not instance}
    if keywords is not None:
        found.update(local.get(keywords, {}))
    return found
