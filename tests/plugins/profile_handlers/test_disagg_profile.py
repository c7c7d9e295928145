from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_watch import Logs
from stage_stubs import CountingMetrics, Stages, StubDecider, chosen, refer_to

from epp.building import make_builder
from epp.config import ConfigError, GraphBuilder, PluginRegistry, load_text
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET
from epp.scheduling import (
    CycleState,
    DroppedError,
    Endpoint,
    LLMRequest,
    NoEndpointsError,
    ProfileLoopError,
    ProfileResult,
    Scheduler,
    SchedulingError,
    Scorer,
    StageDecider,
)
from epp.testing import (
    check,
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    make_scored,
    make_state,
)
from epp_plugins import PLUGINS
from epp_plugins.deciders.prefix_based_pd import PrefixBasedPdDecider
from epp_plugins.filters.decode import DecodeFilter
from epp_plugins.filters.prefill import PrefillFilter
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.profile_handlers.disagg_profile import DisaggProfileHandler
from epp_plugins.state_keys import (
    PEER_ENDPOINT,
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    TOKENIZED_PROMPT,
    TOPOLOGY,
    PrefixMatches,
    TokenizedPrompt,
    Topology,
    topology_of,
)

PREFILLER, ENCODERS = "x-prefiller-host-port", "x-encoder-hosts-ports"
FORGED = {PREFILLER: "6.6.6.6:80", ENCODERS: "6.6.6.6:80", "x-other": "kept"}
WHOLE_POOL = ("decode-a", "encode-a", "encode-b", "prefill-a")
PREFILL_FIRST = {"stageOrder": "prefill-first"}


def handler(
    parameters: Mapping[str, Any],
    *deciders: StageDecider,
    metrics: CountingMetrics | None = None,
) -> DisaggProfileHandler:
    services = {} if metrics is None else {"metrics": metrics}
    return make_plugin(
        DisaggProfileHandler, parameters, name="disagg", refer=refer_to(*deciders), **services
    )


def both(prefill: str = "", encode: str = "") -> dict[str, Any]:
    return {"deciders": {"prefill": prefill, "encode": encode}}


@dataclass(frozen=True)
class Want:
    """What is to become of a request."""

    runs: list[tuple[str, str]]
    """Profiles in the order in which they run, each with the peer published before it."""
    headers: dict[str, str]
    decision: str
    degraded: dict[tuple[str, str], int] = field(default_factory=dict)
    """How often by stage and reason."""


@pytest.mark.parametrize(
    ("parameters", "pool", "want"),
    [
        pytest.param(
            {},
            WHOLE_POOL,
            Want([("decode", "")], {}, "decode-only"),
            id="decode-first: no decider",
        ),
        pytest.param(
            both("no", "no"),
            WHOLE_POOL,
            Want([("decode", "")], {}, "decode-only"),
            id="both say no",
        ),
        pytest.param(
            both("yes"),
            WHOLE_POOL,
            Want(
                [("decode", ""), ("prefill", "decode-a")],
                {PREFILLER: "10.0.0.4:8000"},
                "prefill-decode",
            ),
            id="decode-first: prefill",
        ),
        pytest.param(
            both("no", "yes"),
            WHOLE_POOL,
            Want(
                [("decode", ""), ("encode", "")],
                {ENCODERS: "10.0.0.2:8000,10.0.0.3:8000"},
                "encode-decode",
            ),
            id="decode-first: encode, with all that were picked",
        ),
        pytest.param(
            both("yes", "yes"),
            WHOLE_POOL,
            Want(
                [("decode", ""), ("encode", ""), ("prefill", "decode-a")],
                {PREFILLER: "10.0.0.4:8000", ENCODERS: "10.0.0.2:8000,10.0.0.3:8000"},
                "encode-prefill-decode",
            ),
            id="decode-first: encode and prefill",
        ),
        pytest.param(
            both("yes"),
            ["decode-a", "prefill-a", "prefill-b"],
            Want(
                [("decode", ""), ("prefill", "decode-a")],
                {PREFILLER: "10.0.0.2:8000"},
                "prefill-decode",
            ),
            id="of several prefill endpoints the best",
        ),
        pytest.param(
            both("yes", "yes"),
            ["decode-a", "encode-a"],
            Want(
                [("decode", ""), ("encode", ""), ("prefill", "decode-a")],
                {ENCODERS: "10.0.0.2:8000"},
                "encode-decode",
                {("prefill", "no-endpoints"): 1},
            ),
            id="decode-first: prefill fails",
        ),
        pytest.param(
            both("yes", "yes"),
            ["decode-a", "prefill-a"],
            Want(
                [("decode", ""), ("encode", ""), ("prefill", "decode-a")],
                {PREFILLER: "10.0.0.2:8000"},
                "prefill-decode",
                {("encode", "no-endpoints"): 1},
            ),
            id="decode-first: encode fails",
        ),
        pytest.param(
            both("yes", "yes"),
            ["decode-a"],
            Want(
                [("decode", ""), ("encode", ""), ("prefill", "decode-a")],
                {},
                "decode-only",
                {("encode", "no-endpoints"): 1, ("prefill", "no-endpoints"): 1},
            ),
            id="decode-first: both fail",
        ),
        pytest.param(
            both("raises", "yes"),
            WHOLE_POOL,
            Want(
                [("decode", ""), ("encode", "")],
                {ENCODERS: "10.0.0.2:8000,10.0.0.3:8000"},
                "encode-decode",
                {("prefill", "decider-error"): 1},
            ),
            id="decode-first: the prefill decider raises",
        ),
        pytest.param(
            PREFILL_FIRST,
            WHOLE_POOL,
            Want(
                [("prefill", ""), ("decode", "prefill-a")],
                {PREFILLER: "10.0.0.4:8000"},
                "prefill-decode",
            ),
            id="prefill-first: always prefill",
        ),
        pytest.param(
            PREFILL_FIRST | both(encode="no"),
            WHOLE_POOL,
            Want(
                [("prefill", ""), ("decode", "prefill-a")],
                {PREFILLER: "10.0.0.4:8000"},
                "prefill-decode",
            ),
            id="prefill-first: encode says no",
        ),
        pytest.param(
            PREFILL_FIRST | both(encode="yes"),
            WHOLE_POOL,
            Want(
                [("prefill", ""), ("encode", ""), ("decode", "prefill-a")],
                {PREFILLER: "10.0.0.4:8000", ENCODERS: "10.0.0.2:8000,10.0.0.3:8000"},
                "encode-prefill-decode",
            ),
            id="prefill-first: encode before decode",
        ),
        pytest.param(
            PREFILL_FIRST | both(encode="yes"),
            ["decode-a", "encode-a"],
            Want(
                [("prefill", ""), ("encode", ""), ("decode", "")],
                {ENCODERS: "10.0.0.2:8000"},
                "encode-decode",
                {("prefill", "no-endpoints"): 1},
            ),
            id="prefill-first: prefill fails, nothing is published",
        ),
        pytest.param(
            PREFILL_FIRST | both(encode="yes"),
            ["decode-a", "prefill-a"],
            Want(
                [("prefill", ""), ("encode", ""), ("decode", "prefill-a")],
                {PREFILLER: "10.0.0.2:8000"},
                "prefill-decode",
                {("encode", "no-endpoints"): 1},
            ),
            id="prefill-first: encode fails",
        ),
        pytest.param(
            PREFILL_FIRST | both(encode="raises"),
            WHOLE_POOL,
            Want(
                [("prefill", ""), ("decode", "prefill-a")],
                {PREFILLER: "10.0.0.4:8000"},
                "prefill-decode",
                {("encode", "decider-error"): 1},
            ),
            id="prefill-first: the encode decider raises",
        ),
    ],
)
@pytest.mark.parametrize("sent", [{}, FORGED], ids=["plain", "forged headers"])
def test_the_stages_of_a_request(
    parameters: dict[str, Any], pool: Sequence[str], want: Want, sent: dict[str, str]
) -> None:
    metrics = CountingMetrics()
    broken = StubDecider("raises", answer=OSError("no route"))
    stages = Stages(handler(parameters, broken, metrics=metrics))
    outcome = stages.send(pool, sent, target_model="llama")
    assert outcome.runs == want.runs
    assert outcome.result.primary == "decode"
    is_sent = {"prefill": PREFILLER in want.headers, "encode": ENCODERS in want.headers}
    assert set(chosen(outcome.result)) == {"decode"} | {name for name in is_sent if is_sent[name]}
    stripped = {name: None for name in (PREFILLER, ENCODERS) if sent}
    assert outcome.headers == stripped | want.headers
    assert metrics.counts == {
        ("disagg_decision_total", want.decision, "llama"): 1,
        **{("disagg_degraded_total", *labels): n for labels, n in want.degraded.items()},
    }


@pytest.mark.parametrize(
    ("parameters", "runs"),
    [
        pytest.param(both("yes", "yes"), ["decode"], id="decode-first: at once"),
        pytest.param(
            PREFILL_FIRST | both(encode="yes"), ["prefill", "encode", "decode"], id="prefill-first"
        ),
    ],
)
def test_without_decode_the_request_fails_with_its_error(
    parameters: dict[str, Any], runs: list[str]
) -> None:
    metrics = CountingMetrics()
    stages = Stages(handler(parameters, metrics=metrics))
    with pytest.raises(NoEndpointsError, match=r"'decode'.*only-decode removed prefill-a"):
        stages.send(["prefill-a", "encode-a"])
    assert [profile for profile, _ in stages.runs] == runs
    assert metrics.counts == {}


def test_deciders_are_asked_once_about_the_decode_endpoint() -> None:
    prefill, encode = StubDecider("p", answer=True), StubDecider("e", answer=True)
    Stages(handler(both("p", "e"), prefill, encode)).send(WHOLE_POOL)
    assert (prefill.asked, encode.asked) == (["decode-a"], ["decode-a"])


def test_with_prefill_first_the_encode_decider_knows_no_endpoint() -> None:
    encode = StubDecider("e", answer=False)
    Stages(handler(PREFILL_FIRST | both(encode="e"), encode)).send(WHOLE_POOL)
    assert encode.asked == [None]


@pytest.mark.parametrize(
    ("profiles", "parameters", "runs", "degraded"),
    [
        pytest.param(["decode"], {}, ["decode"], 0, id="decode alone"),
        pytest.param(["decode"], both("no"), ["decode"], 0, id="a prefill that is not wanted"),
        pytest.param(["decode"], both("yes"), ["decode"], 1, id="a prefill that is wanted"),
        pytest.param(["decode"], PREFILL_FIRST, ["decode"], 0, id="prefill-first"),
        pytest.param(
            ["decode", "encode"],
            PREFILL_FIRST | both(encode="yes"),
            ["encode", "decode"],
            0,
            id="prefill-first with encode",
        ),
    ],
)
def test_a_stage_without_a_profile_does_not_run(
    profiles: list[str], parameters: dict[str, Any], runs: list[str], degraded: int
) -> None:
    metrics = CountingMetrics()
    outcome = Stages(handler(parameters, metrics=metrics), profiles).send(WHOLE_POOL)
    assert [profile for profile, _ in outcome.runs] == runs
    assert metrics.counts["disagg_degraded_total", "prefill", "no-profile"] == degraded


@pytest.mark.parametrize("parameters", [{}, PREFILL_FIRST], ids=["decode-first", "prefill-first"])
def test_a_missing_decode_profile_is_reported_by_name(parameters: dict[str, Any]) -> None:
    stages = Stages(handler(parameters), ["prefill", "default"])
    want = r"'disagg' \(disagg-profile-handler\): profiles.decode is 'decode'; configured: 'def"
    with pytest.raises(ProfileLoopError, match=want):
        stages.send(WHOLE_POOL)
    assert stages.runs == []


NESTED = {
    "profiles": {"decode": "d", "prefill": "p", "encode": "e"},
    "deciders": {"prefill": "yes", "encode": "yes"},
}
FLAT = {
    "decodeProfile": "d",
    "prefillProfile": "p",
    "encodeProfile": "e",
    "prefillDeciderPluginName": "yes",
    "encodeDeciderPluginName": "yes",
}


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param(NESTED, id="nested"),
        pytest.param(FLAT, id="flat"),
        pytest.param(FLAT | {"deciderPluginName": "no"}, id="flat, with an alias that is not used"),
        pytest.param(
            FLAT | {"deciderPluginName": "yes", "prefillDeciderPluginName": ""},
            id="flat, by the alias",
        ),
        pytest.param(FLAT | {"stageOrder": "decode-first"}, id="flat, with the stage order"),
    ],
)
def test_profiles_of_other_names(parameters: dict[str, Any]) -> None:
    outcome = Stages(handler(parameters), "dep").send(["d-1", "e-1", "p-1"])
    assert outcome.runs == [("d", ""), ("e", ""), ("p", "d-1")]
    assert chosen(outcome.result) == {"d": ["d-1"], "p": ["p-1"], "e": ["e-1"]}
    assert outcome.headers == {ENCODERS: "10.0.0.2:8000", PREFILLER: "10.0.0.3:8000"}
    assert outcome.state.read(PREFILL_PROFILE) == "p"


@pytest.mark.parametrize(
    ("spelling", "first"),
    [
        ("decode-first", "decode"),
        ("Decode_First", "decode"),
        ("decode", "decode"),
        ("", "decode"),
        ("prefill-first", "prefill"),
        ("PREFILLFIRST", "prefill"),
        ("prefill", "prefill"),
    ],
)
def test_spellings_of_the_stage_order(spelling: str, first: str) -> None:
    outcome = Stages(handler({"stageOrder": spelling})).send(WHOLE_POOL)
    assert outcome.runs[0] == (first, "")


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        pytest.param(
            NESTED | {"decodeProfile": "d", "deciderPluginName": "x"},
            "do not go with the deprecated decodeProfile, deciderPluginName: write all of them",
            id="nested and flat",
        ),
        pytest.param(
            {"deciders": {}, "encodeDeciderPluginName": "x"},
            "deprecated encodeDeciderPluginName",
            id="nested deciders and a flat one",
        ),
        pytest.param(
            PREFILL_FIRST | both("pd"),
            "has no effect: remove prefill decider 'pd', or use stageOrder decode-first",
            id="a prefill decider with prefill-first",
        ),
        pytest.param(
            PREFILL_FIRST | {"deciderPluginName": "pd"},
            "remove prefill decider 'pd'",
            id="a flat prefill decider with prefill-first",
        ),
        pytest.param(
            {"stageOrder": "encode-first"},
            "stageOrder is 'encode-first'; write decode-first or prefill-first",
            id="another order",
        ),
        pytest.param(
            {"profiles": {"prefill": "decode"}},
            "'decode', 'decode' and 'encode': each stage needs a profile of its own",
            id="one profile for two stages",
        ),
        pytest.param(
            {"joint": "topology"},
            "none ever runs: set deciders.prefill, or stageOrder prefill-first",
            id="pairs without prefill",
        ),
        pytest.param({"joint": "rack"}, "Invalid enum value 'rack'", id="another kind of pair"),
        pytest.param(
            {"profiles": {"decoder": "d"}}, r"unknown field `decoder`.*\$\.profiles", id="misspelt"
        ),
    ],
)
def test_parameters_without_sense_are_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        handler(parameters)


def test_an_earlier_attempt_leaves_no_peer_behind() -> None:
    stages = Stages(handler(PREFILL_FIRST))
    state = make_state()
    with pytest.raises(NoEndpointsError):
        stages.send(["prefill-a"], state=state)
    assert stages.send(["prefill-b", "decode-a"], state=state).runs == [
        ("prefill", ""),
        ("decode", "prefill-b"),
    ]


def test_every_decider_that_raises_is_reported_once(logs: Logs) -> None:
    broken = [StubDecider(name, answer=OSError("no route")) for name in ("raises", "falls")]
    stages = Stages(handler(both("raises", "falls"), *broken))
    stages.send(WHOLE_POOL)
    stages.send(WHOLE_POOL)
    lines = [each for each in logs.entries if each["event"] == "stage decider failed"]
    assert [(line["plugin"], line["profile_handler"]) for line in lines] == [
        ("falls", "disagg"),
        ("raises", "disagg"),
    ]


def test_a_request_without_a_model_counts_as_unknown() -> None:
    metrics = CountingMetrics()
    Stages(handler({}, metrics=metrics)).send(["decode-a"], target_model="")
    assert metrics.counts == {("disagg_decision_total", "decode-only", "unknown"): 1}
    assert metrics.labels == {
        "disagg_decision_total": ("decision_type", "model_name"),
        "disagg_degraded_total": ("stage", "reason"),
    }


@pytest.mark.parametrize(
    ("held", "want"),
    [
        # 600 - 0 >= 512
        pytest.param({}, {PREFILLER: "10.0.0.2:8000"}, id="an uncached prompt"),
        # 600 - 30 * 16 = 120 < 512
        pytest.param({"decode-a": 30}, {}, id="a cached one"),
        pytest.param(
            {"prefill-a": 30}, {PREFILLER: "10.0.0.2:8000"}, id="one that is cached elsewhere"
        ),
    ],
)
def test_published_the_prefix_decider(held: dict[str, int], want: dict[str, str]) -> None:
    decider = make_plugin(PrefixBasedPdDecider, {"nonCachedTokens": 512}, name="pd")
    state = make_state(
        {
            TOKENIZED_PROMPT: TokenizedPrompt(b"", 600),
            PREFIX_MATCHES: PrefixMatches(held, 38, 16),
        }
    )
    outcome = Stages(handler(both("pd"), decider)).send(["decode-a", "prefill-a"], FORGED, state)
    assert outcome.headers == {PREFILLER: None, ENCODERS: None} | want


class TableScorer(Scorer):
    """Scores endpoints by their names."""

    type: ClassVar[str] = "table-scorer"

    def __init__(self, scores: Mapping[str, float]) -> None:
        self.name = "table"
        self._scores = scores

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        return [self._scores[each.name] for each in endpoints]


@pytest.mark.parametrize(
    ("joint", "second", "want"),
    [
        # Alone the best prefill wins: 1 > 0.97.
        pytest.param({}, 0.97, ("10.0.0.1:8000", "10.0.0.3:8000"), id="off"),
        # In zone a 1 + 1 + 0, in zone b 1 + 0.97 + 0.05.
        pytest.param(
            {"joint": "topology"}, 0.97, ("10.0.0.2:8000", "10.0.0.3:8000"), id="the pair in b"
        ),
        # In zone a 1 + 1 + 0, in zone b 1 + 0.94 + 0.05.
        pytest.param(
            {"joint": "topology"}, 0.94, ("10.0.0.1:8000", "10.0.0.3:8000"), id="too much to give"
        ),
    ],
)
@pytest.mark.parametrize("order", [both("yes"), PREFILL_FIRST], ids=["decode", "prefill"])
def test_the_best_prefill_is_in_a_and_the_second_best_and_decode_are_in_b(
    joint: dict[str, str], second: float, want: tuple[str, str], order: dict[str, Any]
) -> None:
    plugin = handler(order | joint)
    pool = [
        make_endpoint(
            name,
            address=f"10.0.0.{place}:8000",
            labels={"llm-d.ai/role": role},
            attributes={TOPOLOGY: Topology(host=name, zone=zone)},
        )
        for place, (name, role, zone) in enumerate(
            [("best", "prefill", "a"), ("second", "prefill", "b"), ("decode", "decode", "b")], 1
        )
    ]
    scorer = TableScorer({"best": 1.0, "second": second, "decode": 0.5})
    picker = make_plugin(MaxScorePicker)
    profiles = {
        "prefill": make_profile(
            name="prefill", filters=[make_plugin(PrefillFilter)], scorers=[scorer], picker=picker
        ),
        "decode": make_profile(
            name="decode", filters=[make_plugin(DecodeFilter)], scorers=[scorer], picker=picker
        ),
    }
    state, request = make_state(), make_request()
    result = Scheduler(plugin, profiles).schedule(request, pool, state)
    plugin.pre_request(request, result, state)
    prefill, decode = want
    assert result.endpoints[0].endpoint.address == decode
    assert state.read(REQUEST_HEADERS_TO_SET) == {PREFILLER: prefill}
    assert plugin.reads == ((TOPOLOGY,) if joint else ())


@pytest.mark.parametrize(
    ("decider", "pool"),
    [
        pytest.param("no", WHOLE_POOL, id="nobody wants a prefill"),
        pytest.param("yes", ["decode-a"], id="the prefill failed"),
    ],
)
def test_without_a_prefill_there_is_no_pair_to_choose(decider: str, pool: Sequence[str]) -> None:
    outcome = Stages(handler(both(decider) | {"joint": "topology"})).send(pool)
    assert chosen(outcome.result) == {"decode": ["decode-a"]}


def test_pairs_may_go_by_another_extractor() -> None:
    plugin = handler(both("yes") | {"joint": "topology", "topologyProducerName": "racks"})
    assert plugin.reads == (topology_of("racks"),)


def test_the_class_is_sound() -> None:
    check(DisaggProfileHandler)


HEAD = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
"""
PROFILES = """
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}]}
"""


def build(plugins: str) -> set[str]:
    """Return the names of the plugins of a configuration that has these too."""
    config = load_text(HEAD + plugins + PROFILES, "epp.yaml")
    return set(GraphBuilder(PluginRegistry(PLUGINS)).build(config).plugins)


def test_an_always_decider_makes_no_prefix_producer() -> None:
    names = build(
        "- type: always-disagg-pd-decider\n"
        "- type: disagg-profile-handler\n"
        "  parameters: {deciders: {prefill: always-disagg-pd-decider}}\n"
    )
    assert "approx-prefix-cache-producer" not in names


def test_a_prefix_decider_makes_the_producers_it_reads() -> None:
    names = build(
        "- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 512}}\n"
        "- type: disagg-profile-handler\n"
        "  parameters: {deciders: {prefill: prefix-based-pd-decider}}\n"
    )
    assert {"approx-prefix-cache-producer", "token-producer"} <= names


@pytest.mark.parametrize(
    ("plugins", "error"),
    [
        pytest.param(
            "- {type: disagg-profile-handler, parameters: {deciders: {prefill: pd}}}",
            "deciders.prefill: no plugin is named `pd`; defined: ",
            id="an unknown decider",
        ),
        pytest.param(
            "- {type: disagg-profile-handler, parameters: {deciders: {encode: decode-filter}}}",
            "refers to plugin `decode-filter` (decode-filter), which is no StageDecider",
            id="no decider",
        ),
        pytest.param(
            "- {type: disagg-profile-handler, parameters: {profiles: {decode: d}}}",
            "`disagg-profile-handler`: profiles.decode is 'd'; configured: 'decode', 'prefill';"
            " name one of them, or add a profile 'd'",
            id="no profile of the destination",
        ),
        pytest.param(
            "- {type: disagg-profile-handler, parameters: {stageOrder: prefill-first,"
            " joint: topology}}",
            "reads `Topology/topology-extractor`, which no plugin produces",
            id="pairs by a topology that nobody knows",
        ),
    ],
)
def test_an_impossible_configuration_is_refused(plugins: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(plugins)
    assert error in str(raised.value)


ERRORS: Sequence[SchedulingError | None] = (
    None,
    NoEndpointsError("stage", 3),
    DroppedError("stage", "tree", "no room"),
    SchedulingError("something else"),
)
REASONS = ("", "no-endpoints", "dropped", "error")


@given(
    is_prefill_first=st.booleans(),
    answers=st.tuples(*[st.sampled_from(["", "yes", "no", "raises"])] * 2),
    outcomes=st.fixed_dictionaries(
        {name: st.integers(0, 3) for name in ("decode", "prefill", "encode")}
    ),
    profiles=st.sets(st.sampled_from(["prefill", "encode", "other"])),
)
def test_whatever_becomes_of_the_stages_there_is_a_decode_or_its_error(
    is_prefill_first: bool,
    answers: tuple[str, str],
    outcomes: dict[str, int],
    profiles: set[str],
) -> None:
    order = "prefill-first" if is_prefill_first else "decode-first"
    prefill, encode = "" if is_prefill_first else answers[0], answers[1]
    metrics = CountingMetrics()
    broken = StubDecider("raises", answer=ValueError("broken"))
    plugin = handler({"stageOrder": order} | both(prefill, encode), broken, metrics=metrics)
    configured: Any = dict.fromkeys(sorted({"decode", *profiles}))
    results: dict[str, ProfileResult] = {}
    request, state = make_request(), make_state()
    rounds = 0
    while picked := plugin.pick_profiles(request, configured, results, state):
        rounds += 1
        assert rounds <= 3
        assert set(picked) <= set(configured) - set(results)
        for name in picked:
            error = ERRORS[outcomes[name]]
            endpoints = [] if error else make_scored({f"{name}-a": 1.0})
            results[name] = ProfileResult(name, endpoints, endpoints, error=error)
    assert "decode" in results
    if outcomes["decode"]:
        with pytest.raises(SchedulingError) as raised:
            plugin.process_results(request, results, state)
        assert raised.value is results["decode"].error
        return
    result = plugin.process_results(request, results, state)
    assert result.primary == "decode"
    assert chosen(result) == {name: [f"{name}-a"] for name in results if not outcomes[name]}
    for name in ("prefill", "encode"):
        failed = REASONS[outcomes[name]] if name in results else ""
        counted = {
            labels for labels in metrics.counts if labels[:2] == ("disagg_degraded_total", name)
        }
        reasons = {reason for *_, reason in counted} - {"decider-error", "no-profile"}
        assert reasons == ({failed} if failed else set())
    assert state.read(PREFILL_PROFILE) == "prefill"
    peer = state.read(PEER_ENDPOINT)
    assert peer is None or peer.name == ("prefill-a" if is_prefill_first else "decode-a")


@pytest.mark.parametrize(
    ("parameters", "profiles", "warnings"),
    [
        pytest.param("{}", ["decode"], [], id="decode alone"),
        pytest.param("{deciders: {prefill: pd}}", ["decode", "prefill"], [], id="with a prefill"),
        pytest.param(
            "{deciders: {prefill: pd}}",
            ["decode", "prefil"],
            [
                ("profile 'prefil' is never run; the stages have 'decode', 'prefill', 'encode'"),
                "no profile is named 'prefill': prefill is off",
            ],
            id="a profile misspelt",
        ),
        pytest.param(
            "{}",
            ["decode", "prefill", "encode"],
            [
                "prefill is off, as there is no deciders.prefill",
                "encode is off, as there is no deciders.encode",
            ],
            id="no deciders",
        ),
        pytest.param(
            "{stageOrder: prefill-first}", ["decode", "prefill"], [], id="prefill without a decider"
        ),
    ],
)
def test_what_never_runs_is_warned_of(
    parameters: str, profiles: list[str], warnings: list[str]
) -> None:
    entries = "".join(f"- {{name: {name}}}\n" for name in profiles)
    graph = make_builder(0).build(
        load_text(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
            f"- {{type: disagg-profile-handler, parameters: {parameters}}}\n"
            "- {type: always-disagg-pd-decider, name: pd}\n"
            f"schedulingProfiles:\n{entries}",
            "f",
        )
    )
    found = [each.message for each in graph.warnings if "disagg-profile-handler" in each.message]
    assert found == [f"`disagg-profile-handler`: {text}" for text in warnings]
