"""Atomic files: a new content takes a file's place when it is whole and on the disk, or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import stat
import time
from pathlib import Path
from typing import BinaryIO, Iterator

from .locks import lock

FORGOTTEN_S = 24 * 3600.0  # where files cannot be locked, one that nobody has touched for so long is a leftover


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """The file that takes `path`'s place at the block's end; an exception in it leaves the old one.

    It has a name of its own, so that writers of the same file do not meet, and is made anew, so that no link of that
    name is followed. It keeps the old file's permissions. What killed writers left is removed.

    Args:
        path: the file; its folder is there.
    """
    part, descriptor = _new_part(path)
    try:
        with open(descriptor, "wb") as file:
            _keep_permissions(path, part)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    _sync_folder(path.parent)
    _clear_leftovers(path)


def _new_part(path: Path) -> tuple[Path, int]:
    """A temporary file beside `path`, locked, where files can be: its name and its descriptor."""
    while True:
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        lock(descriptor, waits=True)
        if part.exists():  # else another writer has taken it for a leftover before it was locked
            return part, descriptor
        os.close(descriptor)


def _keep_permissions(path: Path, part: Path) -> None:
    with contextlib.suppress(OSError):  # there is no old file, or the system has other kinds of permissions
        old = os.lstat(path)
        if stat.S_ISREG(old.st_mode):
            os.chmod(part, stat.S_IMODE(old.st_mode))


def _clear_leftovers(path: Path) -> None:
    """Removes the temporary files of writers that are dead: nobody holds their locks."""
    now = time.time()
    with contextlib.suppress(OSError):
        for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            with contextlib.suppress(OSError):
                found = os.lstat(part)
                if not stat.S_ISREG(found.st_mode):
                    continue
                with open(part, "rb") as file:
                    if lock(file.fileno()) or now - found.st_mtime > FORGOTTEN_S:
                        part.unlink()


def _sync_folder(folder: Path) -> None:
    """Makes a rename last, where the system can do that: the file itself is on the disk already."""
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
