"""launch (E16) and how a job ends (T14): promptly, whole, and with the right traceback."""

import contextlib
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
from deepepochs.engine.processes import launcher, worker

from ..helpers.ranks import PATH, ROOT, free_port
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


@contextlib.contextmanager
def nothing_left(limit_s):
    """The caller's environment, signal handlers and processes are as before, and soon."""
    environment, handlers, before = plain_environment(), [signal.getsignal(each) for each in SIGNALS], children()
    begin = time.monotonic()
    yield
    assert plain_environment() == environment
    assert [signal.getsignal(each) for each in SIGNALS] == handlers
    resource_trackers = 1  # multiprocessing keeps one helper process
    assert len(children() - before) <= resource_trackers
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # the limit is meant for a machine of one's own
    assert time.monotonic() - begin < limit_s * busy


@pytest.fixture
def leaves_nothing():
    with nothing_left(15):
        yield


@pytest.fixture(scope="module")
def good_end():
    """The result of one job that does one after the other what ends well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        with nothing_left(30):
            return launch(targets.all_that_ends_well, 2)


def test_every_rank_has_its_place_and_rank_0s_result_comes_back(good_end):
    expected = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    assert good_end["places"] == [{**expected, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]


def test_training_in_two_processes(good_end):
    assert len(good_end["whole"]["progress"]["train"]["loss"]) == 2
    assert good_end["whole"]["test"]["loss"] > 0


@pytest.mark.parametrize(("name", "fewest", "fewer_than"), [("interrupted", 1, 10), ("stopped", 2, 3)])
def test_a_stop_of_one_rank_that_all_can_follow(good_end, name, fewest, fewer_than):
    assert fewest <= len(good_end[name]["progress"]["train"]["loss"]) < fewer_than


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
    ("target", "count", "texts"),
    [
        (launch_targets.killed, 3, ["rank 1 was ended by the signal SIGKILL"]),
        (launch_targets.vanishes, 2, ["rank 0 waited for rank 1, which ended by itself before its main was over"]),
        (targets.training_that_fails, 2, ["rank 1 failed: Unpicklable: cannot travel", "in fail", "raise Unpicklable"]),
        (targets.training_that_one_rank_stops, 2, ["rank 1 stopped within an epoch", "in on_after_epoch"]),
    ],
)
def test_a_failing_rank_ends_the_job_with_its_traceback(target, count, texts):
    with pytest.raises(launcher.LaunchError) as caught:
        launch(target, count)
    for text in texts:
        assert text in str(caught.value)


def test_the_engines_timeout_ends_a_job_whose_ranks_do_not_meet():
    """The limit is 2 s; rank 1 stays away for 60 s."""
    text = "^rank 0 failed: TimeoutError: waited [2-9][.]. s; .*imed out"
    with nothing_left(30), pytest.raises(launcher.LaunchError, match=text):
        launch(targets.backward_that_rank_1_stays_away_from, 2)


@pytest.mark.parametrize(
    ("main", "text"),
    [
        (lambda: sys.exit(3), "rank 0 failed: SystemExit: 3\n"),
        (lambda: lambda: 1, "rank 0 failed: TypeError: the result of main, a function, cannot go to the caller"),
    ],
)
def test_what_else_is_a_failure_of_a_rank(tmp_path, monkeypatch, main, text):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(worker, "SETTLE_S", 0)
    monkeypatch.setattr(worker, "_watch_others", lambda *given: None)
    monkeypatch.setattr(worker, "_end", sys.exit)
    with pytest.raises(SystemExit, match="^1$"):
        worker.run_rank(main, str(tmp_path))
    (note,) = tmp_path.glob("*-0.failure")
    assert note.read_text().startswith(text)
    assert (tmp_path / "0.main").read_bytes() != worker.OVER


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
def test_a_good_exit_and_a_launch_in_a_thread():
    logger = logging.getLogger("torch.distributed.elastic")
    before = (logger.propagate, list(logger.handlers), logger.level)
    found = []
    thread = threading.Thread(target=lambda: found.append(launch(sys.exit, 2)))
    thread.start()
    thread.join(60)
    assert found == [None]
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
        worker._pickled(result)


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
        told.append(worker._described(caught))
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


ENDED = "ended in good order\n"


@pytest.mark.parametrize(
    ("target", "send", "numbers", "end", "out", "last"),
    [
        ("heeds_an_interrupt", os.kill, [signal.SIGINT], -signal.SIGINT, "True\n", ["KeyboardInterrupt"]),
        ("trains", os.killpg, [signal.SIGINT], -signal.SIGINT, 2 * ENDED + "True\n", ["KeyboardInterrupt"]),
        ("waits", os.kill, [signal.SIGHUP, signal.SIGTERM], -signal.SIGTERM, "", []),
    ],
)
def test_a_signal_to_the_caller_ends_the_ranks_and_is_his(target, send, numbers, end, out, last):
    """Ctrl-C reaches him as KeyboardInterrupt, SIGTERM does what it does to him alone; what he ignores is ignored.

    A terminal sends Ctrl-C to the ranks as well, and to all at once.
    """
    command = [sys.executable, "-c", STARTER, target]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = {**os.environ, "PYTHONPATH": PATH}
    with subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **pipes) as job:
        try:
            ranks = [int(job.stdout.readline().split()[1]) for _ in range(2)]
            for number in numbers:  # the system delivers the smaller first: the one that is ignored
                send(job.pid, number)
            found, errors = job.communicate(timeout=15)  # until no process of the job holds the pipes
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
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


def start(*command):
    env = {**os.environ, "PYTHONPATH": PATH}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=env, **pipes)


def outputs(*jobs):
    """The lines of jobs that run at once, each job's in order; all of them end well."""
    lines = []
    try:
        for job in jobs:
            out, errors = job.communicate(timeout=60)
            assert job.returncode == 0, errors
            lines.append(sorted(out.splitlines()))
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
    return lines


def test_a_script_and_a_module(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    expected = [f"rank None of the caller: Found(total=3.0, place={place})"]
    found = outputs(start(SCRIPT, "adds"), start("-m", "tests.distributed.launch_targets", "adds"))
    assert found == [expected, expected]


def test_torchrun_on_one_machine_and_on_two():
    torchrun = ["-m", "torch.distributed.run"]
    nodes = [
        *torchrun, "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=test",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1", SCRIPT, "adds_and_trains",
    ]  # fmt: skip
    one = start(*torchrun, "--standalone", "--nproc-per-node=2", SCRIPT, "adds_and_trains")
    alone, *both = outputs(one, start(*nodes), start(*nodes))
    for lines in (alone, sum(both, [])):
        places = sorted(line for line in lines if line.startswith("rank "))
        assert len(places) == 2
        for rank, line in enumerate(places):
            assert line.startswith(f"rank {rank} of the caller: Found(total=3.0, ")
        assert sum("TEST>" in line for line in lines) == 1, "only the main process prints"
