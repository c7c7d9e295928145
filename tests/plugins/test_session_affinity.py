"""Sessions from end to end: a configuration file, a director, requests one after another."""

import random
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec
import pytest

from epp.config import ConfigError, GraphBuilder, PluginRegistry, load_text
from epp.observability import Metrics
from epp.request_control import Director, Pipeline, RoutedRequest
from epp.request_control.plugins import EndCause, PreRequest
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    NullObserver,
    Plugin,
    ProfileHandler,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
)
from epp.testing import make_endpoint, make_request
from epp_plugins import PLUGINS

NAMES = ("ns/a", "ns/b", "ns/c", "ns/d")
SESSIONS = [f"s-{number}" for number in range(12)]
BOTH = pytest.mark.parametrize("kind", ["filter", "scorer"])


class NoParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """No parameters."""


class StagesHandler(ProfileHandler):
    """Runs decode, and before it prefill for requests that do not say that they need none."""

    type: ClassVar[str] = "stages-handler"

    def __init__(self, name: str, params: NoParams) -> None:
        self.name = name

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        if results:
            return {}
        wanted = ("decode",) if "x-cached" in request.headers else ("decode", "prefill")
        return {name: profiles[name] for name in wanted}

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        return SchedulingResult(results, "decode")


class NoFaults(NullObserver):
    """Lets no plugin fail in silence: a request goes on without one, and ten times turn it off."""

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        raise error


class Epp:
    """A director over a configuration, and a client that sends one request after another."""

    def __init__(self, config: str, names: Iterable[str] = NAMES) -> None:
        self.now = 100.0
        self.pool = [
            make_endpoint(name, address=f"10.0.0.{number}:8000")
            for number, name in enumerate(names)
        ]
        rng = random.Random(0)
        builder = GraphBuilder(
            PluginRegistry([*PLUGINS, StagesHandler]),
            services={"rng": lambda _: rng, "clock": lambda _: self.clock},
            observer=NoFaults(),
        )
        header = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        graph = builder.build(load_text(header + config, "test"))
        self.director = Director(
            pool=lambda: tuple(self.pool),
            find_address=lambda address: next(
                (each for each in self.pool if each.address == address), None
            ),
            pipeline=Pipeline.of(graph.plugins.values(), graph.scheduler, graph.guards),
            metrics=Metrics(),
            clock=self.clock,
        )

    def clock(self) -> float:
        return self.now

    def begin(self, headers: Mapping[str, str]) -> RoutedRequest:
        exchange = self.director.handle(
            request_id="r-1",
            headers={":path": "/v1/completions", **headers},
            body=b'{"model": "llama", "prompt": "hello"}',
            received_at=self.now,
        )
        assert isinstance(exchange, RoutedRequest)
        return exchange

    def send(self, headers: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return where each profile went, and the headers that the response gets."""
        exchange = self.begin(headers)
        changes = exchange.response_started(200, {}).items()
        answered = {name: value for name, value in changes if value is not None}
        went = {
            name: result.endpoints[0].endpoint.name
            for name, result in exchange.decision.result.profiles.items()
        }
        exchange.close(EndCause.COMPLETED)
        return went, answered

    def goes_to(self, session: str) -> str:
        """Return where a request with this session id goes."""
        return self.send({"x-session-id": session})[0]["default"]

    def take(self, name: str) -> Endpoint:
        """Take an endpoint out of the pool."""
        endpoint = next(each for each in self.pool if each.name == name)
        self.pool.remove(endpoint)
        return endpoint


def config_of(kind: str, parameters: str, before: Sequence[str] = ()) -> str:
    """Return a configuration with one session-affinity plugin; ``before`` are other plugins."""
    references = "".join(f"  - pluginRef: {plugin.split(',')[0]}\n" for plugin in before)
    return (
        "plugins:\n"
        + "".join(f"- {{type: {plugin}}}\n" for plugin in before)
        + f"- {{type: session-affinity-{kind}, name: affinity, parameters: {parameters}}}\n"
        + "schedulingProfiles:\n- name: default\n  plugins:\n"
        + references
        + "  - pluginRef: affinity\n"
    )


TOKENS = "{}"
BY_ID = "{strategy: session_id}"
STAGES = """
plugins:
- {type: stages-handler}
- {type: session-affinity-filter, name: of-decode, parameters: %(decode)s}
- {type: session-affinity-filter, name: of-prefill, parameters: %(prefill)s}
schedulingProfiles:
- name: prefill
  plugins:
  - pluginRef: of-prefill
- name: decode
  plugins:
  - pluginRef: of-decode
"""
"""A prefill and a decode, each with an affinity of its own."""
BUSY = (
    "utilization-filter, parameters:"
    " {conditions: [{metric: waiting-queue, maxValue: 20}], fallbackOnEmpty: true}"
)


@BOTH
def test_a_token_leads_back_to_who_gave_it(kind: str) -> None:
    epp = Epp(config_of(kind, TOKENS))
    seen = set()
    for _ in SESSIONS:
        first, tokens = epp.send({})
        assert b64decode(tokens["x-session-token"]).decode() == first["default"]
        for _ in range(3):
            again, tokens = epp.send(tokens)
            assert again == first
        seen.add(first["default"])
    assert len(seen) > 1, "or the picker does not choose at all"


@BOTH
def test_a_session_id_leads_back_to_where_it_went_first(kind: str) -> None:
    epp = Epp(config_of(kind, BY_ID))
    first = {session: epp.goes_to(session) for session in SESSIONS}
    assert {session: epp.goes_to(session) for session in SESSIONS} == first
    assert len(set(first.values())) > 1
    assert epp.send({"x-session-id": "s-0"})[1] == {}, "the client is told nothing"


@BOTH
@pytest.mark.parametrize("strategy", [TOKENS, BY_ID], ids=["token", "session"])
def test_a_session_whose_endpoint_is_gone_goes_on_where_it_went_next(
    kind: str, strategy: str
) -> None:
    epp = Epp(config_of(kind, strategy))
    headers = {"x-session-id": "s-1"}
    first, tokens = epp.send(headers)
    gone = epp.take(first["default"])
    second, tokens = epp.send(headers | tokens)
    assert second != first
    epp.pool.append(gone)  # and it stays there when the first one is back
    for _ in range(5):
        again, tokens = epp.send(headers | tokens)
        assert again == second


@BOTH
@pytest.mark.parametrize("strategy", [TOKENS, BY_ID], ids=["token", "session"])
def test_load_alone_never_moves_a_session(kind: str, strategy: str) -> None:
    epp = Epp(config_of(kind, strategy))
    headers = {"x-session-id": "s-1"}
    first, tokens = epp.send(headers)
    for each in epp.pool:
        if each.name == first["default"]:
            each.load.assume(waiting=1000, running=100, kv_cache_usage=1.0)
    assert epp.send(headers | tokens)[0] == first


@BOTH
@pytest.mark.parametrize("strategy", [TOKENS, BY_ID], ids=["token", "session"])
def test_with_a_utilization_filter_before_it_a_hot_session_moves_for_good(
    kind: str, strategy: str
) -> None:
    epp = Epp(config_of(kind, strategy, before=[BUSY]))
    headers = {"x-session-id": "s-1"}
    first, tokens = epp.send(headers)
    hot = next(each for each in epp.pool if each.name == first["default"])
    hot.load.assume(waiting=20, running=1, kv_cache_usage=0.5)
    assert epp.send(headers | tokens)[0] == first, "as long as it keeps its limit"
    hot.load.assume(waiting=21, running=1, kv_cache_usage=0.5)
    second, tokens = epp.send(headers | tokens)
    assert second != first
    hot.load.assume(waiting=0, running=0, kv_cache_usage=0.0)
    for _ in range(5):
        again, tokens = epp.send(headers | tokens)
        assert again == second
    for each in epp.pool:
        each.load.assume(waiting=99, running=1, kv_cache_usage=0.5)
    assert epp.send(headers | tokens)[0] == second, "where all are busy it stays"


def test_a_session_unused_for_too_long_is_forgotten() -> None:
    parameters = "{strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 60}}"
    epp = Epp(config_of("filter", parameters))
    first = {session: epp.goes_to(session) for session in SESSIONS}
    epp.now += 60
    assert {session: epp.goes_to(session) for session in SESSIONS} == first
    epp.now += 60.5
    assert {session: epp.goes_to(session) for session in SESSIONS} != first


def test_a_session_in_use_stays_bound() -> None:
    parameters = "{strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 60}}"
    epp = Epp(config_of("filter", parameters))
    first = {session: epp.goes_to(session) for session in SESSIONS}
    for _ in range(3):
        epp.now += 50
        assert {session: epp.goes_to(session) for session in SESSIONS} == first


def test_zero_stands_for_the_default_time_to_live() -> None:
    zero = "{strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 0, sources: []}}"
    epp = Epp(config_of("filter", zero))
    first = {session: epp.goes_to(session) for session in SESSIONS}
    epp.now += 300
    assert {session: epp.goes_to(session) for session in SESSIONS} == first


def test_a_request_that_was_drawn_elsewhere_does_not_move_its_session() -> None:
    """The bound endpoint was a candidate, so the next request is drawn to it again."""
    config = config_of("scorer", BY_ID, before=["queue-scorer"]).replace(
        "pluginRef: queue-scorer", "{pluginRef: queue-scorer, weight: 5}"
    )
    epp = Epp(config)
    home = epp.goes_to("s-1")
    endpoint = next(each for each in epp.pool if each.name == home)
    endpoint.load.assume(waiting=50, running=0, kv_cache_usage=0.0)
    assert epp.goes_to("s-1") != home
    endpoint.load.assume(waiting=0, running=0, kv_cache_usage=0.0)
    assert {epp.goes_to("s-1") for _ in range(5)} == {home}


@BOTH
@pytest.mark.parametrize(
    ("pools", "want"),
    [
        pytest.param(["ab", "a"], {"ns/a"}, id="it has left before the second one"),
        pytest.param(["a", "ab"], {"ns/b"}, id="it was back for the second one"),
    ],
)
def test_a_decision_that_was_made_twice_counts_by_the_second_one(
    kind: str, pools: list[str], want: set[str]
) -> None:
    """As when a request waits in between: both evaluations have one state."""
    builder = GraphBuilder(PluginRegistry(PLUGINS), services={"clock": lambda _: lambda: 0.0})
    header = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    graph = builder.build(load_text(header + config_of(kind, BY_ID), "test"))
    affinity = graph.plugins["affinity"]
    assert isinstance(affinity, PreRequest)
    request = make_request(headers={"x-session-id": "s-1"})

    def decide(*pools: str) -> str:
        state = CycleState()
        *_, result = [
            graph.scheduler.schedule(request, [make_endpoint(f"ns/{each}") for each in pool], state)
            for pool in pools
        ]
        affinity.pre_request(request, result, state)
        return result.endpoints[0].endpoint.name

    assert decide("b") == "ns/b"
    decide(*pools)
    assert {decide("ab") for _ in range(8)} == want


def test_the_token_names_the_endpoint_that_served() -> None:
    epp = Epp(config_of("filter", TOKENS))
    exchange = epp.begin({})
    other = next(each for each in epp.pool if each is not exchange.endpoint)
    exchange.served_by(other.address)
    token = exchange.response_started(200, {})["x-session-token"]
    assert b64decode(token or "").decode() == other.name


def test_two_instances_keep_bindings_of_their_own() -> None:
    epp = Epp(STAGES % {"decode": BY_ID, "prefill": "{strategy: session_id, profileName: prefill}"})
    first = {session: epp.send({"x-session-id": session})[0] for session in SESSIONS}
    assert {session: epp.send({"x-session-id": session})[0] for session in SESSIONS} == first
    assert any(went["decode"] != went["prefill"] for went in first.values())


def stages_with_tokens() -> Epp:
    header = "encodedEndpointHeaderConfig: {header: x-session-token-prefill}"
    return Epp(STAGES % {"decode": "{}", "prefill": f"{{profileName: prefill, {header}}}"})


def test_decode_and_prefill_are_pinned_apart_by_tokens_of_their_own() -> None:
    epp = stages_with_tokens()
    apart = 0
    for _ in SESSIONS:
        first, tokens = epp.send({})
        assert {name: b64decode(token).decode() for name, token in tokens.items()} == {
            "x-session-token": first["decode"],
            "x-session-token-prefill": first["prefill"],
        }
        again, tokens_again = epp.send(tokens)
        assert (again, tokens_again) == (first, tokens)
        apart += first["decode"] != first["prefill"]
    assert apart, "or one token would do"


def test_without_a_prefill_there_is_no_token_of_one() -> None:
    _, tokens = stages_with_tokens().send({"x-cached": "1"})
    assert list(tokens) == ["x-session-token"]


def test_a_profile_that_did_not_run_leaves_its_session_bound() -> None:
    epp = Epp(STAGES % {"decode": BY_ID, "prefill": "{strategy: session_id, profileName: prefill}"})
    for session in SESSIONS:
        headers = {"x-session-id": session}
        first, _ = epp.send(headers)
        epp.send(headers | {"x-cached": "1"})
        assert epp.send(headers)[0] == first


def test_who_was_not_asked_for_candidates_binds_nothing_anew() -> None:
    """An instance without a profile name binds the primary endpoint, wherever it stands."""
    epp = Epp(STAGES.replace("  - pluginRef: of-decode\n", "") % {"decode": "{}", "prefill": BY_ID})
    headers = {"x-session-id": "s-1"}
    home = epp.send(headers)[0]["decode"]
    went_elsewhere = 0
    for _ in range(12):
        went_elsewhere += epp.send(headers | {"x-cached": "1"})[0]["decode"] != home
        assert epp.send(headers)[0]["prefill"] == home
    assert went_elsewhere


def test_who_was_not_asked_binds_anew_what_is_gone() -> None:
    epp = Epp(STAGES.replace("  - pluginRef: of-decode\n", "") % {"decode": "{}", "prefill": BY_ID})
    headers = {"x-session-id": "s-1"}
    gone = epp.take(epp.send(headers)[0]["decode"])
    next_home = epp.send(headers)[0]["decode"]
    epp.pool.append(gone)
    assert {epp.send(headers)[0]["prefill"] for _ in range(8)} == {next_home}


def test_a_profile_name_may_be_that_of_the_primary_profile() -> None:
    epp = Epp(STAGES % {"decode": "{profileName: decode}", "prefill": "{strategy: session_id}"})
    exchange = epp.begin({})
    other = next(each for each in epp.pool if each is not exchange.endpoint)
    exchange.served_by(other.address)
    (token,) = exchange.response_started(200, {}).values()
    assert b64decode(token or "").decode() == other.name


def test_an_instance_in_two_profiles_goes_by_the_candidates_of_the_one_it_binds() -> None:
    """The prefill endpoints are no reason to bind the session of a decode endpoint anew."""
    epp = Epp(
        """
plugins:
- {type: stages-handler}
- {type: decode-filter}
- {type: prefill-filter}
- {type: queue-scorer}
- {type: session-affinity-scorer, parameters: {strategy: session_id}}
schedulingProfiles:
- name: decode
  plugins:
  - pluginRef: decode-filter
  - {pluginRef: queue-scorer, weight: 5}
  - pluginRef: session-affinity-scorer
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - pluginRef: session-affinity-scorer
"""
    )
    for endpoint, role in zip(epp.pool, ("decode", "decode", "prefill", "prefill"), strict=True):
        endpoint.labels = {"llm-d.ai/role": role}
    home = epp.send({"x-session-id": "s-1"})[0]["decode"]
    busy = next(each for each in epp.pool if each.name == home)
    busy.load.assume(waiting=50, running=0, kv_cache_usage=0.0)
    assert epp.send({"x-session-id": "s-1"})[0]["decode"] != home
    busy.load.assume(waiting=0, running=0, kv_cache_usage=0.0)
    assert {epp.send({"x-session-id": "s-1"})[0]["decode"] for _ in range(5)} == {home}


AGENTS = "{strategy: session_id, sessionIdConfig: {sources: [%s{attribute: agent-identity}]}}"


def test_an_agents_turns_stay_together_and_wait_in_one_flow() -> None:
    config = config_of("filter", AGENTS % "").replace(
        "plugins:\n", "plugins:\n- {type: agent-identity}\n", 1
    )
    epp = Epp(config)
    seen = set()
    for session in SESSIONS:
        headers = {"x-claude-code-session-id": session}
        first, _ = epp.send(headers)
        exchange = epp.begin(headers)
        assert exchange.endpoint.name == first["default"]
        assert exchange.request.fairness_id == session
        exchange.close(EndCause.COMPLETED)
        seen.add(first["default"])
    assert len(seen) > 1


def test_a_header_that_is_named_first_wins_over_the_agents_identity() -> None:
    config = config_of("filter", AGENTS % "{header: x-session-id}, ").replace(
        "plugins:\n", "plugins:\n- {type: agent-identity}\n", 1
    )
    epp = Epp(config)
    homes = {session: epp.goes_to(session) for session in SESSIONS}
    agent = {"session-id": "s-0"}
    for session, home in homes.items():
        assert epp.send({"x-session-id": session, **agent})[0]["default"] == home
    assert epp.send(agent)[0]["default"] == homes["s-0"], "an id is an id, whoever sends it"


def test_an_attribute_that_no_plugin_writes_is_refused() -> None:
    with pytest.raises(ConfigError, match="reads `agent-identity/`, which no plugin produces"):
        Epp(config_of("filter", AGENTS % ""))


def test_a_profile_name_that_no_profile_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"profileName: no profile is named `decoder`; did you"):
        Epp(STAGES % {"decode": "{profileName: decoder}", "prefill": "{}"})
