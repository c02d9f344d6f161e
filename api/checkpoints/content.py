"""Content: a trainer's whole state as one file's content, and back: all of it or nothing."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Mapping

import torch

from deepepochs.engine import CheckpointError, load_file, load_rng_state, rng_state

from ..callbacks import Callback, CheckCallback
from ..history import Progress
from ..modules import given_modules
from ..protocols import Run
from ..version import __version__
from .groups import check_groups, grown, held_parameters, of_first_groups
from .mid_epoch import check_reading

FORMAT_VERSION = 1
NEEDED = ("model_state", "opt_state", "epoch")
WAITING = ("generator_states", "position", "rng_state", "pending_groups")  # of a checkpointer, for the next fit
KINDS: dict[str, Any] = {
    "format_version": int,
    "model_state": Mapping,
    "loss_state": Mapping,
    "opt_state": (list, Mapping),
    "epoch": int,
    "step": int,
    "progress": Mapping,
    "progress_epochs": Mapping,
    "monitors": list,
    "callbacks": list,
    "rng_state": list,
    "loader": list,
    "world_size": int,
}


def model_states(trainer: Run) -> dict[str, Any]:
    """The states of the modules that the trainer was given: the model's, and the loss's where it has one."""
    states = {f"{name}_state": trainer.engine.model_state(each) for name, each in given_modules(trainer).items()}
    return {name: state for name, state in states.items() if state or name == "model_state"}


def collect(trainer: Run, monitors: list[CheckCallback], path: Path, position: Any = None) -> dict[str, Any]:
    """What a checkpoint file holds; every rank calls it, rank 0 writes it.

    Args:
        trainer: whose state.
        monitors: all of its monitors, in the order of their declaration.
        path: the file, from which the other monitors' files are found again after a move.
        position: where within an epoch it is; None at an epoch's end.
    """
    engine = trainer.engine
    state = engine.state_dict()
    return {
        "format_version": FORMAT_VERSION,
        "library": f"deepepochs {__version__}",
        "torch": str(torch.__version__),
        "running_id": trainer.running_id,
        "world_size": engine.world_size,
        **model_states(trainer),
        "opt_state": trainer.opt.state_dict(),
        "opt_params": held_parameters(trainer),
        "scaler_state": state["scaler"],
        "seed": state["seed"],
        "epoch": trainer.init_epoch,
        "step": trainer.global_step,
        "progress": trainer.history,
        "progress_epochs": getattr(trainer.history, "epochs", {}),
        "monitors": [
            {**each.state_dict(), "file": os.path.relpath(each.path(trainer), path.parent)} for each in monitors
        ],
        "callbacks": [[type(each).__name__, each.state_dict()] for each in others(trainer)],
        "rng_state": engine.gather_object(rng_state()),
        "position": position,
        "loader": [task.generator_states() for task in trainer.train_tasks],
    }


def read(trainer: Run, path: str | os.PathLike[str]) -> dict[str, Any]:
    """A file's content on all ranks; the main process alone reads it.

    Raises:
        CheckpointError: the file is missing, damaged, unsafe, of a newer format, or no checkpoint; on all ranks.
    """
    content: Any = None
    if trainer.main_process:
        try:
            content = checked(load_file(path), path)
        except CheckpointError as error:
            content = str(error)
    content = trainer.engine.broadcast_object(content)
    if isinstance(content, str):
        raise CheckpointError(content)
    found: dict[str, Any] = content
    return found


def checked(content: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """A file's content in the present format.

    Raises:
        CheckpointError: it is no checkpoint, of a newer format, or an entry is of a wrong kind.
    """
    if not isinstance(content, dict) or any(name not in content for name in NEEDED):
        got = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{str(path)!r} is no checkpoint: it must hold {list(NEEDED)}, got {got}")
    for name, kind in KINDS.items():
        if name in content and (not isinstance(content[name], kind) or isinstance(content[name], bool)):
            raise CheckpointError(f"{str(path)!r} is no checkpoint: its {name!r} is a {type(content[name]).__name__}")
    version = content.get("format_version", 0)
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{str(path)!r} has the format {version}, this library reads up to {FORMAT_VERSION}; "
            f"it was written by {content.get('library')}: upgrade"
        )
    found: dict[str, Any] = content
    if version == 0:  # the predecessor counts the finished epoch's index, and knows one monitor
        found = {**found, "epoch": found["epoch"] + 1}
    if found["epoch"] < 0 or found.get("step", 0) < 0:
        raise CheckpointError(f"{str(path)!r} is no checkpoint: it counts {found['epoch']} epochs")
    return found


def restore(
    trainer: Run, checkpointer: Any, content: dict[str, Any], path: str | os.PathLike[str], tasks: Any = None
) -> None:
    """Puts a checkpoint's content into a trainer: all of it, or nothing.

    Args:
        trainer: whose state.
        checkpointer: the trainer's, which keeps what the next fit needs.
        content: from `read`.
        path: where it was read.
        tasks: the training tasks that go on with it, if they are known.

    Raises:
        CheckpointError: something in it does not fit; the trainer is as before.
    """
    before = _snapshot(trainer, checkpointer)
    failure: Exception | None = None
    try:
        if tasks is not None:
            check_reading(content.get("position"), tasks)
        _apply(trainer, checkpointer, content, Path(path))
    except Exception as error:  # torch, optimizers and callbacks have many errors for what does not fit
        failure = error
    if trainer.engine.world_size > 1:
        failures = trainer.engine.gather_object(None if failure is None else str(failure))
        told = next((each for each in failures if each is not None), None)
        if failure is None and told is not None:  # one rank alone must not go on with the file
            failure = CheckpointError(told)
    if failure is not None:
        _put_back(trainer, checkpointer, before)
        first = " ".join(str(failure).split())[:600]
        raise CheckpointError(f"the checkpoint {str(path)!r} does not fit this trainer: {first}") from failure


def _apply(trainer: Run, checkpointer: Any, content: dict[str, Any], path: Path) -> None:
    position = own_position(trainer, content.get("position"))
    generators = own_generators(trainer, content.get("rng_state", []))
    history = Progress(plain_history(content.get("progress", {})), plain_epochs(content.get("progress_epochs", {})))
    trainer.load_model_states(content)
    checkpointer.pending_groups = load_optimizers(trainer, content)
    trainer.engine.load_state_dict(engine_state(trainer, content))
    trainer.init_epoch = content["epoch"]
    trainer.global_step = content.get("step", 0)
    trainer.history = history
    restore_monitors(checkpointer.monitors, content, path)
    restore_callbacks(trainer, content)
    checkpointer.generator_states = content.get("loader", [])
    checkpointer.position, checkpointer.rng_state = position, generators


def _snapshot(trainer: Run, checkpointer: Any) -> dict[str, Any]:
    """Everything that `_apply` changes, as it is."""
    monitors, rest = checkpointer.monitors, others(trainer)
    return {
        **copy.deepcopy({**model_states(trainer), "opt": trainer.opt.state_dict()}),
        "engine": copy.deepcopy(trainer.engine.state_dict()),
        "trainer": (trainer.init_epoch, trainer.global_step, trainer.history),
        "monitors": [(each.state_dict(), each.found) for each in monitors],
        "callbacks": [copy.deepcopy(each.state_dict()) for each in rest],
        "checkpointer": {name: getattr(checkpointer, name) for name in WAITING},
    }


def _put_back(trainer: Run, checkpointer: Any, before: dict[str, Any]) -> None:
    trainer.load_model_states(before)
    trainer.opt.load_state_dict(before["opt"])
    trainer.engine.load_state_dict(before["engine"])
    trainer.init_epoch, trainer.global_step, trainer.history = before["trainer"]
    for monitor, (state, found) in zip(checkpointer.monitors, before["monitors"]):
        monitor.load_state_dict(state)
        monitor.found = found
    for callback, state in zip(others(trainer), before["callbacks"]):
        callback.load_state_dict(state)
    vars(checkpointer).update(before["checkpointer"])


def load_optimizers(trainer: Run, content: dict[str, Any]) -> Any:
    """Loads the optimizers' states.

    Returns:
        What waits for the callbacks that add parameter groups while training; None for nothing.
    """
    states, saved = content["opt_state"], content.get("opt_params")
    check_groups(trainer, saved)
    if not grown(trainer, saved):
        trainer.opt.load_state_dict(states)
        return None
    trainer.opt.load_state_dict(
        [of_first_groups(state, len(opt.param_groups)) for opt, state in zip(trainer.opt, states)]
    )
    return states, saved


def engine_state(trainer: Run, content: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's part of a checkpoint."""
    present = trainer.engine.state_dict()
    return {"scaler": content.get("scaler_state") or present["scaler"], "seed": content.get("seed", present["seed"])}


def plain_history(progress: Mapping[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """The metrics of finished epochs, a list for each name of both stages.

    Raises:
        ValueError: it has another form.
    """
    found = {stage: progress.get(stage, {}) for stage in ("train", "val")}
    lists = [values for names in found.values() if isinstance(names, Mapping) for values in names.values()]
    if not all(isinstance(names, Mapping) for names in found.values()) or not all(
        isinstance(values, list) for values in lists
    ):
        raise ValueError("its 'progress' must hold a list for each metric of 'train' and 'val'")
    return {stage: {name: list(values) for name, values in names.items()} for stage, names in found.items()}


def plain_epochs(epochs: Mapping[str, Any]) -> dict[str, list[int]]:
    """The numbers of the epochs in a history.

    Raises:
        ValueError: they are none.
    """
    if not all(isinstance(each, list) and all(isinstance(number, int) for number in each) for each in epochs.values()):
        raise ValueError("its 'progress_epochs' must hold a list of numbers for each stage")
    return dict(epochs)


def own_generators(trainer: Run, states: list[Any]) -> Any:
    """This rank's generator states; None where the file has none for it.

    Raises:
        ValueError: they are no states of generators.
    """
    if len(states) != trainer.engine.world_size:
        return None
    return checked_generators(states[trainer.engine.rank])


def checked_generators(state: Any) -> Any:
    """States of generators that can be put back, shown by doing it.

    Raises:
        ValueError: they cannot.
    """
    present = rng_state()
    try:
        load_rng_state(state)
    except Exception as error:  # python, numpy and torch have many errors for what is no state
        raise ValueError(f"its 'rng_state' holds no states of generators: {error}") from error
    finally:
        load_rng_state(present)
    return state


def restore_monitors(monitors: list[CheckCallback], content: Mapping[str, Any], path: Path) -> None:
    """Gives each monitor its state, and the place of its file beside the one that was loaded."""
    saved = content.get("monitors")
    if saved is None:  # the predecessor's files hold the best value of their own monitor
        saved = [
            {**each.identity(), "best_value": content.get("best_value"), "worse_times": 0} for each in monitors[:1]
        ]
    if not all(isinstance(state, Mapping) for state in saved):
        raise ValueError("its 'monitors' must be dictionaries")
    left = list(saved)
    for monitor in monitors:
        for state in left:
            if all(state.get(name) == value for name, value in monitor.identity().items()):
                monitor.load_state_dict(state)
                monitor.found = _beside(path, state.get("file"), is_own=content.get("position") is None)
                left.remove(state)
                break


def others(trainer: Run) -> list[Callback]:
    """The callbacks that are no monitors, whose states a file holds apart."""
    return [each for each in trainer.callbacks if not isinstance(each, CheckCallback)]


def restore_callbacks(trainer: Run, content: Mapping[str, Any]) -> None:
    """Gives each callback the state that the first one of its kind left; those that are new begin anew."""
    left = list(content.get("callbacks", []))
    if not all(isinstance(saved, (list, tuple)) and len(saved) == 2 for saved in left):
        raise ValueError("its 'callbacks' must be pairs of a name and a state")
    for callback in others(trainer):
        for saved in left:
            if saved[0] == type(callback).__name__:
                callback.load_state_dict(saved[1])
                left.remove(saved)
                break


def _beside(path: Path, relative: str | None, is_own: bool) -> Path | None:
    """A monitor's file: at its old place relative to the loaded one, or the loaded one, renamed as it may be."""
    if relative is not None and (path.parent / relative).is_file():
        return path.parent / relative
    return path if is_own else None


def own_position(trainer: Run, position: Any) -> Any:
    """Where within an epoch this rank goes on; None for an epoch's beginning.

    Raises:
        CheckpointError: other ranks were at work: what each had read cannot be shared out anew.
        ValueError: it has another form.
    """
    if position is None:
        return None
    lists = ("start", "totals", "loader")
    if not isinstance(position, Mapping) or not all(isinstance(position.get(name), list) for name in lists):
        raise ValueError(f"its 'position' must be a dictionary with lists {list(lists)}")
    numbers = [position.get(name) for name in ("task", "batches")]
    if not all(isinstance(each, int) and each >= 0 for each in numbers):
        raise ValueError(f"its 'position' must hold a task and a number of batches, got {numbers}")
    if not isinstance(position.get("finished"), Mapping):
        raise ValueError("its 'position' must hold the metrics of finished tasks")
    ranks = trainer.engine.world_size
    if len({len(position[name]) for name in lists}) > 1 or len(position["start"]) != ranks:
        raise CheckpointError(
            f"a checkpoint within an epoch of {len(position['start'])} processes goes on with as many, "
            f"not with {ranks}; use one from an epoch's end"
        )
    own = {name: position[name][trainer.engine.rank] for name in lists}
    if not isinstance(own["start"], Mapping) or not isinstance(own["start"].get("loader"), list):
        raise ValueError("its 'position' must hold the states at the epoch's start")
    checked_generators(own["start"].get("rng"))
    return {**position, **own}
