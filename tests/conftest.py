"""Shared by all tests: one thread, no display, and no test leaves the process changed."""

import os
import threading

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _leaves_nothing(tmp_path):
    """Runs each test in a folder of its own and fails it if it leaks."""
    home = os.getcwd()
    os.chdir(tmp_path)
    environment = dict(os.environ)
    threads = set(threading.enumerate())
    torch.manual_seed(0)
    yield
    os.chdir(home)
    changed = {name for name in {*environment, *os.environ} if environment.get(name) != os.environ.get(name)}
    changed = {
        name for name in changed if not name.startswith(("TORCHINDUCTOR", "KMP_", "PYTORCH_NVML"))
    }  # of torch, OpenMP, Lightning
    assert not changed - {"PYTEST_CURRENT_TEST", "PWD"}, f"the test changed the environment: {changed}"
    left = [each for each in threading.enumerate() if each not in threads and not each.daemon and each.is_alive()]
    assert not left, f"the test left threads: {left}"
    assert not dist.is_initialized(), "the test left a process group"
    assert torch.is_grad_enabled(), "the test left gradients disabled"
