"""Appending: a log's file gets a whole piece or nothing of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def append_whole(path: Path, data: bytes, head: bytes = b"") -> None:
    """Adds bytes to a file; its folder is made where it has gone.

    Args:
        path: the file.
        data: what is added.
        head: what a new file begins with.

    Raises:
        OSError: it cannot be written; nothing of it stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:  # a buffer would try again when it is closed
        before = os.fstat(file.fileno()).st_size
        try:
            rest = memoryview(data if before else head + data)
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException:
            with contextlib.suppress(OSError):
                file.truncate(before)
            raise


def drop_half_line(path: Path) -> None:
    """Cuts off what stands behind the last line's end: the line of a process that was killed, or on a full disk.

    Raises:
        OSError: the file is there and cannot be changed.
    """
    with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - 4096, 0)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end != file.seek(0, os.SEEK_END):
            file.truncate(end)
