"""No plugin fails on any client headers or ids, so none is disabled."""

from collections.abc import Mapping
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from epp.config import GraphBuilder, PluginRegistry, load_text
from epp.observability import Metrics
from epp.request_control import Director, Pipeline, RequestError, RoutedRequest
from epp.request_control.plugins import EndCause
from epp.scheduling import Endpoint, NullObserver, Plugin
from epp.testing import make_endpoint
from epp_plugins import PLUGINS

CONFIG: Final = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: agent-identity}
- {type: session-id-producer, parameters: {cookieName: chat}}
- {type: header-profile-handler}
- {type: disagg-headers-handler}
- {type: header-based-testing-filter}
- {type: orca-load-metrics-reader}
- {type: header-label-affinity-scorer, parameters: {headerName: x-tier, labelKey: tier}}
- {type: session-affinity-filter, name: by-token}
- type: session-affinity-scorer
  name: by-id
  parameters:
    strategy: session_id
    sessionIdConfig:
      sources:
      - {header: x-session-id}
      - {attribute: SessionIDDataKey, producer: session-id-producer}
      - {attribute: agent-identity}
schedulingProfiles:
- name: tested
  plugins: [{pluginRef: header-based-testing-filter}]
- name: decode
  plugins: [{pluginRef: by-token}, {pluginRef: by-id}, {pluginRef: header-label-affinity-scorer}]
"""
HEADERS: Final = (
    "cookie",
    "endpoint-load-metrics-format",
    "epp-profile",
    "session-id",
    "session_id",
    "test-epp-endpoint-selection",
    "x-claude-code-session-id",
    "x-encoder-hosts-ports",
    "x-prefiller-host-port",
    "x-session-affinity",
    "x-session-id",
    "x-session-token",
    "x-tier",
)
ENDPOINTS: Final = tuple(
    make_endpoint(f"ns/pod-{number}", address=f"[fd00::{number}]:8000", labels={"tier": "gold"})
    for number in range(3)
)
# As ext_proc hands them on: decoded as UTF-8, so without halves of surrogate pairs.
VALUES: Final = (
    st.text(st.characters(codec="utf-8"), max_size=40)
    | st.text("=;, []:.-+%/\\\"'\t\x00\x7f\u00a0\ufffd", max_size=20)
    | st.sampled_from(["", " ", ",", ":", "]:", "tested", "chat=", "chat=a; chat=b", "=", "/w=="])
    | st.integers(255, 70_000).map("x".__mul__)
)


class Faults(NullObserver):
    """Takes note of the plugins that fail."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        self.seen.append(f"{plugin.name} at {extension_point}: {error!r}")


FAULTS: Final = Faults()


def director() -> Director:
    graph = GraphBuilder(
        PluginRegistry(PLUGINS), services={"clock": lambda _: lambda: 100.0}, observer=FAULTS
    ).build(load_text(CONFIG, "test"))

    def find_address(address: str) -> Endpoint | None:
        return next((each for each in ENDPOINTS if each.address == address), None)

    return Director(
        pool=lambda: ENDPOINTS,
        find_address=find_address,
        pipeline=Pipeline.of(graph.plugins.values(), graph.scheduler, graph.guards),
        metrics=Metrics(),
        clock=lambda: 100.0,
    )


DIRECTOR: Final = director()


def response_to(headers: Mapping[str, str]) -> int:
    """Send a request, to its end, and return the status that the client sees."""
    try:
        exchange = DIRECTOR.handle(
            request_id="r",
            headers={":path": "/v1/completions", **headers},
            body=b'{"model": "llama", "prompt": "hello"}',
            received_at=100.0,
        )
    except RequestError as error:
        return error.status
    assert isinstance(exchange, RoutedRequest)
    assert exchange.response_started(200, {})["x-session-token"]
    exchange.close(EndCause.COMPLETED)
    return 200


@given(headers=st.dictionaries(st.sampled_from(HEADERS), VALUES))
@example({"epp-profile": "tested", "test-epp-endpoint-selection": "[fd00::1]:8000,,"})
@example({"x-session-token": "bnMvcG9kLTE="})
@example({"x-session-id": "s", "cookie": "chat=s", "session-id": "s"})
def test_no_plugin_fails_by_what_a_client_sends(headers: Mapping[str, str]) -> None:
    FAULTS.seen.clear()
    status = response_to(headers)
    # A mistake of its own that it is told of: an unknown profile, no endpoint under that address.
    assert status == 200 or (status in (400, 429) and "epp-profile" in headers)
    assert FAULTS.seen == []
