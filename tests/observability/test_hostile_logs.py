"""Log lines with fields from hostile clients, and all other output of the process."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Protocol

import pytest

from .forks import Forks

pytestmark = pytest.mark.integration

HOSTILE = r"\x1b]0;owned\x07\x9b2J\u202eevil\u2066\r\n"
BEGIN = """
import structlog
from epp.observability import CanonicalLine, configure
configure(log_format={log_format!r}, standard_streams={standard_streams})
log = structlog.get_logger()
"""
FORMATS = pytest.mark.parametrize("log_format", ["json", "console"])


class Written(Protocol):
    """Returns what a process of its own writes, to standard output and standard error together."""

    def __call__(
        self, script: str, log_format: str = "json", *, standard_streams: bool = False
    ) -> bytes: ...


@pytest.fixture(scope="module")
def written() -> Iterator[Written]:
    def run(script: str, log_format: str = "json", *, standard_streams: bool = False) -> bytes:
        begin = BEGIN.format(log_format=log_format, standard_streams=standard_streams)
        return forks.written(begin + script)

    with closing(Forks()) as forks:
        yield run


def assert_harmless(output: bytes) -> None:
    for character in output.decode().replace("\n", ""):
        assert character.isprintable(), ascii(character)


@FORMATS
@pytest.mark.parametrize(
    "script",
    [
        "log.info('request refused', request_id='r', model='{0}', error='quoted: {0}')",
        "log.info('plugin told', facts={{'{0}': ['{0}', ('{0}',)]}})",
        "log.info('named by a client: {0}')",
        "try:\n    raise ValueError('{0}')\nexcept ValueError:\n    log.exception('failed')",
        "log.error('failed', exc_info=ValueError('{0}'))",
        """
import msgspec
class F(msgspec.Struct):
    model: str
CanonicalLine('request finished').write(F('{0}'))
""",
    ],
    ids=["fields", "nested", "event", "raised", "exception", "canonical"],
)
def test_no_field_reaches_a_terminal_as_more_than_text(
    script: str, log_format: str, written: Written
) -> None:
    output = written(script.format(HOSTILE), log_format)
    assert b"evil" in output
    assert_harmless(output)


@FORMATS
@pytest.mark.parametrize("text", ["m", r"\x01", "😀", r"\udc80", r"\u202e"], ids=ascii)
def test_a_line_of_a_request_is_short_whatever_its_fields_hold(
    text: str, log_format: str, written: Written
) -> None:
    script = (
        f"t = '{text}' * 1_000_000\n"
        "log.info('request refused', request_id=t, model=t, target_model=t, fairness_id=t, error=t,"
        " headers={t: [t] * 1000}, ids=[t] * 1000)"
    )
    output = written(script, log_format)
    assert b"request refused" in output
    assert re.search(rb"\d\d:\d\d\.\d{3}", output)
    assert len(output) <= 4096


@FORMATS
def test_a_canonical_line_is_as_short(log_format: str, written: Written) -> None:
    script = (
        "import msgspec\nclass F(msgspec.Struct):\n    request_id: str\n    model: str\n"
        "CanonicalLine('request finished').write(F('r', '\\x01m' * 1_000_000))"
    )
    output = written(script, log_format)
    assert b"request finished" in output
    assert len(output) <= 4096


def test_each_field_is_cut_and_says_how_much_is_left_out(written: Written) -> None:
    script = (
        "log.info('request refused', request_id='r' * 300, model='m' * 1000, n=-7, big=1 << 99)"
    )
    line = json.loads(written(script))
    assert line["request_id"] == "r" * 256 + "…+44"
    assert line["model"] == "m" * 256 + "…+744"
    assert (line["n"], line["big"]) == (-7, 1 << 99)


def test_what_tells_an_operator_of_a_faulty_file_has_more_room(written: Written) -> None:
    line = json.loads(
        written("log.error('configuration refused', problems=['p' * 1000], error='e' * 3000)")
    )
    assert line["problems"] == ["p" * 1000]
    assert line["error"] == "e" * 2048 + "…+952"


@FORMATS
def test_a_line_with_a_traceback_is_bounded_and_quotes_no_request(
    log_format: str, written: Written
) -> None:
    script = (
        "def plugin(n):\n"
        "    if n: plugin(n - 1)\n"
        "    raise ValueError('begin ' + '\\x01' * 1_000_000 + ' end')\n"
        "try:\n    plugin(500)\n"
        "except ValueError:\n    log.exception('failed', request_id='r', model='m')"
    )
    output = written(script, log_format)
    assert b"Traceback" in output
    assert b"ValueError" in output
    assert b"begin" not in output.replace(b"'begin '", b"")
    assert b"request_id" in output
    assert len(output) <= 16 << 10


@pytest.mark.parametrize(
    ("script", "event", "level"),
    [
        ("import logging; logging.getLogger('asyncio').error('slow %s', '{0}')", "slow", "error"),
        ("import logging; logging.getLogger('x').critical('{0}')", "evil", "critical"),
        ("import warnings; warnings.warn('old {0}')", "UserWarning: old", "warning"),
    ],
    ids=["asyncio", "library", "warning"],
)
def test_what_libraries_log_is_a_line_like_any_other(
    script: str, event: str, level: str, written: Written
) -> None:
    output = written(script.format(HOSTILE), standard_streams=True)
    line = json.loads(output)
    assert (line["event"], line["level"]) == ("library logged", level)
    assert event in line["message"]
    assert_harmless(output)


def test_what_libraries_say_below_a_warning_is_not_written(written: Written) -> None:
    script = "import logging; logging.getLogger('x').info('chatter')"
    assert written(script, standard_streams=True) == b""


def test_a_record_that_cannot_be_made_text_is_reported_like_any_handlers(written: Written) -> None:
    script = "import logging; logging.getLogger('x').error('%d', 'no number')"
    assert b"Logging error" in written(script, standard_streams=True)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("print('one'); print('two', end=''); print(' three')", b"one\ntwo three\n"),
        ("import sys; sys.stderr.write('no end')", b"no end"),
        ("import sys; print('a'); print('b', file=sys.stderr); log.info('c')", b"a\nb\n"),
        ("print('\\x1b[2J')", b"\\x1b[2J\n"),
        ("print('x' * 1_000_000)", b"x" * 4096 + "…+995904\n".encode()),
        ("import sys; sys.stdout.write('x' * 5000)", b"x" * 4096 + "…+904".encode()),
        ("import sys; print(sys.stdout.fileno(), sys.stderr.isatty())", b"1 False\n"),
    ],
    ids=["lines", "no end", "in order", "escaped", "long", "long without end", "attributes"],
)
def test_what_is_printed_takes_the_way_of_the_log(
    script: str, expected: bytes, written: Written
) -> None:
    assert written(script, standard_streams=True).startswith(expected)


def test_an_uncaught_exception_is_reported(written: Written) -> None:
    output = written("raise ValueError('\\x1b[2J' + 'x' * 1_000_000)", standard_streams=True)
    assert b"ValueError: \\x1b[2Jxxx" in output
    assert len(output) < 6000


def test_a_process_without_standard_streams_writes_nowhere() -> None:
    # What it opens first has the number of its standard output.
    script = BEGIN.format(log_format="json", standard_streams=True) + (
        "import socket\na, b = socket.socketpair()\n"
        "log.info('request finished')\nprint('printed')\n"
        "from epp.observability import log_queues\n"
        "assert all(each.flush(10) for each in log_queues())\n"
        "b.setblocking(False)\n"
        "try:\n    b.recv(1)\nexcept BlockingIOError:\n    raise SystemExit(7)"
    )
    command = ["sh", "-c", 'exec "$0" -c "$1" >&- 2>&-', sys.executable, script]
    assert subprocess.run(command, check=False).returncode == 7
