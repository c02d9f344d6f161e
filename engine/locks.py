"""Locks of files: they tell whether a process that works with a file still lives, however it may have ended."""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # Windows: nothing tells there
    fcntl = None  # type: ignore[assignment]

CAN_LOCK = fcntl is not None


def lock(descriptor: int, shared: bool = False, waits: bool = False) -> bool:
    """Takes a file's lock, which goes with the last descriptor of this opening of the file.

    Args:
        descriptor: of the open file.
        shared: let others share it.
        waits: wait until it is free.

    Returns:
        Whether it is held now; False where others hold it, or files cannot be locked.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
