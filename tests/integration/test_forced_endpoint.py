"""Requests whose endpoint a signed header forces, through a real Envoy."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcSettings
from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from epp.outlier_detection import OutlierSettings
from epp.request_control.force_header import FORCE_HEADER, signed
from tools.harness.gateway import Gateway, running, until

from .queueing import CONFIG, ask, occupied, waiting

pytestmark = pytest.mark.integration

KEY, OTHER = "k" * 32, "o" * 32
THREE = FleetConfig(endpoints=3, time_scale=0.05)
OTHERS = 32
"""So many requests at random go to both of two servers, but for once in 2 billion runs."""
DRAINED = {0: {}, 1: {}, 2: {"llm-d.ai/drain": "true"}}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    return path


def forcing(endpoint: str, *, key: str = KEY, seconds: int = 60) -> dict[str, str]:
    """Return the header that forces an endpoint, valid for so long from now."""
    return {FORCE_HEADER: signed(endpoint, int(time.time()) + seconds, key.encode())}


async def sent(gateway: Gateway, headers: Mapping[str, str], **body: Any) -> httpx.Response:
    """Ask for a completion with these headers."""
    return await ask(gateway, headers, **body)


@asynccontextmanager
async def three(key_file: Path | None, **settings: Any) -> AsyncIterator[Gateway]:
    """Run a gateway with three servers, the last of which drains."""
    mode = settings.pop("mode", Mode.LEAN)
    serve = {"force_endpoint_key_file": key_file, **settings}
    async with running(
        mode, fleet=THREE, labels=DRAINED, serve=serve, edit=echo_headers
    ) as gateway:
        yield gateway


def echo_headers(bootstrap: dict[str, Any]) -> None:
    """Have responses show two headers as the model server has got them."""
    (listener,) = bootstrap["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    host["response_headers_to_add"] = [
        {"header": {"key": f"seen-{name}", "value": f"%REQ({name})%"}}
        for name in (FORCE_HEADER, "x-kept")
    ]


@pytest.mark.parametrize("mode", [Mode.LEAN, Mode.FULL_DUPLEX])
async def test_it_is_served_there_also_by_a_drained_endpoint(key_file: Path, mode: Mode) -> None:
    async with three(key_file, mode=mode, emit_decision_header=True) as gateway:
        with capture_logs() as logs:
            for number in (0, 1, 2):
                name = f"endpoint-{number}"
                address = gateway.fleet.servers[number].address
                for wanted in (name, f"default/{name}", address):
                    response = await sent(gateway, forcing(wanted) | {"x-kept": "yes"})
                    assert (response.status_code, response.headers["x-served-by"]) == (200, name)
                    expected = f"default/{name};forced;queued=0.000"
                    assert response.headers["x-epp-decision"] == expected
                    assert response.headers["seen-x-kept"] == "yes"
                    assert f"seen-{FORCE_HEADER}" not in response.headers
            others = [await gateway.completion(prompt=f"{number}") for number in range(OTHERS)]
            await gateway.settled()
        assert {each.headers["x-served-by"] for each in others} == {"endpoint-0", "endpoint-1"}
        forced = [each.get("forced") for each in logs if each["event"] == "request finished"]
        assert [bool(each) for each in forced] == [True] * 9 + [False] * OTHERS
        url = f"http://127.0.0.1:{gateway.ports.metrics}"
        lines = (await gateway.client.get(f"{url}/debug/decisions?limit=50")).json()["decisions"]
        assert [each["is_forced"] for each in lines] == [False] * OTHERS + [True] * 9
        assert lines[-1]["why"] == "default/endpoint-0 was forced by a signed header."
        page = (await gateway.client.get(f"{url}/metrics")).text
        assert 'llm_d_epp_forced_requests_total{result="routed"} 9.0' in page


async def test_what_is_not_signed_well_is_refused_with_the_reason(key_file: Path) -> None:
    async with three(key_file) as gateway:
        for headers, status, why in (
            (forcing("endpoint-0", key=OTHER), 403, "no key of --force-endpoint-key-file has made"),
            (forcing("endpoint-0", seconds=-5), 403, "s ago; make a new one with `epp force-end"),
            (forcing("endpoint-0", seconds=3600), 403, "but at most 600 s are allowed"),
            ({FORCE_HEADER: "endpoint-0"}, 403, "it must be ENDPOINT;exp=UNIX_SECONDS;sig="),
            (forcing("endpoint-9"), 404, "there is no endpoint 'endpoint-9'; the pool has default"),
        ):
            response = await sent(gateway, headers)
            assert response.status_code == status
            error = response.json()["error"]
            assert error["stage"] == "forced-endpoint"
            assert why in error["message"]
        assert [server.counters.received for server in gateway.fleet.servers] == [0, 0, 0]


async def test_keys_are_replaced_while_it_runs(key_file: Path) -> None:
    async with three(key_file) as gateway:
        assert (await sent(gateway, forcing("endpoint-2", key=OTHER))).status_code == 403
        await asyncio.to_thread(key_file.write_text, f"{KEY}\n{OTHER}\n")
        keys = gateway.app._force_keys
        assert keys is not None
        await asyncio.to_thread(keys.read_again)
        for key in (KEY, OTHER):
            response = await sent(gateway, forcing("endpoint-2", key=key))
            assert response.headers["x-served-by"] == "endpoint-2"


@pytest.mark.parametrize(
    ("has_key", "ext_proc", "reason"),
    [
        pytest.param(False, ExtProcSettings(), "", id="no key file"),
        pytest.param(True, ExtProcSettings(compat="reference"), "--compat=reference", id="compat"),
        pytest.param(
            True,
            ExtProcSettings(ignored_client_headers=frozenset({FORCE_HEADER})),
            "--ignore-client-headers",
            id="ignored",
        ),
    ],
)
async def test_where_it_is_off_the_header_changes_nothing(
    key_file: Path, has_key: bool, ext_proc: ExtProcSettings, reason: str
) -> None:
    with capture_logs() as logs:
        async with three(key_file if has_key else None, ext_proc=ext_proc) as gateway:
            for headers in (forcing("endpoint-2"), {FORCE_HEADER: "nonsense"}):
                response = await sent(gateway, headers)
                assert response.status_code == 200
                assert response.headers["x-served-by"] != "endpoint-2"
    logged = [each for each in logs if "--force-endpoint-key-file" in each["event"]]
    assert [each["reason"].startswith(reason) for each in logged] == [True] * bool(reason)


async def test_it_does_not_wait_behind_others(key_file: Path) -> None:
    serve = {"force_endpoint_key_file": key_file}
    fleet = FleetConfig(endpoints=1)
    async with running(fleet=fleet, config=CONFIG, labels={}, serve=serve) as gateway:
        async with occupied(gateway):
            patient = ask(gateway)
            await waiting(gateway, 1)
            response = await sent(gateway, forcing("endpoint-0"))
            assert (response.status_code, gateway.app.pool.flow.waiting) == (200, 1)
        assert (await patient).status_code == 200
        await gateway.settled()


async def test_an_ejected_endpoint_serves_it(key_file: Path) -> None:
    outliers = OutlierSettings(base_ejection_seconds=600.0)
    async with three(key_file, outliers=outliers) as gateway:
        detector = gateway.app.pool.outliers
        assert detector is not None
        server = gateway.fleet.servers[0]
        server.faults.error_status = 500
        for _ in range(10):
            await sent(gateway, forcing("endpoint-0"))
        await until(lambda: "default/endpoint-0" in detector.doubted())
        server.faults.error_status = None
        response = await sent(gateway, forcing("endpoint-0"))
        assert (response.status_code, response.headers["x-served-by"]) == (200, "endpoint-0")
