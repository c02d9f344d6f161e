"""Runs a function on several gloo ranks in real processes and gives each rank's result back."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # of a process that imports tests


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60) -> list[Any]:
    """Calls a top-level function of a test module on each rank.

    Args:
        function: importable by its module's name; its environment is the one that torchrun sets.
        world_size: number of ranks.
        args: for the function; picklable.
        timeout_s: after it all ranks are killed and the test fails: a hang.

    Returns:
        What each rank's call returned, in order.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.pkl")
        job.write_bytes(pickle.dumps((function.__module__, function.__qualname__, args)))
        processes = []
        for rank in range(world_size):
            env = dict(
                os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), OMP_NUM_THREADS="1",
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), CUDA_VISIBLE_DEVICES="", PYTHONPATH=PATH,
            )  # fmt: skip
            command = [sys.executable, "-m", "tests.helpers.ranks", str(job), str(Path(folder, f"{rank}.pkl"))]
            processes.append(
                subprocess.Popen(
                    command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        outputs = []
        try:
            for process in processes:
                outputs.append(process.communicate(timeout=timeout_s)[0])
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{world_size} ranks did not end within {timeout_s} s: {outputs}") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        results = []
        for rank in range(world_size):
            path = Path(folder, f"{rank}.pkl")
            if not path.exists():
                raise AssertionError(f"rank {rank} left no result; its output:\n{outputs[rank]}")
            is_good, value = pickle.loads(path.read_bytes())
            if not is_good:
                raise AssertionError(f"rank {rank} failed:\n{value}\n{outputs[rank]}")
            results.append(value)
        return results


def _main() -> None:
    import importlib

    import torch

    torch.set_num_threads(1)
    module, name, args = pickle.loads(Path(sys.argv[1]).read_bytes())
    target = Path(sys.argv[2])
    try:
        outcome = (True, getattr(importlib.import_module(module), name)(*args))
    except BaseException:
        outcome = (False, traceback.format_exc())
    target.with_suffix(".part").write_bytes(pickle.dumps(outcome))
    target.with_suffix(".part").rename(target)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
