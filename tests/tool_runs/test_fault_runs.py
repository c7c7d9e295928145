"""Every fault run, small, with the endpoint picker in this process: it must leave nothing."""

import gc
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from epp.ext_proc.stream import ExtProcStream
from epp.lab.envoy import Mode
from epp.request_control import RoutedRequest
from epp.transport.grpc.stream import GrpcStream
from epp.transport.http2 import Http2Stream
from tools.faults.asking import asked, connected, make_request
from tools.faults.gateway import FaultGateway, in_process
from tools.faults.scenarios import FAULT_RUNS
from tools.faults.upstream import Fault

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),  # above those of the clients, which tell what they waited for
    pytest.mark.asyncio(loop_scope="module"),
]

PER_REQUEST = (ExtProcStream, RoutedRequest, GrpcStream, Http2Stream)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=Mode, ids=lambda mode: str(mode.value)
)
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[FaultGateway]:
    """A gateway that all runs share: each leaves it as it found it."""
    gc.collect()
    gc.freeze()  # what other tests keep is not looked at
    async with in_process(request.param) as made:
        yield made


def live_objects() -> dict[str, int]:
    """Count the objects that stand for requests."""
    gc.collect()
    live = Counter(type(each) for each in gc.get_objects())
    return {kind.__name__: live[kind] for kind in PER_REQUEST if live[kind]}


@pytest.mark.parametrize("name", FAULT_RUNS)
async def test_a_fault_run_leaves_nothing_behind(gateway: FaultGateway, name: str) -> None:
    fault_run = FAULT_RUNS[name]
    with capture_logs() as lines:
        outcome = await fault_run.scenario(gateway, fault_run.in_the_suite)
        assert outcome.wrong == []
        assert outcome.requests == fault_run.in_the_suite
        assert outcome.right > 0
        assert await gateway.wrongs() == []
    assert gateway.picker is not None
    gateway.picker.assert_untouched()
    assert [line for line in lines if line["log_level"] in {"error", "critical"}] == []
    assert live_objects() == {}


async def test_a_request_that_stays_open_is_reported(gateway: FaultGateway) -> None:
    request = make_request(1, Random(1), hold="headers")
    async with connected(gateway.port) as connection:
        await connection.send(request.head + request.body)
        await gateway.until_held(1)
        wrong = await gateway.wrongs(settle_seconds=0.0)
    assert {
        "endpoint_inflight_requests is 1",
        "request_running is 1",
        "transport_streams is 1",
        "1 requests of nobody are held by model servers",
    } <= set(wrong)
    assert await gateway.wrongs() == []


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(Fault.CLOSE_BEFORE_HEADERS, "answered 503", id="another status"),
        pytest.param(Fault.RESPONSE_MID_UPLOAD, "answered 413", id="another body"),
    ],
)
async def test_a_response_that_is_not_the_right_one_is_reported(
    gateway: FaultGateway, fault: Fault, expected: str
) -> None:
    assert expected in await asked(gateway.port, make_request(2, Random(2), fault=fault))
    assert await asked(gateway.port, make_request(3, Random(2))) == ""
    assert await gateway.wrongs() == []
