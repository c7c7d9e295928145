"""Log lines for a terminal: their length, omitted fields, and colours."""

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.typing import EventDict

from epp.observability.console import console_renderer

pytestmark = pytest.mark.integration

REQUEST: dict[str, Any] = {
    "request_id": "ef1db9d7-a6bc-4ade-9428-74ebfa4f1944",
    "model": "llama-3.1-8b-instruct",
    "target_model": "llama-3.1-8b-instruct",
    "endpoint": "default/endpoint-2",
    "address": "127.0.0.1:36463",
    "waiting_requests": 12.0,
    "running_requests": 7.5,
    "kv_cache_usage": 0.4567,
    "metrics_age_seconds": 0.0127,
    "decision_seconds": 0.000659,
    "duration_seconds": 12.091791,
    "body_bytes": 53,
    "stream": False,
    "status": 200,
    "outcome": "ended",
    "level": "info",
    "timestamp": "2026-11-22T22:45:23.364920Z",
    "event": "request finished",
}


def line(**fields: object) -> str:
    event: EventDict = REQUEST | fields
    return console_renderer()(event).decode().rstrip("\n")


def test_the_line_of_a_routed_request_is_short() -> None:
    assert line() == (
        "22:45:23.364 request finished status=200 endpoint=endpoint-2"
        " model=llama-3.1-8b-instruct load=12+8,46%"
        " decision=0.66ms duration=12.1s id=ef1db9d7"
    )
    assert len(line()) <= 160


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        pytest.param({"model": "m", "target_model": "x"}, " model=m->x ", id="another model"),
        pytest.param({"endpoint": "prod/a"}, " endpoint=prod/a ", id="another namespace"),
        pytest.param({"outcome": "evicted"}, " outcome=evicted ", id="an outcome to look at"),
        pytest.param({"stream": True}, " stream=True ", id="a streamed response"),
        pytest.param({"metrics_age_seconds": 0.25}, " age=250ms ", id="an old page"),
        pytest.param({"duration_seconds": 0.091791}, " duration=92ms ", id="milliseconds"),
        pytest.param({"duration_seconds": 1234.56}, " duration=1234.6s ", id="many seconds"),
        pytest.param({"request_id": "r-1"}, " id=r-1", id="a short id"),
        pytest.param({"queued_seconds": 0.25}, " queued=250ms ", id="a wait"),
        pytest.param({"prompt_tokens": 5, "completion_tokens": 8}, " tokens=5+8 ", id="tokens"),
        pytest.param({"completion_tokens": 8}, " tokens=?+8 ", id="tokens of the response alone"),
        pytest.param({"status": 503, "error": "no room"}, " error='no room' ", id="an error"),
        pytest.param({"stages": {"prefill": "a"}}, " stages={'prefill': 'a'} ", id="stages"),
    ],
)
def test_what_is_unusual_is_shown(fields: Mapping[str, object], shown: str) -> None:
    assert shown in line(**fields)


def fields_of(text: str) -> list[str]:
    """Return the names of the fields of a line whose values have no blanks."""
    return [part.partition("=")[0] for part in text.split() if "=" in part]


EVERY: dict[str, Any] = {
    "target_model": "other",
    "metrics_age_seconds": 3.0,
    "stream": True,
    "outcome": "client-disconnect",
    "priority": 10,
    "fairness_id": "tenant",
    "queued_seconds": 0.25,
    "prompt_tokens": 5,
    "completion_tokens": 8,
    "stages": "prefill",
    "failed_producers": "tokens",
    "shadow": "other",
    "pool": "ns/pool",
    "of_a_later_version": 1,
}


def test_at_most_ten_fields_are_shown_and_the_others_are_named() -> None:
    shown = line(**EVERY)
    assert shown == (
        "22:45:23.364 request finished status=200 outcome=client-disconnect endpoint=endpoint-2"
        " model=llama-3.1-8b-instruct->other queued=250ms load=12+8,46% duration=12.1s"
        " failed_producers=tokens more=decision,tokens,stages,priority,fairness_id,age,pool,"
        "shadow,stream,of_a_later_version id=ef1db9d7"
    )
    assert len(fields_of(shown)) == 10


def test_every_number_of_unusual_fields_makes_at_most_ten() -> None:
    for count in range(len(EVERY) + 1):
        some = dict(list(EVERY.items())[:count])
        assert len(fields_of(line(**some))) <= 10


def test_ten_fields_need_no_more() -> None:
    shown = line(queued_seconds=0.25, prompt_tokens=5, completion_tokens=8, outcome="evicted")
    assert fields_of(shown) == [
        *("status", "outcome", "endpoint", "model", "queued", "load"),
        *("decision", "duration", "tokens", "id"),
    ]


def test_the_line_of_a_refusal_has_at_most_ten_fields() -> None:
    refusal = {
        "request_id": "r-1",
        "model": "m",
        "target_model": "n",
        "status": 503,
        "stage": "scheduling",
        "reason": "rejected-no-endpoints",
        "error": "filters-removed-all",
        "duration_seconds": 0.0005,
        "outcome": "refused",
        "priority": -1,
        "fairness_id": "t",
        "pool": "p",
        "event": "request refused",
    }
    assert console_renderer()(refusal).decode() == (
        "request refused status=503 reason=rejected-no-endpoints stage=scheduling"
        " error=filters-removed-all model=m->n duration=0.5ms priority=-1 fairness_id=t pool=p"
        " id=r-1\n"
    )


def test_what_is_unknown_is_left_out() -> None:
    assert "age=" not in line(metrics_age_seconds=None)
    assert "status" not in line(status=None)


def test_an_event_stays_as_it_was() -> None:
    event: EventDict = dict(REQUEST)
    console_renderer()(event)
    assert event == REQUEST


def test_a_warning_about_a_request_keeps_its_whole_id() -> None:
    shown = line(event="plugin failed", exception="Traceback ...")
    assert "request_id=ef1db9d7-a6bc-4ade-9428-74ebfa4f1944" in shown


def test_another_line_has_all_its_fields() -> None:
    event = {"event": "drained", "level": "info", "address": "a", "body_bytes": 1, "none": None}
    assert console_renderer()(event) == b"[info] drained address=a body_bytes=1 none=None\n"


LOGS = (
    "from epp.observability import configure; import structlog; configure(log_format='console');"
    "structlog.get_logger().warning('event', request_id='r', number=1)"
)
SHOWS = (
    "import sys; sys.argv = ['epp', 'plugins', 'show', 'queue-scorer'];"
    "from epp.cli import main; main()"
)


def on_a_terminal(script: str, **variables: str) -> str:
    """Return what a script writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", **variables}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        written = bytearray()
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux's end of a terminal that nobody holds open
                break
            if not piece:
                break
            written += piece
        os.close(ours)
        assert process.wait(20) == 0, written
    return written.decode()


def colours(text: str) -> bool:
    return any(f"\x1b[{code}" in text for code in ("3", "4", "9", "1;3", "38", "48"))


@pytest.mark.parametrize("script", [LOGS, SHOWS], ids=["log", "command"])
def test_no_color_takes_the_colours_off_a_terminal(script: str) -> None:
    assert colours(on_a_terminal(script))
    assert not colours(on_a_terminal(script, NO_COLOR="1"))


def test_an_empty_no_color_does_not_count() -> None:
    assert colours(on_a_terminal(LOGS, NO_COLOR=""))
