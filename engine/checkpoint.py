"""Checkpoint files: tensors and plain values, written atomically and loaded without running code."""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Iterator

import numpy
import torch

from .atomic import replaced

PLAIN = (type(None), bool, int, float, complex, str, bytes)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, read, or used for what it is loaded into."""


class MissingCheckpoint(CheckpointError, FileNotFoundError):
    """There is no such file."""


class UnsafeCheckpoint(CheckpointError):
    """Loading the file could run code."""


def save_file(path: str | os.PathLike[str], content: Any) -> None:
    """Writes tensors and plain values to a file that is whole at every moment.

    The content goes to a temporary name beside the file, onto the disk, and only then takes the file's place.

    Args:
        path: the file; its folder is made.
        content: dictionaries, lists and tuples of tensors, numpy arrays, numbers, text and None.

    Raises:
        CheckpointError: something else is in the content, or the file cannot be written; the old file stays.
    """
    write_file(path, encode(content, "content"))


def write_file(path: str | os.PathLike[str], content: Any) -> None:
    """`save_file` for content in torch's own format: anything that it can pickle, which loading may have to run.

    Args:
        path: the file; its folder is made.
        content: what is to be saved.

    Raises:
        CheckpointError: the file cannot be written; the old file stays.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as file, _checksums():
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        old = "the old file is unchanged" if os.path.lexists(path) else "there was no file before"
        raise CheckpointError(f"the checkpoint {str(path)!r} cannot be written ({error}); {old}") from error


@contextlib.contextmanager
def _checksums() -> Iterator[None]:
    """Torch writes checksums, whatever the process has chosen for other files."""
    choose = getattr(torch.serialization, "set_crc32_options", None)
    if choose is None:  # before torch 2.6 it always does
        yield
        return
    before = torch.serialization.get_crc32_options()
    choose(True)
    try:
        yield
    finally:
        choose(before)


def load_file(path: str | os.PathLike[str]) -> Any:
    """Reads a file of tensors and plain values onto the CPU.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        CheckpointError: it is missing, damaged, or would run code.
    """
    content = read_file(path)
    try:
        return decode(content)
    except Exception as error:  # it was changed by others: there are many ways to do that
        raise damaged(path, error) from error


def read_file(path: str | os.PathLike[str], runs_code: bool = False) -> Any:
    """Reads what `write_file` wrote, in torch's own format, onto the CPU.

    Args:
        path: the file.
        runs_code: whether loading may run code that the file brings: for files that you trust.

    Returns:
        Its content.

    Raises:
        MissingCheckpoint: there is no such file.
        UnsafeCheckpoint: it would run code, or is damaged.
        CheckpointError: it is damaged.
    """
    path = Path(path)
    try:
        found = path.stat()
    except FileNotFoundError as error:
        hint = " (it is a link to nowhere)" if path.is_symlink() else ""
        raise MissingCheckpoint(f"there is no checkpoint {str(path)!r}{hint}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {str(path)!r} cannot be read ({error})") from error
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"the checkpoint {str(path)!r} is no file")
    try:
        check_sums(path)
        return torch.load(path, map_location="cpu", weights_only=not runs_code)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpoint(
            f"the checkpoint {str(path)!r} holds more than tensors and plain values: loading it could run code, "
            f"so it is refused, or it is damaged ({str(error).splitlines()[0]})"
        ) from error
    except OSError as error:
        raise CheckpointError(f"the checkpoint {str(path)!r} cannot be read ({error})") from error
    except Exception as error:  # torch has many errors for bytes that are no file of its own
        raise damaged(path, error) from error


def check_sums(path: Path) -> None:
    """Compares each part of an archive with its checksum; torch does not when it loads one.

    Raises:
        ValueError: one differs.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
        if wrong is not None:
            raise ValueError(f"the checksum of its part {wrong!r} differs")


def damaged(path: str | os.PathLike[str], error: Exception) -> CheckpointError:
    """The error for bytes that are no checkpoint."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return CheckpointError(f"the checkpoint {str(path)!r} is damaged or no checkpoint ({first})")


def encode(content: Any, place: str) -> Any:
    """Content as tensors and plain values alone.

    Args:
        content: what is to be saved.
        place: where it stands, for the error.

    Raises:
        CheckpointError: it holds something that a safe file cannot.
    """
    if isinstance(content, torch.Tensor):
        return content.detach()
    if isinstance(content, numpy.generic):
        return content.item()
    if isinstance(content, numpy.ndarray):
        return {"__numpy__": torch.from_numpy(numpy.ascontiguousarray(content)), "shape": list(content.shape)}
    if isinstance(content, Counter):  # MultiStepLR keeps one; torch before 2.4 does not load it safely
        return {"__counter__": [[key, count] for key, count in content.items()]}
    if isinstance(content, (dict, OrderedDict)):
        return {key: encode(value, f"{place}[{key!r}]") for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        items = [encode(value, f"{place}[{index}]") for index, value in enumerate(content)]
        return tuple(items) if isinstance(content, tuple) else items
    if isinstance(content, PLAIN) and not hasattr(content, "__dict__"):
        return content
    raise CheckpointError(
        f"{place} is of the type {type(content).__name__}, which a safe file cannot hold; "
        "keep tensors, numbers, text, lists and dictionaries in state_dict()"
    )


def decode(content: Any, known: dict[int, Any] | None = None) -> Any:
    """What `encode` was given.

    Args:
        content: from a file.
        known: what was decoded already, by the identity of its source: what stands in several places is read once.
    """
    if not isinstance(content, (dict, list, tuple)):
        return content
    known = {} if known is None else known
    if id(content) not in known:
        known[id(content)] = _decode_container(content, known)
    return known[id(content)]


def _decode_container(content: Any, known: dict[int, Any]) -> Any:
    if isinstance(content, dict):
        if "__numpy__" in content:
            return content["__numpy__"].numpy().reshape(content["shape"])
        if "__counter__" in content:
            return Counter(dict(content["__counter__"]))
        return {key: decode(value, known) for key, value in content.items()}
    items = [decode(value, known) for value in content]
    return tuple(items) if isinstance(content, tuple) else items
