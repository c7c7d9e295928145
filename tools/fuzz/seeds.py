"""Initial inputs of the fuzzer: the bodies in the tests, and well-formed streams.

Both have the format of the targets: a byte for each choice, then the chosen content.
"""

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tools import REPOSITORY

TESTS = REPOSITORY / "tests"
_BODIES = ("plugins/parsers/test_*.py", "plugins/data_producers/test_token.py")
_MAX_BODY_BYTES = 2000


def of_parsers() -> Iterator[bytes]:
    """Yield every body of the parsers' tests, as request and as response, on the paths in turn."""
    from tools.fuzz import parsers, request_bodies, responses

    request = parsers.KINDS.index(request_bodies.raw_request)
    response = parsers.KINDS.index(responses.raw_response)
    for number, body in enumerate(sorted(set(bodies_of_tests()))):
        path, encoding = number % len(request_bodies.PATHS), number % len(request_bodies.ENCODINGS)
        yield bytes((request, path, encoding, 3)) + body
        path, kind = (
            number % len(responses.PATHS),
            number // len(responses.PATHS) % len(responses.KINDS),
        )
        yield bytes((response, path, kind)) + number.to_bytes(8, "little") + body


def of_stream() -> Iterator[bytes]:
    """Yield well-formed streams, in every pair of modes."""
    from tools.fuzz import stream

    return stream.good_inputs()


def bodies_of_tests() -> Iterator[bytes]:
    """Yield the bytes among the parameters of the tests of bodies."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))  # as pytest has it
    for pattern in _BODIES:
        for path in sorted(TESTS.glob(pattern)):
            for test in vars(_module(path)).values():
                for mark in getattr(test, "pytestmark", ()):
                    if mark.name == "parametrize":
                        yield from _bytes_in(mark.args[1])


def _bytes_in(values: Iterable[Any]) -> Iterator[bytes]:
    for value in values:
        if isinstance(value, bytes):
            if len(value) <= _MAX_BODY_BYTES:
                yield value
        elif isinstance(value, tuple | list):  # pytest.param is a tuple, too
            yield from _bytes_in(value)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"seeds_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
