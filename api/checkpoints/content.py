"""Checkpoints: a trainer's whole state as one file's content, and back: all of it or nothing."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Iterable, Mapping

import torch

from deepepochs.engine import CheckpointError, load_file, load_rng_state, rng_state

from ..callbacks import Callback, CheckCallback
from ..protocols import Run
from ..version import __version__

FORMAT_VERSION = 1
NEEDED = ("model_state", "opt_state", "epoch")


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
        "model_state": engine.model_state(trainer.model),
        "opt_state": trainer.opt.state_dict(),
        "scaler_state": state["scaler"],
        "seed": state["seed"],
        "epoch": trainer.init_epoch,
        "step": trainer.global_step,
        "progress": trainer.history,
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
        CheckpointError: it is no checkpoint, or of a newer format.
    """
    if not isinstance(content, dict) or any(name not in content for name in NEEDED):
        got = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{str(path)!r} is no checkpoint: it must hold {list(NEEDED)}, got {got}")
    version = content.get("format_version", 0)
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{str(path)!r} has the format {version}, this library reads up to {FORMAT_VERSION}; "
            f"it was written by {content.get('library')}: upgrade"
        )
    found: dict[str, Any] = content
    if version == 0:  # the predecessor counts the finished epoch's index, and knows one monitor
        found = {**found, "epoch": found["epoch"] + 1}
    return found


def restore(trainer: Run, monitors: list[CheckCallback], content: dict[str, Any], path: str | os.PathLike[str]) -> Any:
    """Puts a checkpoint's content into a trainer: all of it, or nothing.

    Args:
        trainer: whose state.
        monitors: all of its monitors.
        content: from `read`.
        path: where it was read.

    Returns:
        This rank's generator states for the next fit; None where the file has none for it.

    Raises:
        CheckpointError: model or optimizers do not fit; the trainer is as before.
    """
    before = copy.deepcopy(
        (trainer.engine.model_state(trainer.model), trainer.opt.state_dict(), trainer.engine.state_dict())
    )
    try:
        _apply(trainer, content["model_state"], content["opt_state"], engine_state(trainer, content))
    except Exception as error:
        _apply(trainer, *before)
        first = " ".join(str(error).split())[:600]
        raise CheckpointError(f"the checkpoint {str(path)!r} does not fit this trainer: {first}") from error
    trainer.init_epoch = content["epoch"]
    trainer.global_step = content.get("step", 0)
    trainer.history = {stage: dict(lists) for stage, lists in content.get("progress", {"train": {}, "val": {}}).items()}
    restore_monitors(monitors, content, Path(path))
    restore_callbacks(trainer, content)
    trainer.loader_states = content.get("loader", [])
    trainer.position = own_position(trainer, content.get("position"))
    states = content.get("rng_state", [])
    return states[trainer.engine.rank] if len(states) == trainer.engine.world_size else None


def engine_state(trainer: Run, content: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's part of a checkpoint."""
    present = trainer.engine.state_dict()
    return {"scaler": content.get("scaler_state") or present["scaler"], "seed": content.get("seed", present["seed"])}


def _apply(trainer: Run, model_state: Any, opt_state: Any, engine_states: Any) -> None:
    trainer.engine.load_model_state(trainer.model, model_state)
    trainer.opt.load_state_dict(opt_state)
    trainer.engine.load_state_dict(engine_states)


def restore_monitors(monitors: list[CheckCallback], content: Mapping[str, Any], path: Path) -> None:
    """Gives each monitor its state, and the place of its file beside the one that was loaded."""
    saved = content.get("monitors")
    if saved is None:  # the predecessor's files hold the best value of their own monitor
        saved = [
            {**each.identity(), "best_value": content.get("best_value"), "worse_times": 0} for each in monitors[:1]
        ]
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
    """
    if position is None:
        return None
    ranks = trainer.engine.world_size
    if len(position["start"]) != ranks:
        raise CheckpointError(
            f"a checkpoint within an epoch of {len(position['start'])} processes goes on with as many, "
            f"not with {ranks}; use one from an epoch's end"
        )
    own = {name: position[name][trainer.engine.rank] for name in ("start", "totals", "loader")}
    return {**position, **own}


def newest(trainer: Run, monitors: list[CheckCallback], run: str | None) -> Path | None:
    """The newest checkpoint in the folders of all monitors, the same on all ranks.

    Args:
        trainer: whose ranks.
        monitors: their folders are searched.
        run: a run's name; None searches all runs.
    """
    found: list[tuple[int, str]] = []
    if trainer.main_process:
        for folder in dict.fromkeys(Path(each.ckpt_dir) for each in monitors):
            runs: Iterable[Path] = folder.iterdir() if run is None and folder.is_dir() else [folder / str(run)]
            for file in [file for each in runs for file in each.glob("checkpoint*.ckpt")]:
                found.append((file.stat().st_mtime_ns, str(file)))
    chosen = trainer.engine.broadcast_object(max(found)[1] if found else None)
    return None if chosen is None else Path(chosen)


def apply_rng(state: Any) -> None:
    """Puts the generators where they were when the checkpoint was written."""
    if state is not None:
        load_rng_state(state)
