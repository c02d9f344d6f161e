"""Packaging (S1-S4): wheel and sdist hold every source file, under the right names and nothing else."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"api": "deepepochs", "engine": "deepepochs/engine", "compat": "deepepochs/compat"}


def expected_files():
    """Every source file under its installed name."""
    return {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the built wheel and sdist."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in tracked.stdout.split("\n"):
        if name and (ROOT / name).is_file() and not name.startswith(("tests/", "examples/")):
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_holds_every_file_and_no_other_package(built):
    (wheel,) = built.glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert set(names) == expected_files()


def test_the_sdist_builds_from_the_same_files(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert {name for name in names if name.startswith("api/") and name.endswith(".py")} == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "api").rglob("*.py")
    }


def test_every_file_can_be_imported_from_the_wheel(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    modules = sorted(
        name[:-3].replace("/", ".").replace(".__init__", "") for name in expected_files() if name.endswith(".py")
    )
    code = (
        f"import sys, importlib; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"for name in {modules!r}:\n    found = importlib.import_module(name)\n"
        f"    assert found.__file__.startswith({str(tmp_path)!r}), found.__file__"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
