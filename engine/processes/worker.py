"""Ranks: what a process that launch() started runs, and the files that tell the launcher how it ended."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import re
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, NoReturn

import torch

from .folder import held

SETTLE_S = 0.5  # a failed rank lives on this long, so that the launcher sees first which rank had gone before it
GRACE_S = 3.0  # how long a rank may go on after another has gone
LOST = re.compile(r"connection (was )?(closed|reset|refused|aborted)|broken pipe|remote process", re.IGNORECASE)
OVER = b"over"  # what a rank's file says when its main is


def run_rank(main: Callable[[], Any], name: str) -> None:
    """What each process runs: main, and a note of how it ended. The file `<rank>.main` holds its id until that."""
    rank, folder = int(os.environ["RANK"]), Path(name)
    own = folder / f"{rank}.main"
    with held(folder):
        _run_held(main, rank, folder, own)


def _run_held(main: Callable[[], Any], rank: int, folder: Path, own: Path) -> None:
    write(own, str(os.getpid()).encode())
    if os.name == "posix":
        threading.Thread(target=_watch_others, args=(folder, own), daemon=True).start()
    try:
        result = main()
        if rank == 0:
            write(folder / "result", _pickled(result))
        sys.stdout.flush()
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            _note_failure(folder, rank, f"failed: {_described(error)}", is_consequence=lost_others(error))
            sys.stdout.flush()
            time.sleep(SETTLE_S)
            _end(1)
    write(own, OVER)


def _watch_others(folder: Path, own: Path) -> None:
    """Ends this process when it waits in vain: for a rank that has gone, for the caller, or to hand over its result."""
    caller = os.getppid()
    gone: list[str] = []
    while os.getppid() == caller and not gone:
        if (folder / "stopping").exists() and own.read_bytes() == OVER:
            _end(0)
        time.sleep(0.2)
        gone = [path.stem for path in folder.glob("*.main") if _has_gone(path.read_bytes())]
    time.sleep(GRACE_S)
    if gone:
        text = f"waited for rank {gone[0]}, which ended by itself before its main was over, as os._exit() does"
        _note_failure(folder, int(own.stem), text)
    _end(1)


def _has_gone(process: bytes) -> bool:
    if process == OVER:
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    return False


def _end(status: int) -> NoReturn:
    """Ends this process without a clean-up that could wait for the other ranks."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(status)


def _described(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception as second:
        message = f"(its text could not be made: {type(second).__name__})"
    return f"{type(error).__name__}: {message}\n{traceback.format_exc()}"


class _ResultPickler(pickle.Pickler):
    """Refuses tensors of devices, wherever they are in the result."""

    def persistent_id(self, obj: Any) -> None:
        if isinstance(obj, torch.Tensor) and obj.device.type != "cpu":
            raise TypeError(f"there is a tensor on {obj.device} in it")


def _pickled(result: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        _ResultPickler(buffer).dump(result)
        pickle.loads(buffer.getvalue())  # some objects only fail on arrival
    except Exception as error:  # pickle has many errors for what it cannot take
        raise TypeError(
            f"the result of main, a {type(result).__name__}, cannot go to the caller ({error}); "
            "return plain Python: numbers, text, lists, dictionaries"
        ) from None
    return buffer.getvalue()


def lost_others(error: BaseException) -> bool:
    """Whether an error says that another rank has gone: one that fails leaves the group first, and the others hear."""
    return isinstance(error, RuntimeError) and LOST.search(f"{error} {error.__cause__}") is not None


def _note_failure(folder: Path, rank: int, text: str, is_consequence: bool = False) -> None:
    """Leaves a note; sorted by name, causes come before consequences, and earlier ones before later ones."""
    name = f"{'lost-' if is_consequence else ''}{time.time():.6f}-{rank}.failure"
    write(folder / name, f"rank {rank} {text}".encode(errors="backslashreplace"))


def write(path: Path, content: bytes) -> None:
    """Writes a file that is whole from its first moment."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
