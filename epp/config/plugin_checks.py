"""Check plugin classes against the contracts of their extension points when they are loaded.

See :mod:`.extension_points`. Each message names the file, line and method, and says how to fix the
fault.
"""

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from epp.config.declarations import declared_faults
from epp.config.extension_points import (
    declares_contracts,
    extension_points,
    extension_points_of,
    import_name,
)
from epp.scheduling import Plugin

SERVICES = (
    "clock",
    "compat",
    "metrics",
    "open_caller",
    "open_grpc_caller",
    "open_page",
    "refer",
    "report_load",
    "rng",
)
"""Services that a constructor may take as arguments, besides ``name`` and ``params``."""


def params_of(plugin: type[Plugin]) -> type[msgspec.Struct]:
    """Return the class of a plugin's parameters: the annotation of ``params``.

    Raises:
        TypeError: It is missing or not a ``msgspec.Struct``; the text says how to fix it.
    """
    parameters = list(inspect.signature(plugin.__init__).parameters.values())[1:]
    want = f"write `def __init__(self, name: str, params: Params)` in {plugin.__name__}"
    if [each.name for each in parameters[:2]] != ["name", "params"]:
        raise TypeError(f"its first arguments must be `name` and `params`: {want}")
    try:
        hints = inspect.get_annotations(plugin.__init__, eval_str=True)
    except (NameError, SyntaxError, TypeError, AttributeError) as error:
        raise TypeError(f"its annotations cannot be read: {error}") from error
    annotation = hints.get("params")
    if not (isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)):
        raise TypeError(
            f"`params` must be annotated with a class made of msgspec.Struct: {want}, with `class"
            " Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename='camel')`"
        )
    return annotation


def inheritance_hint(plugin: type) -> str:
    """Return a hint which extension point a class should inherit from; "" if none fits."""
    for point, method in _duck_typed(plugin):
        return f"it has a method `{method}`: inherit from {import_name(point)}"
    return ""


def check_plugin_class(plugin: type[Plugin]) -> list[str]:
    """Return the faults of a plugin class, each with file, line and method."""
    faults = list(_faults(plugin))
    if not faults:
        return []
    file, class_line = _place_of(plugin)
    return [fault.text(plugin, file, class_line) for fault in faults]


@dataclass(frozen=True, slots=True)
class _Fault:
    message: str
    method: str = ""
    function: types.FunctionType | None = None

    def text(self, plugin: type, file: str, line: int) -> str:
        if self.function is not None:
            file = self.function.__code__.co_filename
            line = self.function.__code__.co_firstlineno
        where = f"{file}:{line}" if line else file
        subject = f"{plugin.__name__}.{self.method}" if self.method else plugin.__name__
        return f"{where}: {subject}: {self.message}"


def _faults(plugin: type[Plugin]) -> Iterator[_Fault]:
    points = extension_points_of(plugin)
    duck_typed = list(_duck_typed(plugin))
    for point, method in duck_typed:
        base = import_name(point)
        text = f"an extension point's method without its base class; inherit from {base}"
        yield _Fault(text, method, _function(plugin, method))
    if not points and not duck_typed:
        known = ", ".join(each.__name__ for each in extension_points())
        yield _Fault(f"it implements no extension point; inherit from one of {known}")
    yield from _method_faults(plugin)
    yield from _constructor_faults(plugin)
    yield from map(_Fault, declared_faults(plugin))


def _method_faults(plugin: type[Plugin]) -> Iterator[_Fault]:
    own = [name for name in dir(plugin) if not name.startswith("_")]
    checked: set[str] = set()
    for declaring in plugin.__mro__:
        if not (declaring is Plugin or declares_contracts(declaring)):
            continue
        for method, contract in vars(declaring).items():
            is_public = isinstance(contract, types.FunctionType) and not method.startswith("_")
            if not is_public or method in checked:
                continue
            checked.add(method)
            if method in plugin.__abstractmethods__:
                near = [n for n in get_close_matches(method, own, n=2) if n != method]
                hint = f" (is `{near[0]}` meant to be it?)" if near else ""
                yield _Fault(
                    f"{declaring.__name__} needs the method `{_head(contract)}`{hint}", method
                )
            elif inspect.getattr_static(plugin, method) is not contract:
                function = _function(plugin, method)
                for message in _difference(plugin, method, contract):
                    yield _Fault(message, method, function)


def _difference(plugin: type, method: str, contract: types.FunctionType) -> Iterator[str]:
    """Yield the differences of a method from the declaration in its extension point."""
    head = _head(contract)
    found = inspect.getattr_static(plugin, method)
    called = getattr(plugin, method)
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        yield f"it must be a method: write `{head}`"
        return
    # A decorator may hide that the wrapped function is a coroutine.
    functions = (called, inspect.unwrap(called))
    is_coroutine = any(map(inspect.iscoroutinefunction, functions))
    if any(inspect.isasyncgenfunction(f) or inspect.isgeneratorfunction(f) for f in functions):
        yield f"it must not `yield`: return the whole result from `{head}`"
    elif inspect.iscoroutinefunction(contract) != is_coroutine:
        yield (
            f"it must not be a coroutine: write `{head}`; asynchronous work belongs in an"
            " AsyncDataProducer or the data layer"
            if is_coroutine
            else f"it must be a coroutine: write `{head}`"
        )
    if inspect.isfunction(found):
        parameters = parameters[1:]
    wanted = list(inspect.signature(contract).parameters)[1:]
    if not _takes(parameters, wanted):
        yield f"its arguments must be ({', '.join(wanted)}): write `{head}`"


def _takes(parameters: list[inspect.Parameter], wanted: list[str]) -> bool:
    """Return whether ``parameters`` accept a positional call with the arguments ``wanted``.

    Names must match; an unused argument may have a leading underscore. Further parameters must have
    defaults.
    """
    given = list(parameters)
    for name in wanted:
        if given and given[0].kind is inspect.Parameter.VAR_POSITIONAL:
            break
        if not given or given[0].kind is inspect.Parameter.KEYWORD_ONLY:
            return False
        if given.pop(0).name.lstrip("_") not in {name, ""}:
            return False
    optional = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return all(
        each.kind in optional or each.default is not inspect.Parameter.empty for each in given
    )


def _constructor_faults(plugin: type[Plugin]) -> Iterator[_Fault]:
    function = _function(plugin, "__init__")
    try:
        params = params_of(plugin)
    except TypeError as error:
        yield _Fault(str(error), "__init__", function)
        return
    try:
        msgspec.json.Decoder(params)
    except (NameError, SyntaxError, TypeError, AttributeError) as error:
        yield _Fault(
            f"the fields of {params.__name__} cannot be read: {error}", "__init__", function
        )
    if not params.__struct_config__.forbid_unknown_fields:
        yield _Fault(
            f"{params.__name__} must have forbid_unknown_fields=True, or a misspelt parameter in"
            " the configuration goes unnoticed",
            "__init__",
            function,
        )
    for service in list(inspect.signature(plugin.__init__).parameters.values())[3:]:
        if service.name in SERVICES or service.default is not inspect.Parameter.empty:
            continue
        if service.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            continue
        near = get_close_matches(service.name, SERVICES, n=1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        yield _Fault(
            f"unknown service `{service.name}`; {hint}known: {', '.join(SERVICES)}; any other"
            " argument needs a default",
            "__init__",
            function,
        )


def _duck_typed(plugin: type) -> Iterator[tuple[type[Plugin], str]]:
    """Find methods of extension points that ``plugin`` does not inherit from.

    In a plugin that inherits from another extension point, a method such as ``open`` or ``run``
    counts only if its arguments match too.
    """
    is_nothing_yet = not extension_points_of(plugin)
    for point in extension_points():
        if issubclass(plugin, point):
            continue
        for method, contract in vars(point).items():
            if not getattr(contract, "__isabstractmethod__", False):
                continue  # first, because it is much cheaper than to look for the method
            function = _function(plugin, method)
            if function is None:
                continue
            wanted = list(inspect.signature(contract).parameters)
            if is_nothing_yet or list(inspect.signature(function).parameters) == wanted:
                yield point, method


def _function(plugin: type, method: str) -> types.FunctionType | None:
    found: Any = inspect.getattr_static(plugin, method, None)
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = inspect.unwrap(found) if callable(found) else found
    return found if isinstance(found, types.FunctionType) else None


def _head(contract: types.FunctionType) -> str:
    kind = "async def" if inspect.iscoroutinefunction(contract) else "def"
    return f"{kind} {contract.__name__}({', '.join(inspect.signature(contract).parameters)})"


def _place_of(plugin: type) -> tuple[str, int]:
    """Return the file and line of a class; line 0 if its source is not available."""
    try:
        return inspect.getsourcefile(plugin) or plugin.__module__, (
            inspect.getsourcelines(plugin)[1]
        )
    except (OSError, TypeError):
        return plugin.__module__, 0
