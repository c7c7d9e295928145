"""Ignored client headers."""

import pytest

from epp.ext_proc.client_headers import CLIENT_HEADERS, headers_to_ignore, without
from epp.ext_proc.control_headers import CONTROL_HEADERS
from epp.ext_proc.settings import ExtProcSettings
from epp.parsing import request_parsing
from epp_plugins import session_affinity, slo_headers
from epp_plugins.data_producers import agent_identity, media
from epp_plugins.filters import header_based_testing
from epp_plugins.profile_handlers.header_profile import Params as HeaderProfileParams
from tools.harness.ext_proc import FULL_DUPLEX, POST, Envoy, changed_headers, on_one_wire
from tools.harness.request_control import Epp, Policies, make_pool

pytestmark = [on_one_wire, pytest.mark.usefixtures("wire")]

FAIRNESS, OBJECTIVE = "x-llm-d-inference-fairness-id", "x-llm-d-inference-objective"
SENT = {FAIRNESS: "alice", OBJECTIVE: "critical"}


@pytest.mark.parametrize(
    ("ignored", "flow", "priority"),
    [
        pytest.param("", "alice", 9, id="none"),
        pytest.param(FAIRNESS, "default-flow", 9, id="one"),
        pytest.param(f" {FAIRNESS.upper()},{OBJECTIVE}", "default-flow", 0, id="two"),
        pytest.param("all", "default-flow", 0, id="all"),
    ],
)
def test_ignored_headers_affect_no_decision_and_reach_no_model_server(
    ignored: str, flow: str, priority: int
) -> None:
    settings = ExtProcSettings(ignored_client_headers=headers_to_ignore(ignored))
    epp = Epp(make_pool(), policies=Policies(priorities={"critical": 9}))
    envoy = Envoy(epp, FULL_DUPLEX, settings=settings)
    envoy.request_headers({**POST, **SENT, "x-mine": "1"})
    (reply, *_) = envoy.request_body()
    labels = {"fairness_id": flow, "priority": str(priority)}
    models = {"model_name": "llama", "target_model_name": "llama"}
    assert epp.value("request_total", **labels, **models) == 1
    _, removed = changed_headers(reply.request_headers.response)
    assert removed == sorted(SENT)


def test_headers_without_one_of_them_are_not_copied() -> None:
    headers = {"x-mine": "1"}
    assert without(headers, CLIENT_HEADERS) is headers
    assert without({**headers, FAIRNESS: "a"}, CLIENT_HEADERS) == headers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("x-mine", "'x-mine'; it is one of all, epp-profile, ", id="another"),
        pytest.param("x-session-tokens", "did you mean x-session-token?", id="a misspelt one"),
        pytest.param(f"{FAIRNESS},all", "'all'; it is one of", id="all and another one"),
    ],
)
def test_an_unknown_header_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="does not read the header") as refused:
        headers_to_ignore(text)
    assert said in str(refused.value)


def test_every_header_that_is_read_is_listed() -> None:
    """The EPP sets the destination; the others come from Envoy or go between servers."""
    from_envoy = {"x-gateway-destination-endpoint-subset", "x-gateway-destination-endpoint-served"}
    to_servers = {
        "x-prefiller-host-port",
        "x-encoder-hosts-ports",
        "x-data-parallel-host-port",
        "x-kv-cache-source-host-port",
    }
    read = {
        session_affinity._RESPONSE_HEADER,
        session_affinity._SESSION_HEADER,
        *agent_identity._KNOWN,
        *slo_headers.TTFT_HEADERS,
        *slo_headers.TPOT_HEADERS,
        media.FPS_HEADER,
        media.SECONDS_HEADER,
        media.RESOLUTION_HEADER,
        header_based_testing.HEADER,
        HeaderProfileParams().header_name.lower(),
    }
    read |= {name for name in request_parsing._PATH_HEADERS if not name.startswith(":")}
    assert (CONTROL_HEADERS - from_envoy - to_servers) | read == CLIENT_HEADERS
