"""The doctor and the real Envoy: bootstraps of `epp envoy-config`, and a running admin endpoint."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import httpx
import pytest
import yaml

from epp.doctor import Diagnosis, Gateway, Level, UnreadableError, examine_envoy, read_admin
from epp.doctor.names import (
    DESTINATION,
    NAMESPACE,
    POLICY_HEADERS,
    STAGE_HEADERS,
    SUBSET_NAMESPACE,
)
from epp.ext_proc.control_headers import CONTROL_HEADERS
from epp.lab.envoy import (
    CheckedHosts,
    ClientHeaders,
    Destination,
    EnvoyConfigError,
    EnvoyProcess,
    GatewayConfig,
    HeaderRules,
    Mode,
    client_headers,
    names,
    validate,
)
from epp.lab.envoy.bootstrap import render_yaml

from .envoys import PICKER, Envoy, level_of, make_envoy, report, rows_of

ENDPOINTS = ("127.0.0.1:9",)


def to_mend(found: Diagnosis) -> list[tuple[str, str]]:
    return [
        (row.finding.level.value, row.check)
        for row in found.rows
        if row.finding.level is not Level.OK
    ]


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plaintext"])
@pytest.mark.parametrize("destination", Destination)
@pytest.mark.parametrize("mode", Mode)
def test_there_is_nothing_to_mend_in_what_envoy_config_writes(
    mode: Mode, destination: Destination, tls: bool
) -> None:
    config = GatewayConfig(mode=mode, destination=destination, endpoints=ENDPOINTS, epp_tls=tls)
    assert to_mend(report(yaml.safe_load(render_yaml(config)))) == []


def test_there_is_nothing_to_mend_in_what_it_writes_for_failing_open() -> None:
    config = GatewayConfig(mode=Mode.ADAPTIVE, endpoints=ENDPOINTS, fail_open=True)
    found = to_mend(report(yaml.safe_load(render_yaml(config))))
    assert [each for each in found if each[0] == "error"] == []


@pytest.mark.parametrize("fail_open", [False, True], ids=["fail-closed", "fail-open"])
def test_there_is_nothing_to_mend_in_the_health_checks_that_it_writes(*, fail_open: bool) -> None:
    config = GatewayConfig(
        mode=Mode.ADAPTIVE,
        endpoints=ENDPOINTS,
        epp_host="epp.example.org",
        fail_open=fail_open,
        health_checks=frozenset(CheckedHosts),
    )
    found = to_mend(report(yaml.safe_load(render_yaml(config))))
    assert [check for _, check in found if check.startswith("epp-health")] == []


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        pytest.param(HeaderRules(), 7, id="kept"),
        pytest.param(HeaderRules(client_headers=ClientHeaders.STRIP), 0, id="stripped"),
        pytest.param(
            HeaderRules(to_set=(client_headers.header_to_set("x-llm-d-inference-objective=chat"),)),
            5,
            id="one is set",
        ),
    ],
)
def test_the_doctor_tells_what_policy_clients_set(rules: HeaderRules, left: int) -> None:
    config = GatewayConfig(endpoints=ENDPOINTS, headers=rules)
    (row,) = rows_of(report(yaml.safe_load(render_yaml(config))), "client-policy")
    assert row.finding.level is Level.OK
    assert sum(f" {name}" in row.finding.found for name in POLICY_HEADERS) == left


def test_the_names_are_those_of_the_endpoint_picker() -> None:
    assert (DESTINATION, NAMESPACE) == (names.DESTINATION_HEADER, names.DESTINATION_NAMESPACE)
    assert names.SUBSET_NAMESPACE == SUBSET_NAMESPACE
    assert set(STAGE_HEADERS) < CONTROL_HEADERS
    assert set(POLICY_HEADERS) < CONTROL_HEADERS
    assert set(POLICY_HEADERS) < set(client_headers.CLIENT_HEADERS)


@pytest.mark.integration
def test_envoy_takes_the_gateway_without_a_trap() -> None:
    envoy = make_envoy()
    validate(json.dumps(envoy.document))
    envoy.buffered()
    envoy.original_dst()
    validate(json.dumps(envoy.document))


def skip_request_trailers(envoy: Envoy) -> None:
    envoy.mode["request_trailer_mode"] = "SKIP"


def skip_response_trailers(envoy: Envoy) -> None:
    envoy.mode.update(response_body_mode="FULL_DUPLEX_STREAMED", response_trailer_mode="SKIP")


def no_fallback(envoy: Envoy) -> None:
    del envoy.policy["fallback_policy"]


def router_first(envoy: Envoy) -> None:
    envoy.filters.reverse()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("trap", "check"),
    [
        (skip_request_trailers, "request-trailers"),
        (skip_response_trailers, "response-trailers"),
        (no_fallback, "override-host-fallback"),
        (router_first, "picker-order"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_envoy_refuses_what_the_doctor_says_it_refuses(
    trap: Callable[[Envoy], None], check: str
) -> None:
    envoy = make_envoy()
    trap(envoy)
    (row,) = rows_of(envoy.report(), check)
    assert row.finding.level is Level.ERROR
    assert "Envoy refuses this" in row.finding.why
    with pytest.raises(EnvoyConfigError):
        validate(json.dumps(envoy.document))


def make_trapped() -> Envoy:
    """Several traps that Envoy takes: what one gets by leaving out what is not asked for."""
    envoy = make_envoy()
    envoy.buffered()
    del envoy.route["request_body_buffer_limit"]
    del envoy.action["timeout"]
    del envoy.picker["message_timeout"], envoy.picker["max_message_timeout"]
    del envoy.picker["metadata_options"]
    del envoy.epp["circuit_breakers"], envoy.pool["circuit_breakers"]
    del envoy.epp["transport_socket"]
    del envoy.manager["request_timeout"], envoy.document["overload_manager"]
    envoy.manager["early_header_mutation_extensions"] = []
    envoy.picker["failure_mode_allow"] = True
    return envoy


@pytest.mark.integration
async def test_the_admin_endpoint_tells_of_every_trap() -> None:
    envoy = make_trapped()
    async with EnvoyProcess(json.dumps(envoy.document)) as running:
        host, port = await running.listener_address("gateway")
        async with httpx.AsyncClient(trust_env=False) as client:
            # Nobody listens as the EPP or as a model server: 503, and Envoy counts it.
            response = await client.post(f"http://{host}:{port}/v1/completions", content=b"{}")
        assert response.status_code == 503
        source = await asyncio.to_thread(read_admin, running.admin_url)
    assert source.version is not None
    assert source.version[:2] == (1, 40)
    assert to_mend(examine_envoy(Gateway(source))) == [
        ("error", "buffer-limit"),
        ("error", "message-timeout"),
        ("error", "route-timeout"),
        ("error", "circuit-breakers"),  # of the EPP's cluster
        ("error", "circuit-breakers"),  # of the model servers'
        ("error", "client-headers"),
        ("warning", "circuit-breakers"),  # max_retries
        ("warning", "receiving-namespaces"),
        ("warning", "forwarding-namespaces"),
        ("warning", "client-headers"),  # the stages'
        ("warning", "slow-requests"),
        ("warning", "connection-limit"),
        ("warning", "ext-proc-counters"),  # failure_mode_allowed
        ("warning", "ext-proc-counters"),  # streams_failed
        ("warning", "counters"),  # the EPP's cluster: connections refused
        ("warning", "counters"),  # the model servers'
    ]


@pytest.mark.integration
async def test_what_was_mended_is_sound_by_the_admin_endpoint_too() -> None:
    config = GatewayConfig(endpoints=ENDPOINTS, listen_port=0, epp_tls=True)
    async with EnvoyProcess(render_yaml(config)) as running:
        found = examine_envoy(Gateway(await asyncio.to_thread(read_admin, f"{running.admin_url}/")))
    assert to_mend(found) == []
    assert found.not_checked == ()


@pytest.mark.integration
async def test_the_place_in_a_running_envoy_is_that_in_the_bootstrap() -> None:
    envoy = make_envoy()
    envoy.picker["observability_mode"] = True
    async with EnvoyProcess(json.dumps(envoy.document)) as running:
        found = examine_envoy(Gateway(await asyncio.to_thread(read_admin, running.admin_url)))
    (row,) = rows_of(found, "observability-mode")
    assert row.finding.where == f"{PICKER}.observability_mode"


async def _page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"{}")  # whole: closing with bytes unread would reset the connection
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecret")
    await writer.drain()
    writer.close()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("keep", "remove", "status", "level"),
    [
        pytest.param(True, False, 200, "error", id="kept: an open proxy"),
        pytest.param(False, False, 503, "warning", id="removed at once: nobody names an endpoint"),
        pytest.param(True, True, 503, "warning", id="removed by the route: after ext_proc"),
    ],
)
async def test_failing_open_with_original_dst_is_what_the_doctor_says(
    keep: bool, remove: bool, status: int, level: str
) -> None:
    envoy = make_envoy()
    envoy.buffered()
    envoy.original_dst()
    envoy.picker["failure_mode_allow"] = True
    if keep:
        envoy.keep(DESTINATION)
    if remove:
        envoy.route["request_headers_to_remove"] = [DESTINATION]
    found = envoy.report()
    assert level_of(found, "fail-open") == level
    assert level_of(found, "destination-removed") == ("error" if remove else "ok")
    server = await asyncio.start_server(_page, "127.0.0.1", 0)
    inside = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    async with (
        server,
        EnvoyProcess(json.dumps(envoy.document)) as running,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        host, port = await running.listener_address("gateway")
        response = await client.post(
            f"http://{host}:{port}/", content=b"{}", headers={DESTINATION: inside}
        )
    assert response.status_code == status
    assert (response.text == "secret") is (status == 200)


class _Pages(BaseHTTPRequestHandler):
    """Answers each path with what the test says; 404 for others."""

    pages: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        page = self.pages.get(self.path)
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write(page or b"secret page")

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(**pages: bytes) -> Iterator[str]:
    """An admin endpoint that is none of Envoy's; yields its address."""
    kind = type("Pages", (_Pages,), {"pages": {f"/{name}": page for name, page in pages.items()}})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_what_is_no_admin_endpoint_is_refused() -> None:
    with serving() as address, pytest.raises(UnreadableError, match="answered 404") as caught:
        read_admin(f"http://me:hunter2@{address}")
    assert "hunter2" not in str(caught.value)
    assert "secret page" not in str(caught.value)
    dump = {"config_dump?include_eds": b"hello"}
    with serving(**dump) as address, pytest.raises(UnreadableError, match="neither a bootstrap"):
        read_admin(f"http://{address}")
    with pytest.raises(UnreadableError, match="refused"):
        read_admin(f"http://{address}")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:9901", "ftp://x", "http://", "http://[::1", "http://me:hunter2", ""]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UnreadableError, match=r"--admin.*http://127\.0\.0\.1:9901") as caught:
        read_admin(url)
    assert "hunter2" not in str(caught.value)
