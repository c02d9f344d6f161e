"""launch: runs a function in several processes of this machine through torch's elastic launcher."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import uuid
from pathlib import Path
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist

from .folder import job_folder
from .script import lacking_names, referred_names
from .worker import run_rank, write

POLL_S = 0.1  # how often the launcher looks after the ranks
STOPS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
TOP_LEVEL = (
    "define it with `def` at the top level of a module or script, and call launch() under `if __name__ == '__main__':`"
)


class LaunchError(RuntimeError):
    """A rank failed; the message holds its number and its traceback."""


def launch(main: Callable[[], Any], num_processes: int | None = None) -> Any:
    """Runs a function in several processes and returns the main process's result.

    Inside a job that torchrun started, or where the process group exists already, it just calls the function.

    Args:
        main: takes no arguments; for several processes it must be importable: at the top level of a module or script.
        num_processes: how many; None takes one a visible GPU, or one where there is none. 1 runs in this process.

    Returns:
        What `main` returned in rank 0: plain Python. None if it left by `sys.exit()`.

    Raises:
        TypeError: `main` cannot be called without arguments.
        ValueError: `num_processes` is less than 1, or other processes could not import `main`.
        LaunchError: a rank failed; all others are ended then.
        KeyboardInterrupt: Ctrl-C; the ranks have ended.

    Example:
        >>> def main():
        ...     with Trainer(model(), loss) as trainer:
        ...         return trainer.test(loader())
        >>> if __name__ == "__main__":
        ...     results = launch(main)
    """
    check_callable(main)
    is_number = isinstance(num_processes, int) and not isinstance(num_processes, bool)
    if num_processes is not None and (not is_number or num_processes < 1):
        raise ValueError(f"`num_processes` must be a whole number of at least 1, got {num_processes!r}")
    if ("RANK" in os.environ and "WORLD_SIZE" in os.environ) or (dist.is_available() and dist.is_initialized()):
        return main()
    count = num_processes or max(torch.cuda.device_count(), 1)
    if count == 1:
        return main()
    check_importable(main)
    with job_folder() as folder, restored_process():
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        stop = _run_group(main, count, folder)
        path = folder / "result"
        result = pickle.loads(path.read_bytes()) if path.exists() else None
    if stop is not None:
        signal.raise_signal(stop)  # the ranks have ended and the handlers are the caller's again: now it is his
        raise LaunchError(f"the job was ended by the signal {signal.Signals(stop).name} to this process")
    return result


def check_callable(main: Any) -> None:
    """Refuses what cannot be called without arguments.

    Raises:
        TypeError: it cannot.
    """
    if not callable(main):
        raise TypeError(
            f"`main` must be a function without arguments, got {type(main).__name__}; pass main, not main()"
        )
    try:
        inspect.signature(main).bind()
    except TypeError as error:
        raise TypeError(f"`main` is called without arguments, but {error}; read what it needs inside it") from error
    except ValueError:  # some builtins have no signature
        return


def check_importable(main: Callable[[], Any]) -> None:
    """Refuses a function that other processes could not import.

    Raises:
        ValueError: it is a lambda, a local function, one of an interactive session, or one that only the script itself
            defines.
        RuntimeError: a rank that imports the script calls launch() again.
    """
    name = getattr(main, "__qualname__", type(main).__qualname__)
    if "<lambda>" in name or "<locals>" in name:
        kind = "a lambda" if "<lambda>" in name else "a local function"
        raise ValueError(f"other processes cannot import {name}, {kind}: {TOP_LEVEL}")
    try:
        names = referred_names(main)
    except Exception as error:  # pickle has many errors for what it cannot take
        raise ValueError(f"other processes cannot import {name} ({error}): {TOP_LEVEL}") from error
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "<none>")
    if names and script.name.startswith("<"):  # <stdin>, or no file at all
        raise ValueError(
            f"other processes cannot import {name} from an interactive session or notebook: "
            "save it to a module (a .py file), import it from there, and call launch() with it"
        )
    lacking = lacking_names(script, names, vars(sys.modules["__main__"]))
    if lacking:
        raise ValueError(
            f"other processes import {script.name} without what is under its `if __name__ == '__main__':`, "
            f"and {', '.join(lacking)} is defined there: {TOP_LEVEL}"
        )
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError("a rank imports the script and meets launch() again: " + TOP_LEVEL)


@contextlib.contextmanager
def restored_process() -> Iterator[None]:
    """Leaves environment, signal handlers and loggers as they were, and quiets torch's launcher meanwhile."""
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in STOPS}
    logs = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn")]
    propagates, silence = [log.propagate for log in logs], logging.NullHandler()
    for log in logs:
        log.propagate = False  # a failure is told by the exception
        log.addHandler(silence)
    try:
        yield
    finally:
        for log, propagate in zip(logs, propagates):
            log.propagate = propagate
            log.removeHandler(silence)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:
                    signal.signal(number, handler)
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)


def _run_group(main: Callable[[], Any], count: int, folder: Path) -> int | None:
    """Runs all ranks to their end; returns the signal that stopped this process meanwhile."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    others = set(multiprocessing.active_children())
    try:
        with _stops_noted(folder):
            elastic_launch(_config(count, folder), run_rank)(main, str(folder))
    except ChildFailedError as error:
        raise LaunchError(_failure(folder, error)) from None
    except BaseException as stop:
        for child in set(multiprocessing.active_children()) - others:  # torch forgets them if it was starting them
            child.kill()
            child.join()
        if not isinstance(stop, (SignalException, KeyboardInterrupt)):
            raise
        return int(getattr(stop, "sigval", signal.SIGINT))
    return None


def _config(count: int, folder: Path) -> Any:
    """Torch's settings for one machine without restarts; what it writes by itself goes to our folder."""
    from torch.distributed.elastic import multiprocessing as elastic
    from torch.distributed.launcher.api import LaunchConfig

    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    options: dict[str, Any] = {}
    if "logs_specs" in known:  # torch >= 2.3
        options["logs_specs"] = elastic.DefaultLogsSpecs(log_dir=str(folder))
    else:
        options["log_dir"] = str(folder)
    if "signals_to_handle" in known:  # newer torch: what the caller ignores (nohup) stays ignored
        heeded = [number.name for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
        options["signals_to_handle"] = ",".join(heeded)
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # the launcher takes a free port
        local_addr="127.0.0.1",
        start_method="spawn",
        max_restarts=0,
        monitor_interval=POLL_S,
        **options,
    )


@contextlib.contextmanager
def _stops_noted(folder: Path) -> Iterator[None]:
    """Leaves a note for the ranks when a signal stops this process.

    Torch passes the signal on and then waits for the ranks to exit, but no longer for their results. A rank that
    heeds the signal by returning from `main` would wait 30 s for somebody to fetch its result.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()

    def note() -> None:
        for number in iter(lambda: reader.recv(1), b""):
            if number[0] in STOPS:
                write(folder / "stopping", b"")

    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=note, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()
        thread.join()
        reader.close()


def _failure(folder: Path, error: Any) -> str:
    """The text of the first failure: the cause of the others."""
    rank, failure = min(error.failures.items(), key=lambda item: item[1].timestamp)
    notes = sorted(folder.glob("*.failure"))
    if any(note.stem.endswith(f"-{rank}") for note in notes):
        return notes[0].read_bytes().decode()
    if failure.exitcode < 0:
        names = {each.value: each.name for each in signal.Signals}
        how = f"was ended by the signal {names.get(-failure.exitcode, -failure.exitcode)}"
    else:
        how = f"ended with the exit status {failure.exitcode} and left no traceback"
    if not (folder / f"{rank}.main").exists():
        how += f"; it did not reach main, and its own output says why. If it met launch() again: {TOP_LEVEL}"
    return f"rank {rank} {how}"
