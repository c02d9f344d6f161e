"""Layers (S3): imports point compat -> api -> engine, without circles; files and classes stay short."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"engine": "deepepochs.engine", "compat": "deepepochs.compat", "api": "deepepochs"}
BELOW = {"engine": [], "api": ["deepepochs.engine"], "compat": ["deepepochs.engine", "deepepochs"]}


def module_name(path):
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([PACKAGES[folder], *[part for part in rest if part != "__init__"]])


def imports(path):
    """(level, module, names) of every import in a file: late ones and those for type checking too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, each.name, []) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [each.name for each in node.names]


FILES = {module_name(path): path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")}


def test_every_folder_has_files():
    assert len(FILES) > 30


def test_between_layers_imports_go_down_and_through_the_public_name():
    for name, path in FILES.items():
        layer = path.relative_to(ROOT).parts[0]
        for level, module, _ in imports(path):
            if level == 0 and module.split(".")[0] == "deepepochs":
                assert module in BELOW[layer], f"{name} imports {module}"


def test_inside_a_layer_imports_are_relative_and_stay_there():
    for name, path in FILES.items():
        depth = len(path.relative_to(ROOT).parts) - 1
        for level, module, _ in imports(path):
            assert level <= depth, f"{name} imports {'.' * level}{module}"


def targets(path):
    """The files of its own layer that a file imports."""
    package = module_name(path).split(".")
    base = package if path.name == "__init__.py" else package[:-1]
    for level, module, names in imports(path):
        if level:
            start = [*base[: len(base) - level + 1], *module.split(".")] if module else base[: len(base) - level + 1]
            whole = ".".join(start)
            for name in names:
                yield f"{whole}.{name}" if f"{whole}.{name}" in FILES else whole


def refuse_circles(edges):
    """Fails with the circle if one leads from a node back to it."""
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for target in sorted(edges.get(name, ())):
            visit(target)
        path.pop()
        done.add(name)

    for name in sorted(edges):
        visit(name)


EDGES = {name: set(targets(path)) & set(FILES) for name, path in FILES.items()}


def test_there_is_no_circle():
    refuse_circles(EDGES)


def room(name):
    """The folder that a file lies in; a file at a layer's top is a room of its own: the face stands above the rooms,
    what they share stands below them."""
    folder = FILES[name].relative_to(ROOT).parent
    return folder.as_posix() if len(folder.parts) > 1 else FILES[name].relative_to(ROOT).as_posix()


def test_between_rooms_imports_go_one_way():
    """Each folder shrunk to a point: two that import each other, directly or by others, are a circle."""
    edges = {}
    for name, found in EDGES.items():
        edges.setdefault(room(name), set()).update(room(each) for each in found if room(each) != room(name))
    assert {"api/loop", "api/aggregation", "compat/loops", "engine/processes"} <= set(edges)
    refuse_circles(edges)


def test_a_circle_is_found_and_named():
    refuse_circles({"a": {"b", "c"}, "b": {"c"}})
    with pytest.raises(AssertionError, match="b -> c -> b"):
        refuse_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})


def test_a_files_first_line_says_what_it_is():
    for name, path in FILES.items():
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, name
        assert len(doc.splitlines()[0]) > 20, name


LINES_OF_A_FILE, LINES_OF_A_CLASS = 350, 250
LONGER_FILES = {
    "api/checkpoints/content.py": "what a file holds, and how every older kind of it reads, side by side",
    "api/trainer.py": "the public surface with its docstrings",
    "compat/trainer.py": "the public surface with its docstrings",
    "compat/trainer_properties.py": "Lightning's many small properties, one after the other",
    "engine/processes/group.py": "the group's life and its collectives, which share one state",
}
LONGER_CLASSES = {
    "api/trainer.py TrainerBase": "the public surface with its docstrings",
    "compat/loops/fit_loop.py FitLoop": "Lightning's order of hooks, read from top to bottom",
    "compat/modules/module.py LightningModule": "Lightning's surface, method by method",
    "compat/trainer.py LightningTrainer": "the public surface with its docstrings",
    "compat/trainer_properties.py Reads": "Lightning's many small properties, one after the other",
    "engine/engine.py Engine": "the public surface with its docstrings",
}


def length(node):
    return node.end_lineno - node.lineno + 1


def test_files_and_classes_are_short_enough_to_keep_in_mind():
    """An exception is named above with its reason, and goes when what it names has shrunk."""
    files, classes = {}, {}
    for path in FILES.values():
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        files[name] = len(text.splitlines())
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
        classes.update({f"{name} {node.name}": length(node) for node in nodes})
    for sizes, limit, exceptions in (
        (files, LINES_OF_A_FILE, LONGER_FILES),
        (classes, LINES_OF_A_CLASS, LONGER_CLASSES),
    ):
        longer = {name: lines for name, lines in sizes.items() if lines > limit}
        assert set(longer) == set(exceptions), f"over {limit} lines are {longer}"
        assert all(exceptions.values())
