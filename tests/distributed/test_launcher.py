"""launch (E16) and how a job ends (T14): promptly, whole, and with the right traceback."""

import dataclasses
import functools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from deepepochs import launch
from deepepochs.engine import launcher

from ..helpers.ranks import ROOT, free_port
from . import launch_targets, targets

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SCRIPT = str(Path(launch_targets.__file__))

pytestmark = pytest.mark.timeout(90)


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


def test_the_default_is_one_process_a_visible_gpu(monkeypatch):
    counts = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr(launcher, "_run_group", lambda main, count, folder: counts.append(count))
    assert launch(targets.train) is None
    assert counts == [3]


def test_inside_a_job_it_just_calls(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launch(lambda: 3, 2) == 3


def test_with_a_process_group_it_just_calls(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    assert launch(os.getpid, 2) == os.getpid()


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("target", "texts"),
    [
        (targets.raises, ["rank 1 failed: Unpicklable: cannot travel", "in raises", "raise Unpicklable"]),
        (launch_targets.killed_in_a_collective, ["rank 1 was ended by the signal SIGKILL"]),
        (launch_targets.killed_beside_a_deaf_rank, ["rank 1 was ended by the signal SIGKILL"]),
        (launch_targets.vanishes, ["rank 0 waited for rank 1, which ended by itself before its main was over"]),
        (targets.exits, ["rank 1 failed: SystemExit: 3"]),
        (targets.returns_a_function, ["result of main, a function, cannot go to the caller"]),
        (targets.training_that_fails, ["rank 1 failed: ZeroDivisionError: on rank 1", "in fail"]),
        (targets.training_that_one_rank_stops, ["rank 1 stopped within an epoch", "in on_after_epoch"]),
    ],
)
def test_a_failing_rank_ends_the_job_with_its_traceback(target, texts):
    with pytest.raises(launcher.LaunchError) as caught:
        launch(target, 2)
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("code", "notes", "files", "expected"),
    [
        (1, {"2.5-0": "late", "1.5-1": "early"}, ["0", "1"], "^early$"),
        (-9, {"2.5-0": "a consequence"}, ["0", "1"], "^rank 1 was ended by the signal SIGKILL$"),
        (-63, {}, ["0", "1"], "^rank 1 was ended by the signal 63$"),
        (7, {"2.5-11": "of rank 11"}, ["0", "1"], "^rank 1 ended with the exit status 7 and left no traceback$"),
        (1, {}, ["0"], "it did not reach main.*under `if __name__ == '__main__':`$"),
    ],
)
def test_the_first_failure_is_told_not_its_consequences(tmp_path, code, notes, files, expected):
    for name, text in notes.items():
        (tmp_path / f"{name}.failure").write_text(text)
    for rank in files:
        (tmp_path / f"{rank}.main").write_text("over")
    error = SimpleNamespace(failures={1: SimpleNamespace(exitcode=code, timestamp=3)})
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(launcher._failure(tmp_path, error))


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("target", "epochs"), [(targets.training_that_one_rank_interrupts, 1), (targets.training_stopped_after_an_epoch, 2)]
)
def test_a_stop_of_one_rank_that_all_can_follow(target, epochs):
    assert epochs <= len(launch(target, 2)["progress"]["train"]["loss"]) < 5 * epochs + 5


@pytest.mark.usefixtures("leaves_nothing")
def test_good_ends():
    logger = logging.getLogger("torch.distributed.elastic")
    before = (logger.propagate, list(logger.handlers), logger.level)
    assert launch(targets.exits_well, 2) is None
    found = []
    thread = threading.Thread(target=lambda: found.append(launch(targets.others_return_functions, 2)))
    thread.start()
    thread.join(60)
    assert found == [5]
    assert (logger.propagate, list(logger.handlers), logger.level) == before


class FailsOnArrival(Exception):
    def __init__(self, one, two):
        super().__init__("one text")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ([{"x": torch.ones(1, device="meta")}], "a list, cannot .* a tensor on meta in it.*return plain Python"),
        (FailsOnArrival(1, 2), "a FailsOnArrival, cannot .* missing 1 required"),
        (threading.Lock(), "a lock, cannot "),
    ],
)
def test_a_result_that_cannot_travel_is_named(result, text):
    with pytest.raises(TypeError, match=text):
        launcher._pickled(result)


class Speechless(Exception):
    def __str__(self):
        raise KeyError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "SystemExit: 3\nTraceback"),
        (SystemExit("no data"), "SystemExit: no data\nTraceback"),
        (Speechless(), "Speechless: (its text could not be made: KeyError)\nTraceback"),
    ],
)
def test_every_failure_is_told_with_its_place(error, text):
    told = []
    try:
        raise error
    except BaseException as caught:
        told.append(launcher._described(caught))
    assert told[0].startswith(text)
    assert "in test_every_failure_is_told_with_its_place\n    raise error" in told[0]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: launch(3), TypeError, "got int"),
        (lambda: launch(lambda x: x, 1), TypeError, "without arguments"),
        (lambda: launch(targets.train, 0), ValueError, "got 0"),
        (lambda: launch(targets.train, 1.5), ValueError, "got 1.5"),
        (lambda: launch(targets.train, True), ValueError, "got True"),
        (lambda: launch(targets.train, "2"), ValueError, "got '2'"),
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


@pytest.mark.parametrize("wrap", [lambda main: main, functools.partial])
@pytest.mark.parametrize("file", [None, "/home/me/<stdin>"])
def test_a_function_without_a_file_is_refused(monkeypatch, file, wrap):
    def main():
        return 1

    script = sys.modules["__main__"]
    main.__module__, main.__qualname__ = "__main__", "a_main"
    monkeypatch.setattr(script, "a_main", main, raising=False)
    monkeypatch.setattr(script, "__file__", file, raising=False)
    with pytest.raises(ValueError, match=r"interactive session or notebook: save it to a module"):
        launch(wrap(main), 2)


def test_a_launch_that_a_rank_meets_again_is_refused_with_advice(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match="meets launch.. again: .*under `if __name__ == '__main__':`"):
        launch(targets.train, 2)


STARTER = """
import signal, sys
from deepepochs import launch
from tests.distributed import launch_targets
signal.signal(signal.SIGHUP, signal.SIG_IGN)
handlers = [signal.getsignal(each) for each in signal.valid_signals()]
try:
    print(launch(getattr(launch_targets, sys.argv[1]), 2))
finally:
    print(handlers == [signal.getsignal(each) for each in signal.valid_signals()], flush=True)
"""


@pytest.mark.parametrize(
    ("target", "numbers", "end", "out", "last"),
    [
        ("heeds_an_interrupt", [signal.SIGINT], -signal.SIGINT, "True\n", ["KeyboardInterrupt"]),
        ("waits", [signal.SIGHUP, signal.SIGTERM], -signal.SIGTERM, "", []),
    ],
)
def test_a_signal_to_the_caller_ends_the_ranks_and_is_his(target, numbers, end, out, last):
    """Ctrl-C reaches him as KeyboardInterrupt, SIGTERM does what it does to him alone; what he ignores is ignored."""
    command = [sys.executable, "-c", STARTER, target]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes) as job:
        ranks = [int(job.stdout.readline().split()[1]) for _ in range(2)]
        for number in numbers:
            assert job.poll() is None
            job.send_signal(number)
            begin = time.monotonic()
            time.sleep(0.5)
        found, errors = job.communicate(timeout=60)
    assert time.monotonic() - begin < 15
    assert (job.returncode, found) == (end, out), errors
    assert errors.strip().splitlines()[-1:] == last
    assert "death signal" not in errors
    for rank in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)


@pytest.mark.usefixtures("leaves_nothing")
def test_ctrl_c_while_the_ranks_start_leaves_none(monkeypatch):
    def starts_one(*given):
        multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,)).start()
        raise KeyboardInterrupt

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda *given: starts_one)
    with pytest.raises(KeyboardInterrupt):
        launch(targets.train, 2)
    assert multiprocessing.active_children() == []


def test_a_signal_that_the_caller_survives_is_an_error(monkeypatch):
    heard = []
    monkeypatch.setattr(launcher, "_run_group", lambda *given: signal.SIGTERM)
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(launcher.LaunchError, match="the job was ended by the signal SIGTERM to this process"):
            launch(targets.train, 2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_an_older_torch_gets_only_the_settings_that_it_knows(monkeypatch, tmp_path):
    names = "min_nodes max_nodes nproc_per_node run_id rdzv_backend rdzv_endpoint local_addr start_method max_restarts"
    older = dataclasses.make_dataclass("LaunchConfig", [*names.split(), "monitor_interval", "log_dir"])
    monkeypatch.setattr("torch.distributed.launcher.api.LaunchConfig", older)
    found = launcher._config(2, tmp_path)
    assert (found.nproc_per_node, found.max_restarts, found.log_dir) == (2, 0, str(tmp_path))


def run(*command, timeout=60, **options):
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=timeout, cwd=ROOT, **options
    )


def test_a_script_a_module_and_torchrun_at_once(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    commands = [[SCRIPT], ["-m", "tests.distributed.launch_targets"], [*torchrun, SCRIPT]]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    jobs = [
        subprocess.Popen(
            [sys.executable, *command, "adds"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes
        )
        for command in commands
    ]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    lines = []
    for job in jobs:
        out, errors = job.communicate(timeout=60)
        assert job.returncode == 0, errors
        lines.append(sorted(out.splitlines()))
    assert lines[0] == lines[1] == [f"rank None of the caller: Found(total=3.0, place={place})"]
    assert len(lines[2]) == 2
    for rank, line in enumerate(lines[2]):
        assert line.startswith(f"rank {rank} of the caller: Found(total=3.0, ")


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
