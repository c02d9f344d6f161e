"""launch (E16) and how a job ends (T14): promptly, whole, and with the right traceback."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deepepochs import launch

from ..helpers.ranks import ROOT, free_port
from . import targets

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def children():
    """The processes that this one has started and that still live."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return set(path.read_text().split())


def plain_environment():
    """The environment without pytest's own note of the present test."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture
def leaves_nothing():
    """The caller's environment, signal handlers and processes are as before."""
    environment, handlers, before = plain_environment(), [signal.getsignal(each) for each in SIGNALS], children()
    begin = time.monotonic()
    yield
    assert plain_environment() == environment
    assert [signal.getsignal(each) for each in SIGNALS] == handlers
    resource_trackers = 1  # multiprocessing keeps one helper process
    assert len(children() - before) <= resource_trackers
    assert time.monotonic() - begin < 15


def test_every_rank_has_its_place_and_rank_0s_result_comes_back(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = dict(os.environ)
    found = launch(targets.environment, 2)
    assert dict(os.environ) == before
    expected = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    assert found == [{**expected, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]


@pytest.mark.usefixtures("leaves_nothing")
def test_training_in_two_processes():
    found = launch(targets.train, 2)
    assert len(found["progress"]["train"]["loss"]) == 2
    assert found["test"]["loss"] > 0


def test_one_process_is_this_one():
    assert launch(os.getpid, 1) == os.getpid()
    assert launch(lambda: 7, 1) == 7
    with pytest.raises(ZeroDivisionError, match="^mine$"):
        launch(lambda: (_ for _ in ()).throw(ZeroDivisionError("mine")), 1)


def test_without_gpus_the_default_is_one_process(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert launch(os.getpid) == os.getpid()


def test_inside_a_job_it_just_calls(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launch(lambda: 3, 2) == 3


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("target", "texts"),
    [
        (targets.raises, ["rank 1 failed: Unpicklable: cannot travel", "in raises", "raise Unpicklable"]),
        (targets.killed, ["rank 1 was ended by the signal SIGKILL"]),
        (targets.exits, ["rank 1 failed: SystemExit: 3"]),
        (targets.returns_a_function, ["result of main, a function, cannot go to the caller"]),
        (targets.ignores_the_end, ["rank 1 failed: ZeroDivisionError: mine"]),
        (targets.training_that_fails, ["rank 1 failed: ZeroDivisionError: on rank 1", "in fail"]),
        (targets.training_that_one_rank_stops, ["rank 1 stopped within an epoch", "in on_after_epoch"]),
    ],
)
def test_a_failing_rank_ends_the_job_with_its_traceback(target, texts):
    with pytest.raises(RuntimeError) as caught:
        launch(target, 2)
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("target", "epochs"), [(targets.training_that_one_rank_interrupts, 1), (targets.training_stopped_after_an_epoch, 2)]
)
def test_a_stop_of_one_rank_that_all_can_follow(target, epochs):
    assert epochs <= len(launch(target, 2)["progress"]["train"]["loss"]) < 5 * epochs + 5


@pytest.mark.usefixtures("leaves_nothing")
def test_good_ends():
    assert launch(targets.exits_well, 2) is None
    assert launch(targets.others_return_functions, 2) == 5


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: launch(3), TypeError, "got int"),
        (lambda: launch(lambda x: x, 1), TypeError, "without arguments"),
        (lambda: launch(targets.train, 0), ValueError, "got 0"),
        (lambda: launch(targets.train, 1.5), ValueError, "got 1.5"),
        (lambda: launch(lambda: 1, 2), ValueError, "a lambda.*top level"),
    ],
)
def test_what_cannot_be_launched_is_refused_at_once(call, error, text):
    begin = time.monotonic()
    with pytest.raises(error, match=text):
        call()
    assert time.monotonic() - begin < 2


def test_a_local_function_is_refused():
    def local():
        return 1

    with pytest.raises(ValueError, match="a local function.*top level"):
        launch(local, 2)


def test_a_function_of_a_notebook_is_refused_with_advice():
    code = "from deepepochs import launch\ndef main(): return 1\ntry: launch(main, 2)\nexcept ValueError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "notebook" in done.stdout, done.stderr
    assert "save it to a module" in done.stdout


def run(*command, timeout=60, **options):
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=timeout, cwd=ROOT, **options
    )


def test_a_script_a_module_and_two_jobs_at_once():
    commands = [[str(Path(targets.__file__))], ["-m", "tests.distributed.targets"]]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    jobs = [
        subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=env
        )
        for command in commands
    ]
    for job in jobs:
        out, _ = job.communicate(timeout=60)
        assert job.returncode == 0, out
        assert len(re.findall("RESULT", out)) == 1
        assert "'RANK': '1'" in out


def test_torchrun_on_one_machine_and_on_two():
    script = str(ROOT / "examples" / "21-distributed.py")
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("TEST>") == 1
    endpoint = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}", "--rdzv-id=test", "--local-addr=127.0.0.1", script,
    ]  # fmt: skip
    agents = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
        for _ in range(2)
    ]
    outs = [agent.communicate(timeout=90)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outs
    assert sum(out.count("TEST>") for out in outs) == 1
