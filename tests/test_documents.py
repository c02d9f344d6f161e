"""The READMEs' code blocks run, one after the other as a reader types them."""

import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [path for path in (ROOT / "README.md", ROOT / "README.zh-CN.md") if path.exists()]


def blocks(text, language):
    """The code blocks of a language that are not marked as a fragment."""
    found = re.findall(r"(<!-- fragment[^\n]*-->\n)?```" + language + r"\n(.*?)```", text, flags=re.S)
    return [code for mark, code in found if not mark]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(path):
    space = {"__name__": "readme"}
    codes = blocks(path.read_text(encoding="utf-8"), "python")
    assert len(codes) >= 4
    for code in codes:
        exec(compile(code, path.name, "exec"), space)
    assert set(space["results"]) == {"loss", "accuracy"}
    assert len(space["progress"]["train"]["loss"]) == 5


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_two_commands_are_marked(path):
    text = path.read_text(encoding="utf-8")
    for mark, first in (("main-job", 'pip install ".[examples]"'), ("tests", 'pip install ".[test]"')):
        command = re.search(rf"<!-- {mark} -->\n```bash\n(.*?)```", text, flags=re.S)
        assert command, mark
        assert first in command.group(1)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_the_ported_script_is_the_example():
    diff = re.search(r"<!-- port -->\n```diff\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S).group(1)
    ported = [line[1:].strip() for line in diff.splitlines() if not line.startswith("-")]
    example = (ROOT / "examples" / "engine-04-port.py").read_text()
    code = [re.sub(r"  # (\+|was:).*", "", line).strip() for line in example.splitlines()]
    start = code.index(ported[0])
    assert code[start : start + len(ported)] == ported


def test_the_table_of_compat_is_true():
    from deepepochs.compat import LightningTrainer
    from deepepochs.compat.arguments import UNSUPPORTED

    text = (ROOT / "docs" / "compat.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| (yes|no) \|", text.split("## What else")[0], flags=re.M))
    parameters = inspect.signature(LightningTrainer.__init__).parameters
    assert set(table) == set(parameters) - {"self"}
    assert {name for name, word in table.items() if word == "no"} == set(UNSUPPORTED)
    for name in UNSUPPORTED:
        with pytest.raises(NotImplementedError, match=name):
            LightningTrainer(**{name: "something else"})
