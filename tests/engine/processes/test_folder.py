"""Folders of launches (E16): one that was killed leaves its own to the next launch, and only what is surely dead."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deepepochs.engine.processes import folder as folders

from ...helpers.ranks import PATH, ROOT

HOLDER = """
import os, sys
from pathlib import Path
from deepepochs.engine.processes.folder import held, job_folder
with job_folder() as folder:
    reader, writer = os.pipe()
    if os.fork() == 0:
        with held(folder):  # as a rank does
            os.write(1, f"{folder}\\n".encode())
            os.read(0, 1)
        os._exit(0)
    os.read(reader, 1)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_its_launch_and_only_then(place):
    with folders.job_folder() as folder:
        (folder / "sub").mkdir()
        folders.clear_dead(place)
        with folders.job_folder() as other:
            assert {folder, other} == set(place.iterdir())
        assert list(place.iterdir()) == [folder]
    assert list(place.iterdir()) == []
    with pytest.raises(ZeroDivisionError), folders.job_folder():
        raise ZeroDivisionError
    assert list(place.iterdir()) == []


@pytest.mark.skipif(not folders.CAN_LOCK, reason="without locks nothing is removed")
def test_a_killed_launch_is_cleared_when_its_last_rank_has_ended(place):
    env = {**os.environ, "PYTHONPATH": PATH, "TMPDIR": str(place)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER], cwd=ROOT, env=env, **pipes) as job:
        folder = Path(job.stdout.readline().strip())
        (folder / "0.main").write_text("note")
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        folders.clear_dead(place)
        assert folder.exists(), "its rank lives"
        job.stdin.close()
        assert job.stdout.read() == ""  # until the rank has ended
    folders.clear_dead(place)
    assert list(place.iterdir()) == []


def test_what_is_not_a_launchs_stays(place, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for each in (place / "deepepochs-mine", elsewhere, place / "other"):
        each.mkdir(exist_ok=True)
    for each in (elsewhere, place / "other"):
        (each / folders.LOCK).touch()
    (place / "deepepochs-file").touch()
    (place / "deepepochs-link").symlink_to(elsewhere)
    before = sorted(place.rglob("*"))
    with folders.job_folder():
        pass
    assert sorted(place.rglob("*")) == before
    assert (elsewhere / folders.LOCK).exists()
