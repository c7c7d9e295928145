"""Log lines, written by a process of its own: structlog's configuration is global and cached."""

import json
import subprocess
import sys
from datetime import datetime

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


def output(level: str = "info", log_format: str = "json") -> list[str]:
    script = SCRIPT.format(level=level, log_format=log_format)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.decode("utf-8", "surrogateescape").splitlines()


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
    assert failed["exception"].endswith("ZeroDivisionError: division by zero")


def test_lines_below_the_level_are_not_written() -> None:
    assert [json.loads(line)["level"] for line in output("error")] == ["error", "error"]
    assert json.loads(output("debug")[0])["event"] == "too quiet"


def test_the_console_format_is_for_reading() -> None:
    lines = output(log_format="console")
    assert "request routed" in lines[0]
    assert "endpoint=a/b" in lines[0]
    assert "\x1b[" not in lines[0]  # no colours: not a terminal
