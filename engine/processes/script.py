"""Script: which of a script's names its ranks lack, because they are bound under `if __name__ == '__main__':`."""

from __future__ import annotations

import ast
import pickle
import pickletools
import tokenize
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping

RANKS_NAME = "__mp_main__"  # what `__name__` is where multiprocessing imports the script


def referred_names(item: Any) -> set[str]:
    """The names of the main module that unpickling an item looks up.

    Raises:
        Exception: it cannot be pickled; pickle has many errors for that.
    """
    pickled = pickle.dumps(item, protocol=3)  # later protocols build a name up from pieces
    globals_ = [str(given).split(" ", 1) for opcode, given, _ in pickletools.genops(pickled) if opcode.name == "GLOBAL"]
    return {name.split(".")[0] for module, name in globals_ if module == "__main__"}


def lacking_names(path: Path, names: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Those of the names that a rank does not find, or finds as something else: this process alone binds them.

    Args:
        path: the script; of one that cannot be read, nothing is known.
        names: what the ranks look up.
        values: what the names are in this process.
    """
    try:
        with tokenize.open(str(path)) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):  # compiled, or in an archive
        return []
    shared: dict[str, int] = {}
    own: dict[str, int] = {}
    for name, line, is_own in _bindings(tree, False):
        (own if is_own else shared)[name] = line
    return sorted(each for each in names if each in own and not _is_shared(each, own, shared, values))


def _is_shared(name: str, own: dict[str, int], shared: dict[str, int], values: Mapping[str, Any]) -> bool:
    """Whether a name that both this process alone and all processes bind is the one of all."""
    if name not in shared:
        return False
    code = getattr(values.get(name), "__code__", None)  # of a function, whose place is known
    return own[name] < shared[name] if code is None else bool(code.co_firstlineno != own[name])


def _bindings(node: ast.AST, is_own: bool) -> Iterator[tuple[str, int, bool]]:
    """Each name that a module binds, with its line, and whether the ranks leave that out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child.name, min(each.lineno for each in (child, *child.decorator_list)), is_own
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id, child.lineno, is_own
        elif isinstance(child, (ast.Import, ast.ImportFrom)):
            for each in child.names:
                yield (each.asname or each.name).split(".")[0], child.lineno, is_own
        elif isinstance(child, ast.If):
            is_so = _in_a_rank(child.test)
            for part, is_left_out in ((child.body, is_so is False), (child.orelse, is_so is True)):
                yield from _bindings(ast.Module(part, []), is_own or is_left_out)
        elif not isinstance(child, ast.Lambda):
            yield from _bindings(child, is_own)


def _in_a_rank(test: ast.AST) -> bool | None:
    """What a condition on `__name__` is in a rank; None for any other."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _in_a_rank(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [_in_a_rank(each) for each in test.values]
        decides = isinstance(test.op, ast.Or)
        return decides if decides in parts else None if None in parts else not decides
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    sides, operator = [test.left, test.comparators[0]], test.ops[0]
    if not any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides):
        return None
    texts = [node.value for node in ast.walk(test) if isinstance(node, ast.Constant)]
    if isinstance(operator, (ast.Eq, ast.In)):
        return RANKS_NAME in texts
    return RANKS_NAME not in texts if isinstance(operator, (ast.NotEq, ast.NotIn)) else None
