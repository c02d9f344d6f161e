"""The list of promises and the tests that show them stay in step: every number leads to a test, and back."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NUMBER = r"[SETCPLFR]\d{1,2}"
TEXT = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
PROMISES = dict(re.findall(rf"^- \*\*({NUMBER})\*\* (.*?)(?=\n\n|\n- |\Z)", TEXT, flags=re.S | re.M))


def numbers(text):
    """The promises that a docstring cites; E5-E8 are four."""
    for first, last in re.findall(rf"\b({NUMBER})(?:-({NUMBER}))?\b", text):
        for index in range(int(first[1:]), int((last or first)[1:]) + 1):
            yield f"{first[0]}{index}"


def docstrings(path):
    """All of a file: its own, its classes', its functions'."""
    if path.suffix != ".py":  # a script's comments
        return re.findall(r"^# (.*)", path.read_text(encoding="utf-8"), flags=re.M)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]


FILES = [path for pattern in ("*.py", "*.sh") for path in sorted((ROOT / "tests").rglob(pattern))]
CITED = {
    path.relative_to(ROOT).as_posix(): {each for text in docstrings(path) for each in numbers(text)} for path in FILES
}


def listed(text):
    return re.findall(r"`(tests/[^`]+)`", text)


def test_every_number_that_a_test_cites_is_promised():
    for path, found in CITED.items():
        assert found <= set(PROMISES), f"{path} cites {sorted(found - set(PROMISES))}, which docs/promises.md lacks"


def test_every_promise_names_its_tests_or_says_why_there_are_none():
    for number, text in PROMISES.items():
        assert listed(text) or re.search(r"\*Not tested\*: \w", text), f"{number} names no test and no reason"


def test_every_file_that_a_promise_names_is_there_and_cites_it():
    for number, text in PROMISES.items():
        for path in listed(text):
            assert path in CITED, f"{number} names {path}, which does not exist"
            assert number in CITED[path], f"{number} names {path}, whose docstrings do not cite it"


def test_no_promise_is_called_untested_that_a_test_cites():
    for number, text in PROMISES.items():
        citing = [path for path, found in CITED.items() if number in found]
        if citing:
            assert listed(text), f"docs/promises.md has no test of {number}, but {citing} cite it: name one there"


def test_numbers_run_on():
    """A letter's numbers begin at 1; each is there once, in order."""
    order = re.findall(rf"^- \*\*({NUMBER})\*\*", TEXT, flags=re.M)
    assert len(order) == len(set(order)) == len(PROMISES)
    for letter in {each[0] for each in order}:
        own = [int(each[1:]) for each in order if each[0] == letter]
        assert own == sorted(own)
        assert own[0] == 1
