"""launch: runs a function in several processes of this machine through torch's elastic launcher."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from pathlib import Path
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist

GRACE_S = 3.0  # how long a rank may go on after another failed


class LaunchError(RuntimeError):
    """A rank failed; the message holds its traceback."""


def launch(main: Callable[[], Any], num_processes: int | None = None) -> Any:
    """Runs a function in several processes and returns the main process's result.

    Inside a job that torchrun started, or where the process group exists already, it just calls the function.

    Args:
        main: takes no arguments; for several processes it must be importable: at the top level of a module or script.
        num_processes: how many; None takes one a visible GPU, or one where there is none. 1 runs in this process.

    Returns:
        What `main` returned in rank 0: plain Python.

    Raises:
        TypeError: `main` cannot be called without arguments.
        ValueError: `num_processes` is less than 1, or other processes could not import `main`.
        LaunchError: a rank failed; all others are ended then.

    Example:
        >>> def main():
        ...     with Trainer(model(), loss) as trainer:
        ...         return trainer.test(loader())
        >>> if __name__ == "__main__":
        ...     results = launch(main)
    """
    check_callable(main)
    if num_processes is not None and (not isinstance(num_processes, int) or num_processes < 1):
        raise ValueError(f"`num_processes` must be a whole number of at least 1, got {num_processes!r}")
    if ("RANK" in os.environ and "WORLD_SIZE" in os.environ) or (dist.is_available() and dist.is_initialized()):
        return main()
    count = num_processes or max(torch.cuda.device_count(), 1)
    if count == 1:
        return main()
    check_importable(main)
    with tempfile.TemporaryDirectory(prefix="deepepochs-") as folder, restored_process():
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        _run_group(main, count, folder)
        return _read_result(Path(folder))


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
        ValueError: it is a lambda, a local function or one of an interactive session.
    """
    advice = (
        "define it with `def` at the top level of a module or script, "
        "and call launch() under `if __name__ == '__main__':`"
    )
    name = getattr(main, "__qualname__", type(main).__qualname__)
    module = sys.modules.get(getattr(main, "__module__", "") or "")
    if "<lambda>" in name or "<locals>" in name:
        kind = "a lambda" if "<lambda>" in name else "a local function"
        raise ValueError(f"other processes cannot import {name}, {kind}: {advice}")
    if getattr(main, "__module__", None) == "__main__" and not hasattr(module, "__file__"):
        raise ValueError(
            f"other processes cannot import {name} from an interactive session or notebook: "
            "save it to a module (a .py file), import it from there, and call launch() with it"
        )
    try:
        pickle.dumps(main)
    except Exception as error:  # pickle has many errors for what it cannot take
        raise ValueError(f"other processes cannot import {name} ({error}): {advice}") from error


@contextlib.contextmanager
def restored_process() -> Iterator[None]:
    """Leaves environment, signal handlers and the launcher's log level as they were."""
    environment = dict(os.environ)
    in_main_thread = threading.current_thread() is threading.main_thread()
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
    handlers = {name: signal.getsignal(getattr(signal, name)) for name in names}
    logs = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)  # a failure is told by the exception
    try:
        yield
    finally:
        for log, level in zip(logs, levels):
            log.setLevel(level)
        for name, handler in handlers.items():
            if in_main_thread and handler is not None:
                signal.signal(getattr(signal, name), handler)
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)


def _run_group(main: Callable[[], Any], count: int, folder: str) -> None:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    try:
        elastic_launch(_config(count, folder), _run_rank)(main, folder)
    except ChildFailedError as error:
        raise LaunchError(_failure(Path(folder), error)) from None
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise


def _config(count: int, folder: str) -> Any:
    from torch.distributed.elastic import multiprocessing
    from torch.distributed.launcher.api import LaunchConfig

    options: dict[str, Any] = {}
    if hasattr(multiprocessing, "DefaultLogsSpecs"):  # torch >= 2.3
        options["logs_specs"] = multiprocessing.DefaultLogsSpecs(log_dir=folder)
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
        monitor_interval=0.1,
        **options,
    )


def _run_rank(main: Callable[[], Any], folder: str) -> None:
    """What each process runs: main, and a note of how it ended."""
    rank = int(os.environ["RANK"])
    threading.Thread(target=_watch_others, args=(Path(folder), rank), daemon=True).start()
    try:
        result = main()
        if rank == 0:
            _write(Path(folder, "result"), _pickled(result))
    except SystemExit as error:
        if error.code not in (None, 0):
            _note_failure(Path(folder), rank, f"SystemExit: {error.code}")
            sys.exit(1)
    except BaseException as error:
        _note_failure(Path(folder), rank, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        sys.stdout.flush()
        os._exit(1)  # no clean-up that could wait for the other ranks


def _pickled(result: Any) -> bytes:
    try:
        return pickle.dumps(result)
    except Exception as error:  # pickle has many errors for what it cannot take
        raise TypeError(
            f"the result of main, a {type(result).__name__}, cannot go to the caller ({error}); "
            "return plain Python: numbers, text, lists, dictionaries"
        ) from error


def _note_failure(folder: Path, rank: int, text: str) -> None:
    _write(folder / f"{time.time():.6f}-{rank}.failure", f"rank {rank} failed: {text}".encode())


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)


def _watch_others(folder: Path, rank: int) -> None:
    """Ends this process some time after another one failed, also when it waits for that one in a collective."""
    while not [path for path in folder.glob("*.failure") if not path.name.endswith(f"-{rank}.failure")]:
        time.sleep(0.2)
    time.sleep(GRACE_S)
    os._exit(1)


def _failure(folder: Path, error: Any) -> str:
    """The text of the first failure: the cause of the others."""
    notes = sorted(folder.glob("*.failure"))
    if notes:
        return notes[0].read_text()
    rank, failure = min(error.failures.items(), key=lambda item: item[1].timestamp)
    if failure.exitcode < 0:
        return f"rank {rank} was ended by the signal {signal.Signals(-failure.exitcode).name}"
    return f"rank {rank} ended with the exit status {failure.exitcode} and left no traceback"


def _read_result(folder: Path) -> Any:
    path = folder / "result"
    return pickle.loads(path.read_bytes()) if path.exists() else None
