from collections.abc import Mapping
from typing import Any

import pytest
from stage_stubs import CountingMetrics, Stages, StubDecider, chosen, refer_to

from epp.request_control.plugins import PreRequest
from epp.scheduling import NoEndpointsError, ProfileLoopError, StageDecider
from epp.testing import check, make_plugin, make_state
from epp_plugins.deciders.prefix_based_pd import PrefixBasedPdDecider
from epp_plugins.profile_handlers.disagg_headers import DisaggHeadersHandler
from epp_plugins.profile_handlers.pd_profile import PdProfileHandler
from epp_plugins.state_keys import (
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    TOKENIZED_PROMPT,
    PrefixMatches,
    TokenizedPrompt,
)

PREFILLER, ENCODERS, RANK = (
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
)
BOTH = ("decode-a", "prefill-a")
PROFILES = ("decode", "prefill")
FORGED = {PREFILLER: "6.6.6.6:80", ENCODERS: "6.6.6.6:80", RANK: "6.6.6.6:80"}


def handler(
    parameters: Mapping[str, Any],
    *deciders: StageDecider,
    metrics: CountingMetrics | None = None,
) -> PdProfileHandler:
    services = {} if metrics is None else {"metrics": metrics}
    return make_plugin(
        PdProfileHandler, parameters, name="pd", refer=refer_to(*deciders), **services
    )


@pytest.mark.parametrize(
    ("decider", "pool", "runs", "counts"),
    [
        pytest.param(
            "yes",
            BOTH,
            ["decode", "prefill"],
            {("pd_decision_total", "prefill-decode", "llama"): 1},
            id="wanted",
        ),
        pytest.param(
            "no",
            BOTH,
            ["decode"],
            {("pd_decision_total", "decode-only", "llama"): 1},
            id="not wanted",
        ),
        pytest.param(
            "raises",
            BOTH,
            ["decode"],
            {
                ("pd_decision_total", "decode-only", "llama"): 1,
                ("disagg_degraded_total", "prefill", "decider-error"): 1,
            },
            id="the decider raises",
        ),
        pytest.param(
            "yes",
            ["decode-a"],
            ["decode", "prefill"],
            {
                ("pd_decision_total", "prefill-decode", "llama"): 1,
                ("disagg_degraded_total", "prefill", "no-endpoints"): 1,
            },
            id="prefill fails",
        ),
    ],
)
def test_the_stages_of_a_request(
    decider: str, pool: list[str], runs: list[str], counts: dict[tuple[str, ...], int]
) -> None:
    metrics = CountingMetrics()
    broken = StubDecider("raises", answer=ValueError("broken"))
    plugin = handler({"deciderPluginName": decider}, broken, metrics=metrics)
    outcome = Stages(plugin, PROFILES).send(pool)
    assert outcome.runs == [(profile, "") for profile in runs]
    assert outcome.result.primary == "decode"
    has_run = [name for name in pool if name.split("-")[0] in runs]
    assert chosen(outcome.result) == {name.split("-")[0]: [name] for name in has_run}
    assert (outcome.headers, outcome.result.destination) == ({}, "")
    assert outcome.state.read(PREFILL_PROFILE) == "prefill"
    assert metrics.counts == counts


@pytest.mark.parametrize("sent", [{}, FORGED], ids=["plain", "forged headers"])
@pytest.mark.parametrize("is_first", [True, False], ids=["handler first", "headers first"])
@pytest.mark.parametrize(
    ("has_headers_handler", "decider", "want"),
    [
        pytest.param(False, "yes", {}, id="alone it tells nobody"),
        pytest.param(True, "yes", {PREFILLER: "10.0.0.2:8000"}, id="with its header"),
        pytest.param(True, "no", {}, id="without a prefill"),
    ],
)
def test_headers(
    has_headers_handler: bool,
    decider: str,
    want: dict[str, str],
    is_first: bool,
    sent: dict[str, str],
) -> None:
    plugin = handler({"deciderPluginName": decider})
    headers: list[PreRequest] = [make_plugin(DisaggHeadersHandler)] if has_headers_handler else []
    # Listed after the handler, or before it: then the handler is told once more, after them.
    stages = Stages(plugin, PROFILES, headers if is_first else [*headers, plugin])
    stripped = {name: None for name in (PREFILLER, ENCODERS) if sent}
    assert stages.send(BOTH, sent).headers == stripped | want


def test_the_primary_port_is_sent_to_the_gateway_and_the_rank_to_the_server() -> None:
    plugin = handler({"deciderPluginName": "yes", "primaryPort": 9000})
    outcome = Stages(plugin, PROFILES).send(BOTH, FORGED)
    assert outcome.result.destination == "10.0.0.1:9000"
    assert outcome.result.endpoints[0].endpoint.address == "10.0.0.1:8000"
    assert outcome.headers == {PREFILLER: None, ENCODERS: None, RANK: "10.0.0.1:8000"}


@pytest.mark.parametrize(
    ("held", "runs"),
    [({}, ["decode", "prefill"]), ({"decode-a": 30}, ["decode"])],
    ids=["uncached", "cached"],
)
def test_the_prefix_decider_is_asked_by_default(held: dict[str, int], runs: list[str]) -> None:
    decider = make_plugin(
        PrefixBasedPdDecider, {"nonCachedTokens": 512}, name="prefix-based-pd-decider"
    )
    state = make_state(
        {
            TOKENIZED_PROMPT: TokenizedPrompt(b"", 600),
            PREFIX_MATCHES: PrefixMatches(held, 38, 16),
        }
    )
    outcome = Stages(handler({}, decider), PROFILES).send(BOTH, state=state)
    assert [profile for profile, _ in outcome.runs] == runs


def test_without_decode_the_request_fails_with_its_error() -> None:
    metrics = CountingMetrics()
    stages = Stages(handler({"deciderPluginName": "yes"}, metrics=metrics), PROFILES)
    with pytest.raises(NoEndpointsError, match="only-decode removed prefill-a"):
        stages.send(["prefill-a"])
    assert stages.runs == [("decode", "")]
    assert metrics.counts == {}


@pytest.mark.parametrize(
    ("profiles", "counts"),
    [
        pytest.param(["decode"], {}, id="decode alone: the decider is not asked"),
        pytest.param(
            ["decode", "pre"],
            {
                ("pd_decision_total", "decode-only", "llama"): 1,
                ("disagg_degraded_total", "prefill", "no-profile"): 1,
            },
            id="prefill has another name",
        ),
    ],
)
def test_without_a_prefill_profile_decode_is_all(
    profiles: list[str], counts: dict[tuple[str, ...], int]
) -> None:
    metrics = CountingMetrics()
    outcome = Stages(handler({"deciderPluginName": "yes"}, metrics=metrics), profiles).send(BOTH)
    assert outcome.runs == [("decode", "")]
    assert metrics.counts == counts


def test_a_missing_decode_profile_is_reported_by_name() -> None:
    stages = Stages(handler({"deciderPluginName": "yes"}), ["prefill"])
    want = r"'pd' \(pd-profile-handler\): decodeProfile is 'decode'; configured: 'prefill'"
    with pytest.raises(ProfileLoopError, match=want):
        stages.send(BOTH)


def test_a_missing_decode_profile_is_a_fault_of_the_configuration() -> None:
    plugin = handler({"deciderPluginName": "yes", "decodeProfile": "d"})
    assert list(plugin.profile_faults(["d", "prefill"])) == []
    assert list(plugin.profile_faults(["x"])) == [
        "decodeProfile is 'd'; configured: 'x'; name one of them, or add a profile 'd'"
    ]


def test_profiles_of_other_names_and_more_of_them() -> None:
    parameters = {"decodeProfile": "d", "prefillProfile": "p", "deciderPluginName": "yes"}
    outcome = Stages(handler(parameters), ["d", "p", "x"]).send(["d-1", "p-1", "x-1"])
    assert chosen(outcome.result) == {"d": ["d-1"], "p": ["p-1"]}


def test_parameters_that_are_not_used_are_taken() -> None:
    unused = {
        "prefixPluginType": "prefix-cache-scorer",
        "prefixPluginName": "prefix",
        "prefixMatchInfoProducerName": "precise",
    }
    assert handler({"deciderPluginName": "yes"} | unused).name == "pd"


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        pytest.param(
            {"deciderPluginName": ""},
            "deciderPluginName is empty; leave it out for prefix-based-pd-decider",
            id="no decider",
        ),
        pytest.param(
            {"prefillProfile": "decode"}, "are both 'decode': give each", id="one profile for both"
        ),
        pytest.param({"primaryPort": 65536}, r"<= 65535 - at `\$\.primaryPort`", id="no port"),
        pytest.param({"primaryPort": -1}, r">= 0 - at `\$\.primaryPort`", id="a negative port"),
    ],
)
def test_parameters_without_sense_are_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        handler(parameters)


def test_the_class_is_sound() -> None:
    check(PdProfileHandler)
