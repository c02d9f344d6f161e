"""Files: the names of checkpoints in the folders of runs, and finding the newest of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Iterable, Sequence

from deepepochs.engine import CheckpointError, load_file

from ..protocols import Run
from .finiteness import is_beside


def newest(trainer: Run, monitors: Sequence[Any], run: str | None) -> Path | None:
    """The newest checkpoint in the folders of all monitors, the same on all ranks.

    Runs are compared by the time of their last file, the files of one run by how far its training had come: copies and
    restored backups keep no times to rely on. A state that is not finite is none to go on from.

    Args:
        trainer: whose ranks.
        monitors: their folders are searched.
        run: a run's name; None searches all runs.
    """
    found: list[Path] = []
    if trainer.main_process:
        for folder in dict.fromkeys(Path(each.ckpt_dir) for each in monitors):
            runs: Iterable[Path] = folder.iterdir() if run is None and folder.is_dir() else [folder / str(run)]
            files = [file for each in runs for file in each.glob("checkpoint*.ckpt")]
            found += [file for file in files if not is_beside(file)]
        latest = max(found, key=_written, default=None)
        if latest is not None:
            found = [file for file in found if file.parent.name == latest.parent.name]
    chosen = str(max(found, key=_progress)) if len(found) > 1 else str(found[0]) if found else None
    path = trainer.engine.broadcast_object(chosen)
    return None if path is None else Path(path)


def _written(file: Path) -> tuple[int, str]:
    try:
        return file.stat().st_mtime_ns, str(file)
    except OSError:  # a link to nowhere
        return 0, str(file)


def _progress(file: Path) -> tuple[int, int, tuple[int, str]]:
    """How far the training had come; what cannot be read comes first, to be named, not passed over."""
    try:
        content = load_file(file)
        return int(content["epoch"]), int(content.get("step", 0)), _written(file)
    except (CheckpointError, KeyError, TypeError, ValueError, AttributeError):
        return sys.maxsize, 0, _written(file)
