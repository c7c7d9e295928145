"""Log lines, written by a process of its own: structlog's configuration is global and cached."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime

import pytest

pytestmark = pytest.mark.integration

SCRIPT = """
import structlog
from epp.observability import configure
configure(level={level!r}, log_format={log_format!r})
log = structlog.get_logger()
log.debug("too quiet")
log.info("request routed", endpoint="a/b", queue_seconds=0.5, text="two\\nlines \\u4f60")
log.warning("odd values", number=10**30, thing=object(), pair=(1, 2), nothing=None)
log.error("not text", path="\\udc80")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("division failed", request_id="r-1")
"""


def lines_of(script: str) -> list[str]:
    """Return what a process of its own writes to standard output; it must write no error."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.decode("utf-8", "surrogateescape").splitlines()


def output(level: str = "info", log_format: str = "json") -> list[str]:
    return lines_of(SCRIPT.format(level=level, log_format=log_format))


def test_each_line_is_one_json_object() -> None:
    routed, odd, not_text, failed = (json.loads(line) for line in output())
    stamp = datetime.fromisoformat(routed.pop("timestamp"))
    assert stamp.utcoffset() is not None
    assert routed == {
        "event": "request routed",
        "level": "info",
        "endpoint": "a/b",
        "queue_seconds": 0.5,
        "text": "two\nlines 你",
    }
    assert (odd["level"], odd["number"], odd["pair"]) == ("warning", 10**30, [1, 2])
    assert odd["nothing"] is None
    assert odd["thing"].startswith("<object object")
    assert not_text["path"] == "\udc80"
    assert (failed["level"], failed["request_id"]) == ("error", "r-1")
    assert failed["exception"].startswith("Traceback")
    assert failed["exception"].endswith("ZeroDivisionError")


def test_lines_below_the_level_are_not_written() -> None:
    assert [json.loads(line)["level"] for line in output("error")] == ["error", "error"]
    assert json.loads(output("debug")[0])["event"] == "too quiet"


def test_the_console_format_is_for_reading() -> None:
    lines = output(log_format="console")
    assert "request routed" in lines[0]
    assert "endpoint=a/b" in lines[0]
    assert "\x1b[" not in lines[0]  # no colours: not a terminal


CANONICAL = """
import msgspec, structlog
from epp.observability import CanonicalLine, configure

class Fields(msgspec.Struct):
    endpoint: str
    status: int | None
    seconds: float = 0.5

line = CanonicalLine("request finished", **{constants!r})
configure(level={level!r}, log_format={log_format!r})
line = line if {made_first} else CanonicalLine("request finished", **{constants!r})
log = structlog.get_logger()
for fields in (Fields("a/b \\u4f60", 200), Fields("\\udc80", None)):
    line.write(fields) if line.enabled else print("not made")
    log.info("request finished", **msgspec.structs.asdict(fields), **{constants!r})
"""


def canonical(
    level: str = "info",
    log_format: str = "json",
    *,
    made_first: bool = False,
    constants: Mapping[str, str] | None = None,
) -> list[str]:
    script = CANONICAL.format(
        level=level, log_format=log_format, made_first=made_first, constants=dict(constants or {})
    )
    return lines_of(script)


def without_time(line: str) -> str:
    line = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z", "(time)", line)
    return re.sub(r"^\d\d:\d\d:\d\d(\.\d{3}|Z)", "(time)", line)


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_does_not_show_what_a_request_holds(log_format: str) -> None:
    code = (
        f"from epp.observability import configure; configure(log_format={log_format!r});"
        "import structlog\n"
        "def plugin(prompt):\n    return 1 / 0\n"
        "try:\n    plugin('my ' + 'secret')\n"
        "except ZeroDivisionError:\n    structlog.get_logger().exception('plugin failed')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ZeroDivisionError" in ran.stdout
    assert "my secret" not in ran.stdout


@pytest.mark.parametrize("made_first", [False, True], ids=["configured", "made before"])
@pytest.mark.parametrize("level", ["debug", "info"])
def test_a_canonical_line_is_the_one_structlog_writes(level: str, *, made_first: bool) -> None:
    line, same, not_text, same_not_text = canonical(level, made_first=made_first)
    assert without_time(line) == without_time(same)
    assert without_time(line) == (
        '{"endpoint":"a/b 你","status":200,"seconds":0.5,'
        '"event":"request finished","level":"info","timestamp":"(time)"}'
    )
    assert without_time(not_text) == without_time(same_not_text)
    assert json.loads(not_text)["endpoint"] == "\udc80"


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("made_first", [False, True], ids=["configured", "made before"])
def test_fields_of_all_lines_come_last(log_format: str, *, made_first: bool) -> None:
    constants = {"pool": 'c"hat', "zone": "a"}
    lines = canonical(log_format=log_format, made_first=made_first, constants=constants)
    assert [without_time(line) for line in lines[::2]] == [
        without_time(line) for line in lines[1::2]
    ]
    if log_format == "json":
        assert '"seconds":0.5,"pool":"c\\"hat","zone":"a","event"' in lines[0]


def test_a_canonical_line_is_readable_on_a_console() -> None:
    script_lines = canonical(log_format="console")
    assert "request finished" in script_lines[0]
    assert "endpoint='a/b 你'" in script_lines[0]
    assert without_time(script_lines[0]) == without_time(script_lines[1])


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_canonical_line_below_the_level_is_not_made(log_format: str) -> None:
    assert canonical("warning", log_format) == ["not made", "not made"]


LOST = """
import os, sys
import msgspec, structlog
from epp.observability import CanonicalLine, configure

class Fields(msgspec.Struct):
    endpoint: str

saved = os.dup(1)
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
configure(log_format={log_format!r})
log, line = structlog.get_logger(), CanonicalLine("request finished")
for _ in range(100):  # more than a buffer takes
    log.info("request routed", padding="x" * 200)
    line.write(Fields("a/b" + "x" * 200))
os.dup2(saved, 1)
log.info("there is somebody again")
"""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_line_that_nobody_takes_is_lost_and_nothing_else(log_format: str) -> None:
    assert "there is somebody again" in lines_of(LOST.format(log_format=log_format))[-1]


def test_what_was_left_out_at_the_end_is_reported_at_the_end() -> None:
    script = (
        "from epp.observability import configure; configure()\n"
        "import structlog\n"
        "log = structlog.get_logger('a')\n"
        "for number in range(9):\n"
        "    log.error('failed', request_id=str(number), plugin='p', name='n')\n"
    )
    last = json.loads(lines_of(script)[-1])
    del last["timestamp"]
    assert last == {
        "event": "repeated lines left out",
        "of": "failed",
        "left_out": 4,
        "plugin": "p",
        "name": "n",
        "level": "error",
    }


def test_a_fault_that_repeats_is_limited_and_counted() -> None:
    script = (
        "from epp.observability import configure; configure()\n"
        "import structlog\n"
        "log = structlog.get_logger('a')\n"
        "now = [0.0]\n"
        "limit = structlog.get_config()['processors'][0]\n"
        "limit._limit._clock = lambda: now[0]\n"
        "for number in range(9):\n"
        "    log.error('failed', request_id=str(number))\n"
        "    log.info('went on', request_id=str(number))\n"
        "log.error('failed', plugin='p')\n"
        "now[0] = 10.0\n"
        "log.error('failed', request_id='last')\n"
    )
    lines = [json.loads(line) for line in lines_of(script)]
    failed = [line for line in lines if line["event"] == "failed"]
    assert [line.get("request_id") for line in failed] == ["0", "1", "2", "3", "4", None, "last"]
    assert [line.get("left_out") for line in failed] == [None] * 6 + [4]
    assert sum(line["event"] == "went on" for line in lines) == 9
