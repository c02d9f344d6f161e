"""Layers (S3): imports point compat -> api -> engine, without circles, spelled so that the layer shows."""

import ast
from pathlib import Path

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


def test_there_is_no_circle():
    edges = {name: set(targets(path)) & set(FILES) for name, path in FILES.items()}
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path, name])
        if name in done:
            return
        path.append(name)
        for target in edges[name]:
            visit(target)
        path.pop()
        done.add(name)

    for name in edges:
        visit(name)


def test_a_files_first_line_says_what_it_is():
    for name, path in FILES.items():
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert doc, name
        assert len(doc.splitlines()[0]) > 20, name
