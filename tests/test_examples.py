"""Every example runs (offline, on real data), and the main ones reach what they promise."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py") if re.match(r"\d\d-|engine-", path.name))
NEEDS_LIGHTNING = {"25-lightning.py"}


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example as a script in this process; returns what it printed and its variables."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run_example(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        found = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out, found

    return run_example


def test_all_numbers_of_the_series_are_there():
    numbers = sorted(int(name[:2]) for name in NAMES if name[0].isdigit())
    assert numbers[:24] == list(range(1, 25))


@pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning")  # Lightning's callback, where it is installed
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_says_what_it_shows(run, name):
    if name in NEEDS_LIGHTNING:
        pytest.importorskip("lightning", reason="the example ports a module of lightning")
    out, found = run(name)
    assert out.strip(), "it prints nothing"
    assert "nan" not in out.lower().split()
    assert len(found["__doc__"].strip()) > 40


def test_the_first_example_reaches_its_accuracy(run):
    _, found = run("01-basic.py")
    assert found["results"]["accuracy"] >= 0.95
    assert len(found["progress"]["val"]["loss"]) == 8


def test_the_distributed_one_runs_in_two_processes():
    command = [sys.executable, str(EXAMPLES / "21-distributed.py"), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\{'loss': [\d.]+, 'accuracy': 0\.\d+\}", done.stdout)
    assert done.stdout.count("TEST>") == 1, "only the main process prints"
