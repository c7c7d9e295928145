"""The parts of the benchmark: counted calls of a request, and a part that fails."""

import io
import os
import subprocess
import sys

import msgspec
import pytest
from rich.console import Console

from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools import REPOSITORY
from tools.bench import main, stacks
from tools.bench.calls import Call
from tools.bench.through_envoy import Settings
from tools.harness.ext_proc import ADAPTIVE, http_headers

BODY = b'{"model":"bench","prompt":"000000000000 and more"}'
ASKED = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r"}
READS = [
    [each.SerializeToString()]
    for each in (
        pb.ProcessingRequest(
            request_headers=http_headers(ASKED, False),
            protocol_config=pb.ProtocolConfiguration(
                request_body_mode=ADAPTIVE[0], response_body_mode=ADAPTIVE[1]
            ),
        ),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=BODY, end_of_stream=True)),
        pb.ProcessingRequest(response_headers=http_headers({":status": "200"}, False)),
    )
]


COUNTED = """\
import asyncio
import sys
import msgspec
from epp.lab.envoy import Mode
from tools.bench import counted
from tools.bench.gateways import Case
from tools.bench.in_process import Path
counted._MESSAGES = 60
case = Case(Mode.ADAPTIVE)
path = Path(case, messages=3, epp_us=300.0, silent_us=290.0, bare_us=60.0)
reads = msgspec.msgpack.decode(sys.stdin.buffer.read())
calls = asyncio.run(counted.measure(case, reads, path, repeats=1))
sys.stdout.buffer.write(msgspec.json.encode(calls))
"""


def test_the_calls_of_a_request_add_up_to_its_path() -> None:
    # In a process of its own, as what it makes logs to nowhere for good; and in pure Python, as a
    # profiler sees no compiled calls.
    done = subprocess.run(
        [sys.executable, "-c", COUNTED],
        cwd=REPOSITORY,
        env={k: v for k, v in os.environ.items() if k not in {"EPP_COMPILED", "PYTHONPATH"}},
        input=msgspec.msgpack.encode(READS),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    calls = msgspec.json.decode(done.stdout, type=list[Call])
    assert sum(each.us for each in calls) == pytest.approx(300.0)
    each_once = {each.name for each in calls if each.per_request == 1}
    assert each_once >= {
        "RequestParser.parse",
        "DataProducer.prepare, attach",
        "Scheduler.schedule, not observed",
        "PostSchedule.post_schedule",
        "RoutedRequest made, Reservation released",
        "finished_line, CanonicalLine.write",
    }
    (decoded,) = (each for each in calls if each.name == "processing_request.decode")
    assert (decoded.part, decoded.per_request) == (stacks.PROTOBUF, 3)


async def test_a_part_that_fails_costs_no_other_its_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(run: main.Run) -> None:
        raise ValueError("nothing was recorded")

    async def succeed(run: main.Run) -> None:
        run.results["second"] = 2

    monkeypatch.setattr(main, "PARTS", {"first": fail, "second": succeed})
    shown, settings = io.StringIO(), Settings(seconds=1.0, rounds=1, pause_ms=0.0)
    run = main.Run(
        Console(file=shown, width=160), settings, settings, 1, True, servers=(), budget_cases=()
    )
    await main.measure_parts(run, ["first", "second"])
    assert (run.failed, run.results) == (["first"], {"second": 2})
    assert "ValueError: nothing was recorded" in shown.getvalue()
