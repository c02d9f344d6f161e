"""What other test runners say."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("start", [["-s", "tests"], ["-s", "tests", "-t", "."]])
def test_unittest_says_in_one_line_that_pytest_is_needed(start):
    command = [sys.executable, "-m", "unittest", "discover", *start, "-v"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "these tests need pytest: python -m pip install -e '.[test]' && python -m pytest\n"
