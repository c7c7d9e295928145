"""``predicted-time-producer`` passes the events of hooks and pages to its model."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from plugins.predicted_time.fleets import state_written
from structlog.testing import capture_logs

from epp.request_control.plugins import (
    DECISION_NOTES,
    EndCause,
    ResponseHead,
    ResponseSource,
)
from epp.scheduling import (
    CycleState,
    Endpoint,
    EndpointMetrics,
    ProfileResult,
    Reservation,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.data_producers.predicted_time import Params, PredictedTimeProducer
from epp_plugins.predicted_time import RequestForecast, StateFile
from epp_plugins.state_keys import (
    PREDICTED_TIME,
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    TOKENIZED_PROMPT,
    PrefixMatches,
    TokenizedPrompt,
)

TYPE = "predicted-time-producer"
UNKNOWN, SERVER = ResponseSource.UNKNOWN, ResponseSource.SERVER
GATEWAY, GATEWAY_FOR_SERVER = ResponseSource.GATEWAY, ResponseSource.GATEWAY_FOR_SERVER


class Note:
    """What another plugin notes on a decision."""

    def sentences(self) -> list[str]:
        return []


class Pool:
    """Two endpoints, a producer and a clock."""

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        self.now = 100.0
        self.a, self.b = make_endpoint("a"), make_endpoint("b", address="10.0.0.2:8000")
        self.producer = self.make(parameters)
        for endpoint in (self.a, self.b):
            self.page(endpoint, prompts=0)

    def make(self, parameters: Mapping[str, Any] | None = None) -> PredictedTimeProducer:
        producer = PredictedTimeProducer(
            TYPE, msgspec.convert(dict(parameters or {}), Params), clock=lambda: self.now
        )
        for endpoint in (self.a, self.b):
            producer.endpoint_added(endpoint)
        return producer

    def page(self, endpoint: Endpoint, **values: Any) -> None:
        """Let a page of the endpoint arrive."""
        endpoint.metrics = EndpointMetrics(requested_at=self.now, **values)
        endpoint.load.observe(
            waiting=endpoint.metrics.waiting_requests,
            running=endpoint.metrics.running_requests,
            kv_cache_usage=endpoint.metrics.kv_cache_usage,
            requested_at=self.now,
        )

    def pending(self, endpoint: Endpoint) -> int:
        return len(self.producer.model.endpoint(endpoint.name).pending)

    def learned(self) -> int:
        return self.producer.model.learner.serial.samples


class Flight:
    """One request on its way through the hooks."""

    def __init__(
        self,
        pool: Pool,
        endpoint: Endpoint,
        *,
        stream: bool = True,
        prefill: Endpoint | None = None,
        tokens: int = 1000,
        state: CycleState | None = None,
    ) -> None:
        self.pool, self.served_by = pool, endpoint
        self.place = Reservation(endpoint.load, pool.now)
        self.stages = [Reservation(each.load, pool.now) for each in (prefill,) if each is not None]
        self.request = make_request(stream=stream)
        self.state = state or make_state({TOKENIZED_PROMPT: TokenizedPrompt(b"", tokens)})
        profiles = {"default": ProfileResult("default", (ScoredEndpoint(endpoint, 1.0),))}
        if prefill is not None:
            profiles["prefill"] = ProfileResult("prefill", (ScoredEndpoint(prefill, 1.0),))
            self.state.write(PREFILL_PROFILE, "prefill")
        pool.producer.prepare(self.request, self.state)
        pool.producer.attach(self.request, (pool.a, pool.b), self.state)
        result = SchedulingResult(profiles, "default")
        pool.producer.pre_request(self.request, result, self.state)

    def head(self, status: int = 200, **facts: Any) -> None:
        self.place.move(self.served_by.load, self.pool.now)
        response = ResponseHead(status, {}, **facts)
        self.pool.producer.response_headers(self.request, response, self.served_by, self.state)
        self.release_stages()

    def body(self) -> None:
        self.pool.producer.response_body_started(self.request, self.served_by, self.state)

    def release_stages(self) -> None:
        while self.stages:
            self.stages.pop().release(self.pool.now)

    def end(self, cause: EndCause = EndCause.COMPLETED) -> None:
        self.place.release(self.pool.now)
        self.release_stages()
        self.pool.producer.response_complete(self.request, self.served_by, cause, self.state)


def first_token_after(pool: Pool, seconds: float) -> None:
    """Let a request to ``a`` have its first token after so long, and end."""
    flight = Flight(pool, pool.a)
    pool.now += seconds
    flight.head()
    flight.body()
    flight.end()


async def file_read() -> None:
    """Wait until a thread has read the state file, and its content was passed on."""
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)


def test_the_class_is_sound() -> None:
    check(PredictedTimeProducer)


@pytest.mark.parametrize(
    ("matches", "total", "tokens"),
    [
        pytest.param(None, 100, {}, id="nobody knows the prefix"),
        pytest.param(PrefixMatches({}, 2, 64), 128, {}, id="whole blocks count"),
        # 128 - 1 * 64, 128 - 2 * 64
        pytest.param(PrefixMatches({"a": 1, "b": 9}, 2, 64), 128, {"a": 64, "b": 0}, id="held"),
        pytest.param(PrefixMatches({"a": 1}, 1, 0), 100, {}, id="no block size"),
    ],
)
def test_uncached_tokens(
    matches: PrefixMatches | None, total: int, tokens: Mapping[str, int]
) -> None:
    pool, state = Pool(), make_state({TOKENIZED_PROMPT: TokenizedPrompt(b"", 100)})
    if matches is not None:
        state.write(PREFIX_MATCHES, matches)
    pool.producer.attach(make_request(), (pool.a, pool.b), state)
    forecast = state.read(PREDICTED_TIME)
    assert forecast is not None
    assert (forecast.total_tokens, dict(forecast.tokens)) == (total, tokens)


def test_a_streamed_response_has_its_first_token_with_its_first_bytes() -> None:
    pool = Pool()
    flight = Flight(pool, pool.a)
    pool.now += 0.05
    flight.head()  # vLLM sends it before the prompt is computed
    assert (pool.pending(pool.a), pool.learned()) == (1, 0)
    pool.now += 0.35
    flight.body()
    assert (pool.pending(pool.a), pool.learned()) == (0, 1)
    flight.body()
    assert pool.learned() == 1
    pool.now += 2.0
    flight.end()
    # It took 0.4 s, which the prior of 0.08 s with its small weight hardly changes.
    assert pool.producer.model.learner.serial.predict(1.0, 0) == pytest.approx(0.4, rel=0.2)
    assert pool.producer.model.endpoint("a").decode_seconds == pytest.approx(2.0)


def forecast_of(pool: Pool, state: CycleState) -> RequestForecast:
    """Let a prompt of 6 400 tokens arrive, of which ``a`` has 5 120."""
    state.write(TOKENIZED_PROMPT, TokenizedPrompt(bytes(4 * 6400), 6400))
    state.write(PREFIX_MATCHES, PrefixMatches({"a": 80}, 100, 64))
    pool.producer.attach(make_request(), (pool.a, pool.b), state)
    forecast = state.read(PREDICTED_TIME)
    assert forecast is not None
    return forecast


def test_a_hot_prefix_counts_in_part_as_cached_at_further_servers_if_that_is_wanted() -> None:
    pool = Pool({"constants": {"replicationCredit": 0.5}})
    # The prior says 0.097 s for 1 280 tokens: 0.7 of a server's time are 72 requests in 10 s.
    *_, forecast = [forecast_of(pool, CycleState()) for _ in range(72)]
    assert forecast.compared_tokens == {"a": 1280}
    forecast = forecast_of(pool, CycleState())
    assert forecast.compared_tokens == {"a": 1280, "b": 3840}
    assert forecast.tokens_of(pool.b) == 6400  # what it will compute
    costs = forecast.costs((pool.a, pool.b))
    (uncredited,) = pool.producer.model.table(("b",), 6400, pool.now).costs()
    assert costs[0] < costs[1] < uncredited


def test_a_request_that_is_tried_again_makes_its_prefix_no_hotter() -> None:
    pool, state = Pool({"constants": {"replicationCredit": 0.5}}), CycleState()
    *_, forecast = [forecast_of(pool, state) for _ in range(200)]
    assert forecast.compared_tokens == {"a": 1280}


def test_no_prefix_is_replicated_ahead_of_need_by_default() -> None:
    pool = Pool()
    *_, forecast = [forecast_of(pool, CycleState()) for _ in range(200)]
    assert forecast.compared_tokens is forecast.tokens


def test_the_first_bytes_of_other_responses_are_the_end_of_the_prompt_and_the_decode() -> None:
    pool = Pool()
    flight = Flight(pool, pool.a, stream=False)
    flight.head()
    flight.body()
    flight.end()
    assert (pool.pending(pool.a), pool.learned()) == (0, 0)


def test_the_head_is_the_first_token_where_servers_are_said_to_do_so() -> None:
    pool = Pool({"headersAreFirstToken": True})
    Flight(pool, pool.a).head()
    assert (pool.pending(pool.a), pool.learned()) == (0, 1)
    Flight(pool, pool.a, stream=False).head()
    assert (pool.pending(pool.a), pool.learned()) == (1, 1)


@pytest.mark.parametrize("stream", [True, False])
def test_without_bodies_the_servers_counter_shows_first_tokens(stream: bool) -> None:
    pool = Pool()
    flights = [Flight(pool, pool.a, stream=stream) for _ in range(2)]
    pool.now += 0.5
    pool.page(pool.a, prompts=1, running_requests=2)
    assert (pool.pending(pool.a), pool.learned()) == (1, 1)
    pool.now += 0.1
    for flight in flights:
        flight.head()
        flight.end(EndCause.ENDED)
    assert (pool.pending(pool.a), pool.learned()) == (0, 1)
    # The second is on the next page, but its end has reported it.
    pool.now += 0.1
    Flight(pool, pool.a)
    pool.page(pool.a, prompts=2)
    assert pool.pending(pool.a) == 1


@pytest.mark.parametrize(
    "cause", [EndCause.CLIENT_DISCONNECT, EndCause.TIMED_OUT, EndCause.EVICTED]
)
def test_a_request_that_is_given_up_teaches_nothing(cause: EndCause) -> None:
    pool = Pool()
    flight = Flight(pool, pool.a)
    flight.end(cause)
    assert (pool.pending(pool.a), pool.learned()) == (0, 0)
    assert pool.producer.model.endpoint("a").failures == 0


@pytest.mark.parametrize(
    ("status", "failures"),
    [pytest.param(503, 1, id="5xx excludes"), pytest.param(429, 0, id="4xx does not")],
)
def test_errors_before_the_first_token(status: int, failures: int) -> None:
    pool = Pool()
    flight = Flight(pool, pool.a)
    flight.head(status)
    flight.end()
    model = pool.producer.model
    assert (pool.pending(pool.a), pool.learned()) == (0, 0)
    assert model.endpoint("a").failures == failures


def test_a_retry_moves_the_request_and_excludes_the_server_that_failed() -> None:
    pool = Pool()
    flight = Flight(pool, pool.a)
    flight.served_by = pool.b
    flight.head()
    assert (pool.pending(pool.a), pool.pending(pool.b)) == (0, 1)
    assert pool.producer.model.endpoint("a").failures == 1
    flight.body()
    flight.end()
    assert pool.pending(pool.b) == 0


def test_the_prompt_is_where_it_is_computed() -> None:
    pool = Pool()
    flight = Flight(pool, pool.b, prefill=pool.a)
    assert (pool.pending(pool.a), pool.pending(pool.b)) == (1, 0)
    flight.head()
    assert (pool.pending(pool.a), pool.pending(pool.b)) == (1, 0)
    flight.body()
    assert pool.producer.model.endpoint("a").in_flight == 0  # b decodes
    flight.end()
    assert pool.producer.model.endpoint("a").decode_seconds == 0.0


def test_a_prompt_that_waits_for_a_slot_gets_that_of_one_that_is_decoded_elsewhere() -> None:
    pool = Pool()
    for _ in range(2):
        pool.page(pool.a, waiting_requests=1, running_requests=1)
    first, second = (Flight(pool, pool.b, prefill=pool.a) for _ in range(2))
    model = pool.producer.model.endpoint("a")
    assert len(model.unstarted) == 1
    pool.now += 0.1
    for flight in (first, second):
        flight.head()
        flight.body()
        assert not model.unstarted
    assert (model.in_flight, pool.learned()) == (0, 2)


def test_a_request_without_a_forecast_is_none_of_its_business() -> None:
    pool, state = Pool(), CycleState()
    result = SchedulingResult(
        {"default": ProfileResult("default", (ScoredEndpoint(pool.a, 1.0),))}, "default"
    )
    pool.producer.pre_request(make_request(), result, state)
    head = ResponseHead(200, {})
    pool.producer.response_headers(make_request(), head, pool.a, state)
    pool.producer.response_body_started(make_request(stream=True), pool.a, state)
    pool.producer.response_complete(make_request(), pool.a, EndCause.COMPLETED, state)
    assert pool.pending(pool.a) == 0


def test_what_was_learned_survives_a_reload_with_other_parameters() -> None:
    pool = Pool()
    flight = Flight(pool, pool.a)
    before = pool.producer
    pool.producer = pool.make({"constants": {"roomSeconds": 0.5}})
    assert pool.producer.model is before.model
    assert pool.producer.model.constants.room_seconds == 0.5
    pool.now += 0.4
    flight.head()
    flight.body()  # of the request before the reload
    before.close()
    assert pool.learned() == 1
    pool.page(pool.a, prompts=0)
    Flight(pool, pool.a)
    pool.now += 0.5
    pool.page(pool.a, prompts=2)  # one page is one page, after the reload, too
    assert pool.learned() == 2
    assert len(pool.a.load.observers) == 1


def test_a_reload_that_is_rolled_back_gives_the_first_one_its_endpoints_back() -> None:
    pool = Pool()
    second = pool.make({"constants": {"roomSeconds": 0.5}})
    for endpoint in (pool.a, pool.b):
        pool.producer.endpoint_added(endpoint)
    second.close()
    assert pool.producer.model.constants.room_seconds == 0.15
    assert len(pool.a.load.observers) == 1


def test_an_endpoint_that_leaves_is_forgotten() -> None:
    pool = Pool()
    flight = Flight(pool, pool.a)
    pool.producer.endpoint_removed(pool.a)
    assert list(pool.producer.model.endpoints) == ["b"]
    assert pool.a.load.observers == []
    flight.head()
    flight.end()
    assert list(pool.producer.model.endpoints) == ["b"]


def test_an_endpoint_that_changes_its_address_is_observed_again() -> None:
    pool = Pool()
    former, pool.a = pool.a, make_endpoint("a", address="10.0.0.9:8000")
    pool.a.attributes = dict(former.attributes)
    pool.producer.endpoint_removed(former)
    pool.producer.endpoint_added(pool.a)
    pool.page(pool.a, prompts=5)
    Flight(pool, pool.a)
    pool.now += 0.1
    pool.page(pool.a, prompts=6)
    assert (pool.pending(pool.a), pool.learned()) == (0, 1)
    assert former.load.observers == []


def test_closing_leaves_nothing_at_the_endpoints() -> None:
    pool = Pool()
    pool.producer.close()
    assert pool.a.load.observers == pool.b.load.observers == []
    assert pool.a.attributes == {}


def test_a_state_file_continues_after_a_restart(tmp_path: Path) -> None:
    parameters = {"stateFile": str(tmp_path / "state.json"), "stateIntervalSeconds": 10}
    pool = Pool(parameters)
    for _ in range(50):
        first_token_after(pool, 0.4)
    pool.producer.close()
    state_written()
    again = Pool(parameters)
    assert again.learned() == 50
    assert again.producer.model.learner.serial.predict(1.0, 0) == pytest.approx(0.4, rel=0.05)


async def test_the_event_loop_does_not_wait_for_the_state_file(tmp_path: Path) -> None:
    earlier = Pool()
    for _ in range(50):
        first_token_after(earlier, 0.4)
    state = msgspec.json.encode(earlier.producer.model.state())
    pipe = tmp_path / "state.json"
    os.mkfifo(pipe)
    pool = Pool({"stateFile": str(pipe), "stateIntervalSeconds": 10})  # a thread waits for the pipe
    first_token_after(pool, 20.0)
    assert pool.learned() == 1
    assert pipe.is_fifo()  # and not replaced: what it has is not known yet
    await asyncio.to_thread(pipe.write_bytes, state)
    await file_read()
    assert pool.learned() == 50
    pool.now += 10.0
    Flight(pool, pool.a)
    state_written()
    assert pipe.is_file()


async def test_a_state_file_that_has_learned_less_is_not_used(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path / "state.json"))
    earlier = Pool()
    first_token_after(earlier, 0.4)
    await asyncio.to_thread(file.write, earlier.producer.model.state())
    pool = Pool({"stateFile": str(tmp_path / "state.json")})
    for _ in range(2):
        first_token_after(pool, 0.2)
    await file_read()
    assert pool.learned() == 2


def test_its_state_and_metrics_are_for_operators() -> None:
    pool = Pool({"constants": {"trustSamples": 2}})
    with capture_logs() as logs:
        for _ in range(3):
            flight = Flight(pool, pool.a)
            pool.now += 0.08
            flight.head()
            flight.body()
    assert [log["event"] for log in logs] == ["predicted times are used"]
    state = pool.producer.dump_state()
    assert state["mode"] == "serial"
    assert state["is_trusted"] is True
    assert state["first_tokens"] == 3
    endpoints = state["endpoints"]
    assert isinstance(endpoints, dict)
    assert endpoints["a"]["in_flight"] == 3
    assert endpoints["a"]["before_first_token"] == 0
    gauges = pool.producer.gauges
    assert gauges.is_trusted() == {(): 1.0}
    assert gauges.error_ratio()[()] < 1.0
    assert gauges.slowness_by_endpoint() == {("a",): 1.0, ("b",): 1.0}


def test_the_note_says_what_was_predicted() -> None:
    pool = Pool({"constants": {"trustSamples": 0}})
    for _ in range(5):
        Flight(pool, pool.b, tokens=0)
    state = make_state(
        {
            TOKENIZED_PROMPT: TokenizedPrompt(b"", 5200),
            PREFIX_MATCHES: PrefixMatches({"b": 2}, 2, 64),
        }
    )
    pool.producer.attach(make_request(), (pool.a, pool.b), state)
    forecast = state.read(PREDICTED_TIME)
    assert forecast is not None
    forecast.costs((pool.a, pool.b))
    (note,) = state.read(DECISION_NOTES) or ()
    # 0.02 + 5.2 * 0.06 = 0.33 s at a. Only b has prompts ahead, so no others are delayed.
    assert note.sentences()[0].startswith(
        "a: 0.33 s expected: 0.00 wait, 0.33 prefill of 5 200 uncached tokens at 1x speed,"
        " 0.00 delay to others, 0.00 evictions"
    )
    assert note.sentences()[1].startswith("b: ")


def test_the_note_says_that_predictions_are_not_trusted() -> None:
    pool = Pool()
    state = make_state({TOKENIZED_PROMPT: TokenizedPrompt(b"", 5200)})
    pool.producer.attach(make_request(), (pool.a, pool.b), state)
    (note,) = state.read(DECISION_NOTES) or ()
    assert "not trusted" in note.sentences()[0]


def test_the_time_for_which_a_request_was_held_is_learned() -> None:
    pool = Pool()
    Flight(pool, pool.a)
    assert pool.producer.model.learner.mean_held == 0.0
    request = make_request()
    state = make_state({TOKENIZED_PROMPT: TokenizedPrompt(b"", 1000)})
    for _ in range(3):
        pool.producer.attach(request, (pool.a, pool.b), state)
        pool.now += 1.0
    profiles = {"default": ProfileResult("default", (ScoredEndpoint(pool.a, 1.0),))}
    pool.producer.pre_request(request, SchedulingResult(profiles, "default"), state)
    # Tried at 0, 1 and 2 s, so held for 2 s; the latest request has 2 % of the weight.
    assert pool.producer.model.learner.mean_held == pytest.approx(0.04)


def test_a_request_that_is_tried_again_has_the_note_of_the_last_try() -> None:
    pool = Pool()
    state = make_state({TOKENIZED_PROMPT: TokenizedPrompt(b"", 5200)})
    of_another = Note()
    state.write(DECISION_NOTES, (of_another,))
    for _ in range(3):
        pool.now += 1
        pool.producer.attach(make_request(), (pool.a, pool.b), state)
    assert state.read(DECISION_NOTES) == (of_another, state.read(PREDICTED_TIME))


def test_an_unknown_constant_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown field `roomSecond`"):
        make_plugin(PredictedTimeProducer, {"constants": {"roomSecond": 1}})


def test_the_state_file_is_written_while_there_are_requests(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    pool = Pool({"stateFile": str(path), "stateIntervalSeconds": 10})
    Flight(pool, pool.a)
    pool.now += 10.0
    Flight(pool, pool.a)
    state_written()
    assert path.exists()


def test_an_instance_without_requests_leaves_the_state_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    Pool({"stateFile": str(path)}).producer.close()
    assert not path.exists()


def test_an_endpoint_that_comes_back_has_the_requests_that_are_still_in_flight_there() -> None:
    pool = Pool()
    flights = [Flight(pool, pool.a) for _ in range(2)]
    pool.page(pool.a, prompts=0)
    pool.producer.endpoint_removed(pool.a)
    pool.now += 5.0
    pool.producer.endpoint_added(pool.a)
    assert pool.pending(pool.a) == 2
    assert len(pool.a.load.observers) == 1
    pool.page(pool.a, prompts=1)
    assert pool.pending(pool.a) == 1
    assert pool.learned() == 0  # nobody saw when in these 5 s its first token came
    later = Flight(pool, pool.a)
    for flight in flights:
        flight.head()
        flight.end()
    assert pool.pending(pool.a) == 1
    later.head()
    later.body()
    assert (pool.pending(pool.a), pool.learned()) == (0, 1)


def test_a_request_whose_end_was_not_passed_on_is_ended_by_a_page() -> None:
    pool = Pool()
    lost, flight = (Flight(pool, pool.a) for _ in range(2))
    prefilled = Flight(pool, pool.b, prefill=pool.a)
    prefilled.head()  # its place at a is released, but it has no first token yet
    pool.page(pool.a, prompts=0)
    assert pool.pending(pool.a) == 3
    lost.place.release(pool.now)  # guard rails had disabled the producer
    pool.page(pool.a, prompts=0)
    assert pool.pending(pool.a) == 2
    flight.end()
    pool.page(pool.a, prompts=0)
    assert pool.pending(pool.a) == 1


def test_an_endpoint_that_comes_back_without_requests_begins_anew() -> None:
    pool = Pool()
    Flight(pool, pool.a).end()
    before = pool.producer.model.endpoint("a")
    pool.producer.endpoint_removed(pool.a)
    pool.producer.endpoint_added(pool.a)
    assert pool.producer.model.endpoint("a") is not before
    assert len(pool.a.load.observers) == 1


def test_a_server_of_the_same_name_has_no_requests_of_the_former_one() -> None:
    pool = Pool()
    flight = Flight(pool, pool.a)
    former, pool.a = pool.a, make_endpoint("a", address="10.0.0.9:8000")
    pool.a.attributes = dict(former.attributes)
    pool.producer.endpoint_removed(former)
    pool.producer.endpoint_added(pool.a)
    assert pool.pending(pool.a) == 0
    flight.head(503)
    flight.end()
    assert pool.producer.model.endpoint("a").failures == 0


def test_a_retry_has_the_tokens_that_its_new_server_lacks_and_teaches_no_time() -> None:
    pool = Pool({"headersAreFirstToken": True})
    state = make_state(
        {
            TOKENIZED_PROMPT: TokenizedPrompt(b"", 1280),
            PREFIX_MATCHES: PrefixMatches({"a": 20}, 20, 64),
        }
    )
    flight = Flight(pool, pool.a, state=state)
    (request,) = pool.producer.model.endpoint("a").requests
    assert request.tokens == 0
    pool.now += 2.0
    flight.served_by = pool.b
    flight.head()  # nobody knows when it was sent to b
    (request,) = pool.producer.model.endpoint("b").requests
    assert request.tokens == 1280
    assert (pool.pending(pool.b), pool.learned()) == (0, 0)


@pytest.mark.parametrize(
    ("status", "source", "failures"),
    [
        pytest.param(500, SERVER, 0, id="the decode server has failed"),
        pytest.param(503, UNKNOWN, 0, id="the decode server takes none"),
        pytest.param(502, UNKNOWN, 1, id="the decode server could not reach the other"),
        pytest.param(504, SERVER, 1, id="the decode server waited for the other in vain"),
        pytest.param(504, GATEWAY_FOR_SERVER, 0, id="the gateway waited for the decode server"),
    ],
)
def test_an_error_of_the_decode_server_does_not_exclude_the_prefill_server(
    status: int, source: ResponseSource, failures: int
) -> None:
    pool = Pool()
    flight = Flight(pool, pool.b, prefill=pool.a)
    flight.head(status, source=source)
    flight.end()
    assert pool.pending(pool.a) == 0
    failed = [pool.producer.model.endpoint(name).failures for name in "ab"]
    assert failed == [failures, 0]


@pytest.mark.parametrize(
    ("source", "failures"),
    [
        pytest.param(GATEWAY, 0, id="the gateway's circuit breaker"),
        pytest.param(GATEWAY_FOR_SERVER, 1, id="the gateway got no response"),
    ],
)
def test_a_response_that_the_gateway_made_for_its_own_reasons_excludes_no_server(
    source: ResponseSource, failures: int
) -> None:
    pool = Pool()
    flight = Flight(pool, pool.a)
    flight.head(503, source=source)
    flight.end()
    assert pool.pending(pool.a) == 0
    assert pool.producer.model.endpoint("a").failures == failures


def test_a_second_try_that_responds_first_moves_the_request_and_excludes_no_server() -> None:
    pool = Pool()
    flight = Flight(pool, pool.a)
    flight.served_by = pool.b
    flight.head(is_second_try=True)
    assert (pool.pending(pool.a), pool.pending(pool.b)) == (0, 1)
    assert pool.producer.model.endpoint("a").failures == 0


def unseen_responses(pool: Pool, prompts: int = 0) -> None:
    """Let ``a`` send responses whose first tokens are not seen by the body."""
    for number in range(8):
        flight = Flight(pool, pool.a)
        pool.now += 0.5
        flight.head()
        flight.end(EndCause.ENDED)
        pool.page(pool.a, prompts=prompts and prompts + number)


def test_a_server_whose_first_tokens_nobody_sees_is_not_taken_for_one_that_hangs() -> None:
    pool = Pool()
    unseen_responses(pool)
    flight = Flight(pool, pool.a)
    pool.now += 5.0  # the prior says 0.08 s
    pool.page(pool.a, prompts=0, running_requests=1)
    assert (pool.pending(pool.a), pool.learned()) == (0, 0)
    assert pool.producer.model.wait("a", pool.now) == 0.0
    pool.now += 1.0
    flight.head()
    flight.body()  # now its first tokens are seen
    assert pool.learned() == 0  # when this one came was assumed
    Flight(pool, pool.a)
    pool.now += 5.0
    pool.page(pool.a, prompts=0, running_requests=1)
    assert pool.pending(pool.a) == 1
    assert pool.producer.model.wait("a", pool.now) > 1.0


def test_a_server_that_counts_its_first_tokens_may_hang() -> None:
    pool = Pool()
    pool.page(pool.a, prompts=1)
    unseen_responses(pool, prompts=2)
    Flight(pool, pool.a)
    pool.now += 5.0
    pool.page(pool.a, prompts=9)
    assert pool.pending(pool.a) == 1
    assert pool.producer.model.wait("a", pool.now) > 1.0


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        ({"modeEnter": 0.9}, "modeEnter is 0.9, but it must be at most modeLeave, which is 0.85"),
        ({"trustBelow": 3}, "trustBelow is 3, but it must be at most distrustAbove, which is 2"),
        ({"breakerMostSeconds": 0.1}, "breakerSeconds is 0.5, but .* breakerMostSeconds"),
    ],
)
def test_limits_in_the_wrong_order_are_refused(constants: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_plugin(PredictedTimeProducer, {"constants": constants})
