"""Finds the plugin classes with state, in their source.

A class keeps a state if a method other than ``__init__`` assigns an attribute, if ``__init__``
makes an empty container or a counter, or if it makes an object of a class of the plugins that does.
"""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_CONTAINERS: Final = frozenset(
    {"bytearray", "count", "deque", "defaultdict", "dict", "list", "set"}
    | {"Counter", "OrderedDict", "WeakKeyDictionary", "WeakSet"}
)


def state_of(kind: type) -> str:
    """Return the first thing that ``kind`` keeps; "" if there is nothing."""
    return next(_kept(kind), "")


def subclasses_of(kinds: Iterable[type]) -> list[type]:
    """Return the classes and their subclasses among the plugins, each once."""
    found: dict[type, None] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop(0)
        if kind not in found and _is_ours(kind):
            found[kind] = None
            waiting += kind.__subclasses__()
    return list(found)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "epp_plugins"


def _kept(kind: type) -> Iterator[str]:
    for base in filter(_is_ours, kind.__mro__):
        for method in _class(base).body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                for name, value in _assigned(method):
                    if method.name != "__init__":
                        yield f"{base.__name__}.{method.name} sets {name}"
                    elif value is not None and (what := _state_in(value, base)):
                        yield f"{base.__name__}.{name} is {what}"


def _class(kind: type) -> ast.ClassDef:
    """Return the source of a class, which may be compiled: its source is beside the extension."""
    module = kind.__module__
    file = Path(sys.modules[module].__file__ or "")
    if file.suffix != ".py":
        file = file.with_name(f"{module.rpartition('.')[2]}.py")
    (found,) = (
        each
        for each in ast.parse(file.read_text()).body
        if isinstance(each, ast.ClassDef) and each.name == kind.__name__
    )
    return found


def _assigned(method: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the attributes of ``self`` that a method assigns, or of which it assigns items."""
    for node in ast.walk(method):
        if isinstance(node, ast.Assign | ast.Delete):
            targets, value = node.targets, getattr(node, "value", None)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                inner: ast.expr = each
                while isinstance(inner, ast.Subscript):
                    inner = inner.value
                if (
                    isinstance(inner, ast.Attribute)
                    and isinstance(inner.value, ast.Name)
                    and inner.value.id == "self"
                ):
                    yield inner.attr, value


def _state_in(value: ast.expr, owner: type) -> str:
    """Return the state that an expression in ``__init__`` of ``owner`` makes; "" for none."""
    if ast.unparse(value) in {"{}", "[]"}:
        return ast.unparse(value)
    for call in ast.walk(value):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            name = call.func.id
            if name in _CONTAINERS and not (call.args and name in {"dict", "list", "set"}):
                return f"{name}()"
            made = getattr(sys.modules[owner.__module__], name, None)
            if inspect.isclass(made) and _is_ours(made) and (inner := state_of(made)):
                return f"{name}: {inner}"
    return ""
