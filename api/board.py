"""run_tensorboard: starts TensorBoard as a process of its own and waits until it answers."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any


def run_tensorboard(log_dir: str = "./logs", port: int | None = None, timeout_s: float = 60.0) -> Any:
    """Starts TensorBoard on this machine alone.

    Args:
        log_dir: the folder of all runs.
        port: where it listens; None takes a free one.
        timeout_s: how long it may take to answer.

    Returns:
        The process, a `subprocess.Popen` with the attribute `url`; end it with `terminate()`.

    Raises:
        RuntimeError: it does not start, or does not answer in time.

    Example:
        >>> board = run_tensorboard("./logs")  # doctest: +SKIP
        >>> print(board.url)  # doctest: +SKIP
        >>> board.terminate()  # doctest: +SKIP
    """
    port = free_port(port or 0)
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={log_dir}", "--host=127.0.0.1", f"--port={port}"]
    with tempfile.TemporaryFile("w+") as errors:  # a pipe that nobody reads would block it one day
        process: Any = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        process.url = f"http://127.0.0.1:{port}/"
        try:
            if _answers(process, timeout_s):
                return process
        except BaseException:
            _end(process)
            raise
        _end(process)
        errors.seek(0)
        raise RuntimeError(f"TensorBoard did not answer at {process.url} within {timeout_s} s: {errors.read()[-1000:]}")


def _answers(process: Any, timeout_s: float) -> bool:
    """Waits until it answers; False if it ended or the time is over."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(process.url, timeout=1):
                return True
        except OSError:  # nobody listens there yet
            time.sleep(0.1)
    return False


def _end(process: Any) -> None:
    process.kill()
    process.wait()


def free_port(port: int) -> int:
    """The port, or one that nobody listens on where it is 0.

    Raises:
        RuntimeError: it is taken, or no port.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just given back is free
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise RuntimeError(f"TensorBoard cannot listen on port {port}: {error}; leave `port` out") from error
        return int(probe.getsockname()[1])
