"""Checkpoint files of Lightning: read them without running code, unless the caller trusts the file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from deepepochs.engine import CheckpointError

# ---- names that Lightning's files use
HYPER_PARAMS_KEY = "hyper_parameters"
HYPER_PARAMS_NAME = "hparams_name"
DATAMODULE_HYPER_PARAMS_KEY = "datamodule_hyper_parameters"
VERSION_KEY = "pytorch-lightning_version"
VERSION = "2.6.6"  # whose format of files this is


class MissingCheckpoint(CheckpointError, FileNotFoundError):
    """There is no such file."""


def read_checkpoint(path: str | os.PathLike[str], weights_only: bool | None = None) -> dict[str, Any]:
    """Reads a .ckpt file onto the CPU.

    Args:
        path: the file.
        weights_only: False allows objects of any class, whose loading may run code: for files that you trust.

    Raises:
        CheckpointError: it is missing, damaged, no checkpoint, or would run code.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingCheckpoint(f"there is no checkpoint {str(path)!r}")
    try:
        found = torch.load(path, map_location="cpu", weights_only=weights_only is not False)
    except Exception as error:  # torch has many errors for bytes that are no file of its own
        if isinstance(error, pickle.UnpicklingError) and "nsupported global" in str(error):
            kind = str(error).partition("nsupported global: ")[2].split("\n")[0].split(" was not")[0]
            raise CheckpointError(
                f"the checkpoint {str(path)!r} holds objects whose loading could run code ({kind}); "
                "pass `weights_only=False` if you trust it"
            ) from error
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"the checkpoint {str(path)!r} is damaged or no checkpoint ({first})") from error
    if not isinstance(found, dict) or "state_dict" not in found:
        raise CheckpointError(f"{str(path)!r} is no checkpoint of a LightningModule: it has no 'state_dict'")
    return found
