"""run_tensorboard: starts TensorBoard as a process of its own and waits until it answers."""

from __future__ import annotations

import socket
import subprocess
import sys
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
    port = free_port() if port is None else port
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={log_dir}", "--host=127.0.0.1", f"--port={port}"]
    process: Any = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    process.url = f"http://127.0.0.1:{port}/"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"TensorBoard ended at once: {process.stderr.read()[-1000:]}")
        try:
            with urllib.request.urlopen(process.url, timeout=1):
                return process
        except OSError:  # nobody listens there yet
            time.sleep(0.1)
    process.kill()
    process.communicate()
    raise RuntimeError(f"TensorBoard did not answer at {process.url} within {timeout_s} s")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
