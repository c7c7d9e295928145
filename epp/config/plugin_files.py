"""Load plugin classes from Python files: ``type: "file:/etc/epp/plugins/spot.py:SpotFilter"``.

The bytes that are hashed are the bytes that run. Each version of a file is a separate module, so a
changed file gives a new class while instances of the old one keep working. The newest version is
kept, and older ones as long as their :class:`PluginFile` is referenced, so that a rollback gets the
same classes. The file's directory is not added to ``sys.path``: imports of a plugin file must be
installed.
"""

import hashlib
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from epp.config.errors import ConfigError, ConfigProblem
from epp.config.plugin_checks import inheritance_hint
from epp.inputs import why_unreadable
from epp.scheduling import Plugin

T = TypeVar("T")

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Version:
    """A loaded version of a plugin file; its module stays in ``sys.modules`` while this lives."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        weakref.finalize(self, sys.modules.pop, module.__name__, None).atexit = False


class RunFile(NamedTuple):
    """A loaded file."""

    digest: str
    """SHA-256 of the file, in hexadecimal."""
    version: Version
    """Keep it while anything in the module is in use."""


@dataclass(frozen=True, slots=True)
class PluginFile:
    """A plugin class and the version of the file it was read from."""

    plugin: type[Plugin]
    digest: str
    """SHA-256 of the file, in hexadecimal."""
    version: Version
    """Keep it while instances of ``plugin`` are created."""


def load_plugin_file(path: Path, class_name: str) -> PluginFile:
    """Load a Python file, unless this version is loaded, and return one of its classes.

    Blocks: reads the file and runs it. A class without a ``type`` of its own gets its name in
    kebab-case.

    Raises:
        ConfigError: The file cannot be read, raises, or has no such plugin; the text begins with
            the file and line.
    """
    path = path.absolute()
    digest, version = run_file(path)
    plugin = class_in(version.module, class_name, Plugin, _what_to_inherit)
    if "type" not in vars(plugin):
        plugin.type = _WORD_START.sub("-", class_name).replace("_", "-").lower()
    return PluginFile(plugin, digest, version)


def _what_to_inherit(found: type) -> str:
    return inheritance_hint(found) or "inherit from an extension point of epp.scheduling"


def run_file(path: Path) -> RunFile:
    """Load a Python file, unless this version is loaded.

    Raises:
        ConfigError: The file cannot be read or raises.
    """
    path = path.absolute()
    try:
        source = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise _error(path, f"cannot read the plugin file: {why_unreadable(error)}") from error
    digest = hashlib.sha256(source).hexdigest()
    with _lock:
        name = _module_name(path, digest)
        version = _in_use.get(name)
        if version is None:
            version = _in_use[name] = Version(_run(path, source, name))
        _newest[path] = version
    return RunFile(digest, version)


_newest: dict[Path, Version] = {}
_in_use: WeakValueDictionary[str, Version] = WeakValueDictionary()
_lock = threading.RLock()  # a reload runs in a thread; a plugin file may itself load another


def _module_name(path: Path, digest: str) -> str:
    version = hashlib.sha256(f"{path}\0{digest}".encode()).hexdigest()[:16]
    return f"epp_plugin_file_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{version}"


def _run(path: Path, source: bytes, name: str) -> ModuleType:
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        column = error.offset or 0
        raise _error(path, f"not valid Python: {error.msg}", error.lineno or 0, column) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise _error(path, f"not valid Python: {error}") from error
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__package__ = ""
    module.__spec__ = ModuleSpec(name, None, origin=str(path))
    # Register it before running: dataclasses and msgspec resolve annotations via sys.modules,
    # msgspec not until they are needed.
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)  # noqa: S102 - running the operator's own file is the point
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        line = _line_in(path, error.__traceback__)
        raise _error(path, f"it raised {text}{_import_hint(path, error)}", line) from error
    return module


def class_in(
    module: ModuleType, class_name: str, base: type[T], advise: Callable[[type], str]
) -> type[T]:
    """Return a plugin class of a file's module.

    Args:
        module: Module of the file.
        class_name: Name of the class.
        base: The class that it must inherit from.
        advise: Returns advice about a class that does not.

    Raises:
        ConfigError: There is no such class; the text begins with the file and line.
    """
    path = Path(module.__file__ or "")
    found = vars(module).get(class_name)
    if found is None:
        known = [each.__name__ for each in _classes_of(module, base)]
        near = get_close_matches(class_name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        listed = f"its plugins: {', '.join(known)}" if known else "it has no plugin at all"
        raise _error(path, f"there is no class {class_name!r} in it; {hint}{listed}")
    if not isinstance(found, type):
        raise _error(path, f"{class_name!r} is {type(found).__name__}, not a class")
    if found.__module__ != module.__name__:
        raise _error(
            path,
            f"class {class_name!r} is imported from {found.__module__}; name it by its own file or"
            " type",
        )
    if not issubclass(found, base):
        advice = advise(found)
        raise _error(path, f"class {class_name!r} is no plugin; {advice}", _line_of(found))
    return found


def _classes_of(module: ModuleType, base: type[T]) -> Iterator[type[T]]:
    for each in vars(module).values():
        if isinstance(each, type) and issubclass(each, base) and each.__module__ == module.__name__:
            yield each


def _line_in(path: Path, traceback: TracebackType | None) -> int:
    """Return the line of the innermost traceback frame in ``path``; 0 if there is none."""
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _line_of(cls: type) -> int:
    """Return the line of a class's first method; 0 if it has none."""
    methods = [each for each in vars(cls).values() if isinstance(each, FunctionType)]
    return min((each.__code__.co_firstlineno for each in methods), default=0)


def _import_hint(path: Path, error: BaseException) -> str:
    if not isinstance(error, ImportError):
        return ""
    neighbour = path.with_name(f"{(error.name or '').partition('.')[0]}.py")
    if (error.name and neighbour.is_file()) or "relative import" in str(error):
        return (
            "; a plugin file cannot import its neighbours: put all into one file, or install them"
            " as a package"
        )
    return "; modules that a plugin file imports must be installed beside the endpoint picker"


def _error(path: Path, message: str, line: int = 0, column: int = 0) -> ConfigError:
    return ConfigError.of(str(path), [ConfigProblem(message, line=line, column=column)])
