"""Checkpoint files of Lightning: read them without running code, unless the caller trusts the file."""

from __future__ import annotations

import os
from typing import Any

from deepepochs.engine import CheckpointError, UnsafeCheckpoint, read_file

VERSION_KEY = "pytorch-lightning_version"
VERSION = "2.6.6"  # whose format of files this is


def read_checkpoint(path: str | os.PathLike[str], weights_only: bool | None = None) -> dict[str, Any]:
    """Reads a .ckpt file onto the CPU.

    Args:
        path: the file.
        weights_only: False allows objects of any class, whose loading may run code: for files that you trust.

    Raises:
        CheckpointError: it is missing, damaged, no checkpoint, or would run code.
    """
    try:
        found = read_file(path, runs_code=weights_only is False)
    except UnsafeCheckpoint as error:
        raise UnsafeCheckpoint(f"{error}; pass `weights_only=False` if you trust it") from error
    if not isinstance(found, dict) or "state_dict" not in found:
        raise CheckpointError(f"{str(path)!r} is no checkpoint of a LightningModule: it has no 'state_dict'")
    return found
