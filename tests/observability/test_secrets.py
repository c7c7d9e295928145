"""Prompts, bodies and credentials appear in no log line and on no page of metrics."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SECRET = "pssst"
"""Part of every marker below."""

SCRIPT = """
import json, random, sys
from epp.observability import configure
configure(level={level!r}, log_format={log_format!r})
import structlog
from prometheus_client import generate_latest
from epp.request_control import DataProducer, EndCause, RequestError, ResponseComplete
from epp.scheduling import Filter, PluginContractError
from tools.harness.request_control import Epp, FailingHandler, make_pool

PROMPT, KEY = "my-pssst-prompt", "Bearer pssst-key"
HEADERS = {{
    ":path": "/v1/completions?token=pssst-query",
    "authorization": KEY,
    "cookie": "session=pssst-cookie",
    "x-api-key": "pssst-api-key",
}}
BODY = json.dumps({{"model": "llama", "prompt": PROMPT}}).encode()


def revealed(request):
    return f"{{request.prompt!r}} {{request.headers}}"


class Raising(Filter):
    type = name = "raising"

    def filter(self, request, endpoints, state):
        raise ValueError(revealed(request))


class Odd(Filter):
    type = name = "odd"

    def filter(self, request, endpoints, state):
        return [revealed(request)]


class Chained(DataProducer, ResponseComplete):
    type = name = "chained"

    def prepare(self, request, state):
        try:
            raise KeyError(revealed(request))
        except KeyError as error:
            error.add_note(revealed(request))
            raise RuntimeError(revealed(request)) from error

    def response_complete(self, request, endpoint, cause, state):
        raise SystemExit(revealed(request))


class Handler(FailingHandler):
    def __init__(self):
        self.type = self.name = "handler"

    def pick_profiles(self, request, *arguments):
        raise LookupError(revealed(request))


def run(body=BODY, **parts):
    epp = Epp(make_pool(), **parts)
    for number in range(3):
        try:
            routed = epp.handle(request_id=f"r-{{number}}", headers=HEADERS, body=body)
        except RequestError as error:
            print("client told:", error)
        else:
            routed.response_started(200)
            routed.close(EndCause.COMPLETED)
    print(generate_latest(epp.metrics.registry).decode())


run()
run(filters=[Raising()])
run(filters=[Odd()])
run(plugins=[Chained()])
run(handler=Handler())
run(body=b'{{"model": "llama", "prompt": "my-pssst-prompt')
run(body=b'{{"model": {{"pssst": 1}}}}')
run(body=b'["my-pssst-prompt"]')
run(body=b"my-pssst-prompt")
print("ran to the end")
"""


@pytest.mark.parametrize("level", ["info", "debug"])
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_nothing_of_a_request_is_reported(level: str, log_format: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(level=level, log_format=log_format)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    output = done.stdout + done.stderr
    assert "ran to the end" in output
    for event in ("request finished", "request refused", "plugin failed", "request failed inside"):
        assert event in output
    assert ("endpoint chosen" in output) is (level == "debug")
    # The source of a plugin is shown, and this test's names the markers.
    lines = [line for line in output.splitlines() if SECRET in line]
    assert lines == []
