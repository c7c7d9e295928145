"""``inflight-load-producer`` counts requests in flight exactly, down to 0 at the end."""

import random
from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.data_layer import EndpointSpec, EndpointStore
from epp.request_control.plugins import EndCause, ResponseHead
from epp.scheduling import (
    AttributeKey,
    CycleState,
    Endpoint,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    SchedulingResult,
    ScoredEndpoint,
    StateKey,
)
from epp.testing import check, make_endpoint, make_request, make_state
from epp_plugins.data_producers.inflight_load import MAX_SERIES, InflightLoadProducer, Params
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.pickers.max_score import Params as PickerParams
from epp_plugins.profile_handlers.single_profile import Params as HandlerParams
from epp_plugins.profile_handlers.single_profile import SingleProfileHandler
from epp_plugins.state_keys import (
    IN_FLIGHT_LOAD,
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    TOKENIZED_PROMPT,
    UNCACHED_TOKENS,
    InFlightLoad,
    PrefixMatches,
    TokenizedPrompt,
    UncachedTokens,
    prefix_matches_of,
)

NAME = "inflight-load-producer"
NOTHING = InFlightLoad()


def made(parameters: Mapping[str, object] | None = None, name: str = NAME) -> InflightLoadProducer:
    return InflightLoadProducer(name, msgspec.convert(dict(parameters or {}), Params))


def prompt(tokens: int) -> TokenizedPrompt:
    return TokenizedPrompt(b"", tokens)


def chosen(primary: str, **profiles: Endpoint | None) -> SchedulingResult:
    """Return a result of these profiles; None for one that failed."""
    results = {
        name: ProfileResult(name, () if endpoint is None else (ScoredEndpoint(endpoint, 1.0),))
        for name, endpoint in profiles.items()
    }
    return SchedulingResult(results, primary)


def load_of(endpoint: Endpoint) -> tuple[int, int]:
    load = endpoint.attribute(IN_FLIGHT_LOAD) or NOTHING
    return load.requests, load.tokens


class Flight:
    """One request on its way through the hooks."""

    def __init__(
        self,
        producer: InflightLoadProducer,
        result: SchedulingResult,
        tokens: int = 100,
        values: Mapping[StateKey[Any], Any] | None = None,
        *,
        stream: bool = False,
        fairness_id: str = "tenant",
    ) -> None:
        self.producer = producer
        self.request = make_request(stream=stream)
        self.request.fairness_id, self.request.priority = fairness_id, 1
        self.state = make_state({TOKENIZED_PROMPT: prompt(tokens), **(values or {})})
        self.served_by = result.endpoints[0].endpoint
        producer.prepare(self.request, self.state)
        producer.attach(self.request, (self.served_by,), self.state)
        producer.pre_request(self.request, result, self.state)

    def begin_response(self) -> None:
        head = ResponseHead(200, {})
        self.producer.response_headers(self.request, head, self.served_by, self.state)

    def end(self) -> None:
        cause = EndCause.COMPLETED
        self.producer.response_complete(self.request, self.served_by, cause, self.state)


def test_the_class_is_sound() -> None:
    check(InflightLoadProducer)


@pytest.mark.parametrize(
    ("matches", "expected"),
    [
        pytest.param(None, UncachedTokens(100), id="nobody knows the prefix"),
        pytest.param(
            # 2 blocks of 64 make 128 tokens, more than the prompt has
            PrefixMatches({}, 2, 64),
            UncachedTokens(128),
            id="nobody holds it: whole blocks count",
        ),
        pytest.param(
            # 128 - 1 * 64, 128 - 2 * 64
            PrefixMatches({"a": 1, "b": 2}, 2, 64),
            UncachedTokens(128, {"a": 64, "b": 0}),
            id="blocks held are taken off",
        ),
        pytest.param(
            # only one block was looked at: 100 - 64
            PrefixMatches({"a": 1}, 1, 64),
            UncachedTokens(100, {"a": 36}),
            id="the tail beyond what was looked at is uncached",
        ),
        pytest.param(
            PrefixMatches({"a": 9}, 2, 64),
            UncachedTokens(128, {"a": 0}),
            id="more blocks than there are",
        ),
        pytest.param(PrefixMatches({"a": 1}, 1, 0), UncachedTokens(100), id="no block size"),
    ],
)
def test_uncached_tokens(matches: PrefixMatches | None, expected: UncachedTokens) -> None:
    state = make_state({TOKENIZED_PROMPT: prompt(100)})
    if matches is not None:
        state.write(PREFIX_MATCHES, matches)
    made().attach(make_request(), [make_endpoint("a"), make_endpoint("b")], state)
    assert state.read(UNCACHED_TOKENS) == expected


def test_a_request_without_a_prompt_has_no_tokens_but_counts() -> None:
    endpoint = make_endpoint("a")
    producer, state = made(), CycleState()
    producer.attach(make_request(), (endpoint,), state)
    assert state.read(UNCACHED_TOKENS) == UncachedTokens(0)
    producer.pre_request(make_request(), chosen("default", default=endpoint), state)
    assert load_of(endpoint) == (1, 0)


@pytest.mark.parametrize(
    ("parameters", "max_output_tokens", "tokens"),
    [
        pytest.param({"addEstimatedOutputTokens": True}, None, 103 + 155, id="154.5 rounds up"),
        pytest.param({"outputRatio": 3.0}, None, 103, id="a ratio alone adds nothing"),
        pytest.param(
            {"addEstimatedOutputTokens": True, "outputRatio": 0.0}, None, 103, id="a ratio of 0"
        ),
        pytest.param(
            {"addEstimatedOutputTokens": True}, 20, 103 + 20, id="no more than the client wants"
        ),
        pytest.param(
            {"addEstimatedOutputTokens": True, "maxEstimatedOutputTokens": 10},
            20,
            103 + 10,
            id="no more than the operator says",
        ),
        pytest.param(
            {"addEstimatedOutputTokens": True, "maxEstimatedOutputTokens": 0},
            None,
            103,
            id="a limit of 0",
        ),
    ],
)
def test_estimated_output(
    parameters: dict[str, object], max_output_tokens: int | None, tokens: int
) -> None:
    # 103 * 1.5 = 154.5
    state = make_state({TOKENIZED_PROMPT: prompt(103)})
    request = make_request(max_output_tokens=max_output_tokens)
    made(parameters).attach(request, (), state)
    assert state.read(UNCACHED_TOKENS) == UncachedTokens(tokens)


def test_output_is_estimated_from_the_whole_prompt() -> None:
    # 128 - 64 uncached, 100 * 1.5 = 150 of output
    state = make_state({TOKENIZED_PROMPT: prompt(100)})
    state.write(PREFIX_MATCHES, PrefixMatches({"a": 1}, 2, 64))
    made({"addEstimatedOutputTokens": True}).attach(make_request(), (), state)
    assert state.read(UNCACHED_TOKENS) == UncachedTokens(128 + 150, {"a": 64 + 150})


def test_the_named_prefix_producer_is_believed() -> None:
    producer = made({"prefixMatchInfoProducerName": "precise"})
    assert producer.optional_reads == (prefix_matches_of("precise"),)
    state = make_state(
        {
            TOKENIZED_PROMPT: prompt(128),
            PREFIX_MATCHES: PrefixMatches({"a": 2}, 2, 64),
            prefix_matches_of("precise"): PrefixMatches({"a": 1}, 2, 64),
        }
    )
    producer.attach(make_request(), (), state)
    assert state.read(UNCACHED_TOKENS) == UncachedTokens(128, {"a": 64})


def test_keys_bear_the_instances_name() -> None:
    producer = made(name="mine")
    assert [key.name for key in producer.writes] == [
        "InFlightLoadDataKey/mine",
        "UncachedRequestTokensDataKey/mine",
    ]
    assert made().writes == InflightLoadProducer.default_for == (IN_FLIGHT_LOAD, UNCACHED_TOKENS)
    endpoint = make_endpoint("a")
    Flight(producer, chosen("default", default=endpoint))
    mine = AttributeKey[InFlightLoad]("InFlightLoadDataKey/mine")
    assert endpoint.attributes.pop(mine) == InFlightLoad(1, 100)
    assert [key.name for key in endpoint.attributes] == ["in-flight-by-flow/mine"]


def test_the_prompt_is_done_when_the_response_begins() -> None:
    endpoint = make_endpoint("a")
    flight = Flight(made(), chosen("default", default=endpoint))
    assert load_of(endpoint) == (1, 100)
    flight.begin_response()
    assert load_of(endpoint) == (1, 0)
    flight.begin_response()
    assert load_of(endpoint) == (1, 0)
    flight.end()
    assert load_of(endpoint) == (0, 0)


def test_the_prompt_of_a_streamed_response_counts_until_the_end_and_its_prefill_does_not() -> None:
    prefill, decode = make_endpoint("p"), make_endpoint("d")
    result = chosen("decode", decode=decode, prefill=prefill)
    flight = Flight(made(), result, stream=True)
    flight.begin_response()
    assert [load_of(each) for each in (prefill, decode)] == [(0, 0), (1, 100)]
    flight.end()
    assert [load_of(each) for each in (prefill, decode)] == [(0, 0), (0, 0)]


def test_estimated_output_stays_until_the_end() -> None:
    endpoint = make_endpoint("a")
    producer = made({"addEstimatedOutputTokens": True})
    flight = Flight(producer, chosen("default", default=endpoint))
    flight.begin_response()
    assert load_of(endpoint) == (1, 250)  # 100 + 1.5 * 100
    flight.end()
    assert load_of(endpoint) == (0, 0)


@pytest.mark.parametrize("output", [False, True], ids=["without output", "with output"])
def test_stages_before_the_primary_one_are_done_when_the_response_begins(output: bool) -> None:
    encode, prefill, decode = (make_endpoint(name) for name in "epd")
    result = chosen("decode", decode=decode, prefill=prefill, encode=encode)
    flight = Flight(made({"addEstimatedOutputTokens": output, "outputRatio": 1.0}), result)
    tokens = 200 if output else 100
    assert [load_of(each) for each in (encode, prefill, decode)] == [(1, tokens)] * 3
    flight.begin_response()
    left = (1, 200) if output else (1, 0)
    assert [load_of(each) for each in (encode, prefill, decode)] == [(0, 0), (0, 0), left]
    flight.end()
    assert [load_of(each) for each in (encode, prefill, decode)] == [(0, 0)] * 3


@pytest.mark.parametrize(
    ("named", "primary", "left"),
    [
        pytest.param(None, "prefill", (0, 0), id="under its usual name"),
        pytest.param("P", "P", (0, 0), id="under the name that its handler gives it"),
        pytest.param("P", "prefill", (1, 0), id="the usual name means another"),
    ],
)
def test_a_prefill_that_was_asked_for_alone_is_done(
    named: str | None, primary: str, left: tuple[int, int]
) -> None:
    endpoint = make_endpoint("a")
    values = {} if named is None else {PREFILL_PROFILE: named}
    flight = Flight(made(), chosen(primary, **{primary: endpoint}), values=values)
    flight.begin_response()
    assert load_of(endpoint) == left


def test_one_endpoint_for_two_profiles_counts_twice() -> None:
    endpoint = make_endpoint("a")
    flight = Flight(made(), chosen("decode", decode=endpoint, prefill=endpoint))
    assert load_of(endpoint) == (2, 200)
    flight.begin_response()
    assert load_of(endpoint) == (1, 0)


def test_a_profile_that_failed_counts_nothing() -> None:
    endpoint = make_endpoint("a")
    Flight(made(), chosen("decode", prefill=None, decode=endpoint))
    assert load_of(endpoint) == (1, 100)


def test_a_request_that_was_never_sent_ends_without_a_trace() -> None:
    endpoint = make_endpoint("a")
    producer, state = made(), CycleState()
    producer.response_complete(make_request(), endpoint, EndCause.REFUSED, state)
    assert not endpoint.attributes


def test_an_attribute_that_was_taken_away_is_not_driven_below_nothing() -> None:
    endpoint = make_endpoint("a")
    flight = Flight(made(), chosen("default", default=endpoint))
    endpoint.attributes.clear()
    flight.end()
    assert load_of(endpoint) == (0, 0)


class Gauges:
    """Metrics that a test reads."""

    def __init__(self) -> None:
        self.read: dict[str, Any] = {}

    def counter(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("it counts no events")

    def histogram(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("it has no distribution")

    def gauge(
        self,
        plugin: Any,
        name: str,
        documentation: str,
        read: Any,
        labels: Any = (),
        *,
        plugin_labels: str = "always",
    ) -> None:
        own = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")
        assert (labels, plugin_labels) == (own, "never")
        self.read[name] = read

    def flows(self, name: str) -> dict[str, float]:
        """The values by endpoint, fairness id and priority."""
        read = self.read[f"inflight_{name}"]()
        assert {labels[1:3] for labels in read} <= {("ns", NAME)}
        return {" ".join((labels[0], *labels[3:])): value for labels, value in read.items()}


def gauged(*names: str) -> tuple[Gauges, InflightLoadProducer, list[Endpoint]]:
    gauges = Gauges()
    producer = InflightLoadProducer(NAME, Params(), gauges)
    endpoints = [make_endpoint(f"ns/{name}") for name in names]
    for each in endpoints:
        producer.endpoint_added(each)
    return gauges, producer, endpoints


def test_gauges_show_the_pool() -> None:
    gauges, producer, (busy, _) = gauged("busy", "idle")
    flight = Flight(producer, chosen("default", default=busy))
    assert gauges.flows("requests") == {
        "busy default-flow 0": 0,
        "busy tenant 1": 1,
        "idle default-flow 0": 0,
    }
    assert gauges.flows("tokens")["busy tenant 1"] == 100
    flight.end()
    nothing = {"busy default-flow 0": 0, "idle default-flow 0": 0}
    assert gauges.flows("requests") == gauges.flows("tokens") == nothing
    producer.endpoint_removed(busy)
    assert gauges.flows("requests") == {"idle default-flow 0": 0}


@pytest.mark.parametrize(
    "fairness_id", [pytest.param("x" * 257, id="too long"), pytest.param("other", id="its name")]
)
def test_a_flow_without_a_series_of_its_own_is_one_of_the_others(fairness_id: str) -> None:
    gauges, producer, (busy,) = gauged("busy")
    flight = Flight(producer, chosen("default", default=busy), fairness_id=fairness_id)
    shown = "other other" if fairness_id != "other" else "other 1"
    assert gauges.flows("requests") == {"busy default-flow 0": 0, f"busy {shown}": 1}
    flight.end()
    assert gauges.flows("requests") == {"busy default-flow 0": 0}


def test_series_are_limited_and_their_sum_is_everything() -> None:
    gauges, producer, endpoints = gauged("a", "b")
    for number in range(3000):
        chosen_one = endpoints[number % 2]
        Flight(producer, chosen("default", default=chosen_one), fairness_id=f"flow-{number}")
    requests = gauges.flows("requests")
    assert len(requests) <= MAX_SERIES
    assert sum(requests.values()) == 3000
    for name in ("a", "b"):
        assert sum(n for labels, n in requests.items() if labels.startswith(name)) == 1500


def test_a_large_pool_has_one_series_an_endpoint() -> None:
    gauges, producer, endpoints = gauged(*map(str, range(501)))
    Flight(producer, chosen("default", default=endpoints[7]))
    requests = gauges.flows("requests")
    assert (len(requests), requests["7 other other"], sum(requests.values())) == (501, 1, 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("send", "respond", "end", "replace")),
        st.integers(0, 5),  # which request or endpoint
        st.integers(0, 500),  # tokens
        st.booleans(),  # by the instance of before the reload or of after it, with a prefill or not
        st.booleans(),  # streamed or not
    ),
    max_size=40,
)


@given(steps=STEPS, output=st.booleans())
def test_whatever_happens_it_is_the_sum_of_what_is_under_way(
    steps: list[tuple[str, int, int, bool, bool]], output: bool
) -> None:
    """Overlapping requests, endpoints that leave and come back, and a reload in between."""
    parameters = {"addEstimatedOutputTokens": output, "outputRatio": 1.0}
    before, after = made(parameters), made(parameters)
    pool = [make_endpoint(f"ns/{place}") for place in range(3)]
    ever = list(pool)
    # Per flight what each of its endpoints should hold for it, counted by hand.
    flying: list[tuple[Flight, dict[str, list[int]], Endpoint, Endpoint | None]] = []

    def check_sums() -> None:
        for endpoint in ever:
            requests = tokens = 0
            for _, held, decode, prefill in flying:
                for role, where in (("decode", decode), ("prefill", prefill)):
                    if where is endpoint:
                        requests += held[role][0]
                        tokens += held[role][1]
            assert load_of(endpoint) == (requests, tokens)

    for kind, which, tokens, flag, stream in steps:
        if kind == "send":
            decode = pool[which % 3]
            prefill = pool[(which + tokens) % 3] if flag else None
            profiles = {"decode": decode} | ({"prefill": prefill} if prefill else {})
            producer = before if flag else after
            flight = Flight(producer, chosen("decode", **profiles), tokens, stream=stream)
            each = 2 * tokens if output else tokens
            flying.append((flight, {"decode": [1, each], "prefill": [1, each]}, decode, prefill))
        elif kind == "replace":  # the same name, another server
            pool[which % 3] = make_endpoint(pool[which % 3].name)
            ever.append(pool[which % 3])
        elif flying:
            flight, held, _, _ = flying[which % len(flying)]
            if kind == "respond":
                flight.begin_response()
                held["prefill"] = [0, 0]
                held["decode"][1] *= output or flight.request.stream
            else:
                flight.end()
                del flying[which % len(flying)]
        check_sums()
    for flight, *_ in flying:
        flight.end()
    assert all(load_of(endpoint) == (0, 0) for endpoint in ever)


def test_a_server_with_a_new_address_has_no_requests_of_its_former_one() -> None:
    producer = made()
    store = EndpointStore()
    store.add_listener(producer)

    def at(address: str) -> Endpoint:
        store.replace_endpoints("s", [EndpointSpec("ns/a", address, incarnation="u1")])
        return store.snapshot[0]

    former = at("1:1")
    flight = Flight(producer, chosen("default", default=former))
    former.load.start(0.0)
    moved = at("2:2")
    assert moved is not former
    assert (load_of(former), load_of(moved)) == ((1, 100), (0, 0))
    assert at("1:1") is former
    assert load_of(former) == (1, 100)
    flight.end()
    assert load_of(former) == (0, 0)


def test_a_burst_through_the_scheduler_is_counted_where_it_goes() -> None:
    producer = made()
    endpoints = [make_endpoint(f"ns/{place}") for place in range(4)]
    profile = SchedulerProfile(
        name="default",
        filters=(),
        scorers=(),
        picker=MaxScorePicker("max", PickerParams(), rng=random.Random(1)),
    )
    handler = SingleProfileHandler("single", HandlerParams())
    scheduler = Scheduler(handler, {"default": profile})
    sent: list[Endpoint] = []
    for _ in range(20):
        request, state = make_request(), make_state({TOKENIZED_PROMPT: prompt(10)})
        producer.prepare(request, state)
        producer.attach(request, endpoints, state)
        result = scheduler.schedule(request, endpoints, state)
        producer.pre_request(request, result, state)
        sent.append(result.endpoints[0].endpoint)
    for endpoint in endpoints:
        requests = sent.count(endpoint)
        assert load_of(endpoint) == (requests, 10 * requests)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"outputRatio": -0.1}, "`$.outputRatio`", id="a ratio below 0"),
        pytest.param({"outputRatio": inf}, "`$.outputRatio`", id="a ratio without bounds"),
        pytest.param(
            {"maxEstimatedOutputTokens": -1}, "`$.maxEstimatedOutputTokens`", id="a limit below 0"
        ),
        pytest.param({"addOutput": True}, "unknown field `addOutput`", id="unknown field"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        made(parameters)
    assert message in str(caught.value)


def test_syncing_replicas_is_accepted() -> None:
    assert made({"syncCrossReplicaState": False}).writes == (IN_FLIGHT_LOAD, UNCACHED_TOKENS)
