"""What launch cannot run because only the script itself defines it (E16): refused before a process starts."""

import subprocess
import sys
import textwrap

import pytest

from deepepochs.engine.processes.script import lacking_names

GUARD = "if __name__ == '__main__':"


def lacking(tmp_path, source, names=("main",), values=()):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(source))
    return lacking_names(path, names, dict(values))


@pytest.mark.parametrize(
    "condition",
    [
        "__name__ == '__main__'",
        "'__main__' == __name__",
        "__name__ in ('__main__',)",
        "not __name__ != '__main__'",
        "__name__ == '__main__' and True",
        "not (__name__ == '__mp_main__' or __name__ != '__main__')",
    ],
)
@pytest.mark.parametrize(
    "binding", ["def main(): pass", "class main: pass", "main = print", "import x as main", "for main in []: pass"]
)
def test_what_the_guard_holds_is_lacking(tmp_path, condition, binding):
    assert lacking(tmp_path, f"if {condition}:\n    {binding}\n") == ["main"]
    assert lacking(tmp_path, f"if {condition}:\n    pass\nelse:\n    {binding}\n") == []


@pytest.mark.parametrize(
    "source",
    [
        "def main(): pass\nif __name__ == '__main__':\n    launch(main)\n",
        "if True:\n    def main(): pass\n",
        "if __name__ != '__main__' or debug:\n    def main(): pass\n",
        "if __name__ == '__main__' or debug:\n    def main(): pass\n",
        "if __name__ == '__mp_main__':\n    def main(): pass\n",
        "if name == '__main__':\n    def main(): pass\n",
        "from module import *\n",
        "exec(text)\n",
        "def other():\n    if __name__ == '__main__':\n        main = 1\n",
        "no python at all (",
    ],
)
def test_what_ranks_may_find_passes(tmp_path, source):
    assert lacking(tmp_path, source) == []


def test_a_script_that_cannot_be_read_passes(tmp_path):
    assert lacking_names(tmp_path / "none.pyc", ["main"], {}) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (f"def main(): pass\n{GUARD}\n    def main(): return 1\n", ["main"]),
        (f"def main(): pass\nif debug:\n    pass\n{GUARD}\n    result = main\n    main = 1\n", []),
        (f"{GUARD}\n    main = 1\ndef main(): pass\n", []),
        (f"main = 1\n{GUARD}\n    main = 2\n", ["main"]),
    ],
)
def test_of_two_meanings_the_one_that_is_launched_counts(tmp_path, source, expected):
    values = {"debug": False, "__name__": "__main__"}
    exec(compile(source, "script.py", "exec"), values)
    if "result" in values:
        values["main"] = values["result"]  # as it was when it was launched
    assert lacking(tmp_path, source, values=values) == expected


@pytest.mark.parametrize("launched", ["main", "functools.partial(main)", "functools.partial(print, Settings)", "Job()"])
def test_launch_refuses_it_with_the_advice(tmp_path, launched):
    script = tmp_path / "script.py"
    source = """
        import functools
        from deepepochs import launch
        if __name__ == "__main__":
            def main(): raise SystemExit("never")
            class Settings: pass
            class Job:
                def __call__(self): pass
            try:
                launch({}, 2)
            except ValueError as error:
                print(error)
        """
    script.write_text(textwrap.dedent(source).format(launched))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    name = next(each for each in ("main", "Settings", "Job") if each in launched)
    assert done.stdout.startswith("other processes import script.py without what is under its `if __name__")
    assert f"and {name} is defined there: define it with `def` at the top level" in done.stdout
