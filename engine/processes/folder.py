"""Folder: where a launch and its ranks leave each other notes; what killed launches left is removed by the next."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Iterator

from ..locks import CAN_LOCK, lock

PREFIX = "deepepochs-"
LOCK = "launch.lock"  # each process of a launch shares the lock on this file while it lives


@contextlib.contextmanager
def job_folder() -> Iterator[Path]:
    """A folder for one launch, removed at the block's end."""
    clear_dead(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with held(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # where a rank still writes, the next launch removes the rest


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Shows that a process of the launch lives, until the block ends or the process does, however."""
    with open(folder / LOCK, "ab") as file:
        lock(file.fileno(), shared=True, waits=True)  # where that fails, nobody else gets one to remove it either
        yield


def clear_dead(parent: Path) -> None:
    """Removes the folders of launches of which no process lives."""
    if not CAN_LOCK:
        return
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or gone meanwhile
            found = os.lstat(folder)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                with open(folder / LOCK, "rb") as file:
                    if lock(file.fileno()):
                        shutil.rmtree(folder)
