"""The record of a decision: its inputs, scores and outcome, and the facts that are left out."""

import gc
import json
import tracemalloc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from admin.recorded import STARTED_AT, Recorded
from epp.parsing.plugins import Usage
from epp.request_control import DECISION_NOTES, DataProducer, EndCause, RequestError
from epp.scheduling import CycleState, Endpoint, EndpointMetrics, Filter, LLMRequest, Plugin
from epp.testing import make_endpoint
from tools.harness.request_control import BODY, NotingPlugin, RefusingFilter

SECRET = "Bearer s3cret"
PROMPT = "a prompt that nobody may read"


class Keeps(Filter):
    """Keeps the endpoints of some names."""

    type = "keeps"

    def __init__(self, name: str, *names: str) -> None:
        self.name = name
        self.names = names

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [each for each in endpoints if each.name in self.names]


def three(**of_c: Any) -> list[Endpoint]:
    return [
        make_endpoint("default/a", address="10.0.0.1:8000", requested_at=99.5),
        make_endpoint("default/b", address="10.0.0.2:8000", waiting_requests=9, requested_at=99.5),
        make_endpoint("default/c", address="10.0.0.3:8000", waiting_requests=3, **of_c),
    ]


def test_a_record_has_the_values_of_the_decision_and_not_those_of_later() -> None:
    recorded = Recorded(three(kv_cache_usage=0.25, labels={"zone": "x"}))
    endpoints = recorded.epp.endpoints
    routed = recorded.epp.handle()
    endpoints[2].metrics = EndpointMetrics(waiting_requests=50)
    endpoints[2].load.assume(waiting=50, running=50, kv_cache_usage=1.0)
    for _ in range(3):
        recorded.epp.handle(request_id="later")
    routed.body_sent()

    record = recorded.record()
    assert [each.endpoint for each in record.inputs] == ["default/a", "default/b", "default/c"]
    a, _, c = record.inputs
    assert (a.in_flight, a.waiting_requests, a.metrics_age_seconds) == (0, 0, 0.5)
    assert (c.waiting_requests, c.kv_cache_usage, c.metrics_age_seconds) == (3, 0.25, None)
    assert (c.labels, c.page) == ({"zone": "x"}, {"waiting_requests": 3, "kv_cache_usage": 0.25})
    assert {each.state for each in record.inputs} == {"unwatched"}
    (profile,) = record.profiles
    assert (profile.name, profile.is_primary, profile.is_shadow) == ("default", True, False)
    assert profile.endpoints == ["default/a", "default/b", "default/c"]
    (scorer,) = profile.scorers
    # The queue scorer: (most - own) / (most - least) of the waiting requests 0, 9 and 3.
    assert (scorer.name, scorer.weight, scorer.values) == ("queue", 1.0, [1.0, 0.0, 6 / 9])
    assert profile.totals == [1.0, 0.0, 6 / 9]
    assert (profile.picker, profile.picked, profile.ties) == ("pick", ["default/a"], 1)
    assert profile.margin == record.margin == 1 - 6 / 9
    assert (record.endpoint, record.address, record.score) == ("default/a", "10.0.0.1:8000", 1.0)
    assert record.decided_at == STARTED_AT + 100.0
    assert (record.outcome, record.status, record.duration_seconds) == (None, None, None)
    assert record.why == (
        "default/a had the highest total, 1, 0.333 above the next, mostly by queue, among 3"
        " endpoints."
    )
    assert record.reservation is not None
    assert record.reservation.destination == "10.0.0.1:8000"


def test_the_outcome_joins_the_decision() -> None:
    recorded = Recorded(three())
    routed = recorded.epp.handle()
    recorded.clock.now += 0.25
    routed.served_by("10.0.0.3:8000")
    routed.response_started(200)
    routed.response_seen(
        Usage(prompt_tokens=40, completion_tokens=7, cached_tokens=16),
        body_bytes=10,
        began_at=recorded.clock.now,
        ended_at=recorded.clock.now,
        is_whole=True,
    )
    recorded.clock.now += 0.5
    routed.close(EndCause.COMPLETED)
    record = recorded.record()
    assert (record.status, record.outcome) == (200, "completed")
    assert (record.first_byte_seconds, record.duration_seconds) == (0.25, 0.75)
    assert (record.endpoint, record.served_by) == ("default/a", "default/c")
    assert record.served_address == "10.0.0.3:8000"
    tokens = (record.prompt_tokens, record.completion_tokens, record.cached_tokens)
    assert tokens == (40, 7, 16)


def test_health_is_recorded_as_it_was() -> None:
    states = {"default/b": "suspect"}
    recorded = Recorded(three(), doubted=lambda: states)
    recorded.epp.handle()
    states = {}
    assert [each.state for each in recorded.record().inputs] == ["healthy", "suspect", "healthy"]


def test_what_each_filter_removed() -> None:
    filters = [Keeps("first", "default/a", "default/c"), Keeps("second", "default/c")]
    recorded = Recorded(three(), filters=[*filters, Keeps("idle", "default/c")])
    recorded.epp.handle()
    record = recorded.record()
    (profile,) = record.profiles
    assert {each.name: each.removed for each in profile.filters} == {
        "first": ["default/b"],
        "second": ["default/a"],
        "idle": [],
    }
    assert (profile.endpoints, profile.margin, record.candidates) == (["default/c"], None, 3)
    assert record.why == "default/c was the only one of 3 endpoints that passed the filters."


def test_a_refused_request_says_which_filters_removed_what() -> None:
    recorded = Recorded(three(), filters=[Keeps("first", "default/a"), RefusingFilter()])
    with pytest.raises(RequestError):
        recorded.epp.handle()
    record = recorded.record()
    assert (record.endpoint, record.score, record.reservation) == ("", None, None)
    assert (record.status, record.outcome) == (429, "refused")
    assert (record.refused_at, record.refused_reason) == ("scheduling", "rejected-saturated")
    (profile,) = record.profiles
    assert {each.name: each.removed for each in profile.filters} == {
        "first": ["default/b", "default/c"],
        "refusing": ["default/a"],
    }
    assert profile.error in record.error
    assert [each.endpoint for each in record.inputs] == ["default/a", "default/b", "default/c"]
    assert record.why.startswith("Refused with 429 at stage scheduling (rejected-saturated): ")


def test_a_body_that_cannot_be_read_is_recorded_without_its_content() -> None:
    recorded = Recorded()
    with pytest.raises(RequestError):
        recorded.epp.handle(b'{"prompt": "' + PROMPT.encode())
    record = recorded.record()
    assert (record.status, record.refused_at, record.model) == (400, "parsing", "")
    assert PROMPT not in str(record)


def test_no_prompt_no_header_and_no_query_is_shown() -> None:
    recorded = Recorded()
    body = json.dumps({"model": "m", "prompt": PROMPT}).encode()
    headers = {"authorization": SECRET, ":path": f"/v1/completions?key={SECRET}"}
    recorded.epp.handle(body, headers).close(EndCause.ENDED)
    record = recorded.record()
    assert record.path == "/v1/completions"
    assert PROMPT not in str(record)
    assert SECRET not in str(record)


def test_a_sample_of_many_decisions_is_recorded_and_the_page_says_its_share() -> None:
    recorded = Recorded(explain_rate=2.0)
    for number in range(10):
        recorded.epp.handle(request_id=f"burst-{number}")
    assert [each.request_id for each in recorded.page().decisions] == ["burst-1", "burst-0"]
    recorded.clock.now += 10.0  # no more than the decisions of one second are saved up
    for number in range(10):
        recorded.epp.handle(request_id=f"again-{number}")
    page = recorded.page()
    assert [each.sequence for each in page.decisions] == [12, 11, 2, 1]
    # Four of twelve up to the newest that is kept; eight more were not recorded.
    assert (page.newest, page.kept, page.sampled) == (20, 4, 4 / 20)


def test_without_a_ring_nothing_is_recorded() -> None:
    recorded = Recorded(explain_decisions=0)
    routed = recorded.epp.handle()
    assert routed.record is None
    routed.close(EndCause.ENDED)
    assert (recorded.page().decisions, recorded.page().kept) == ([], 0)


def test_old_decisions_give_way_to_new_ones_by_number() -> None:
    recorded = Recorded(explain_decisions=2)
    oldest = recorded.epp.handle(request_id="r-0")
    for number in range(1, 4):
        recorded.epp.handle(request_id=f"r-{number}")
    assert [each.request_id for each in recorded.page().decisions] == ["r-3", "r-2"]
    oldest.response_started(200)  # its outcome has no record to join any more
    oldest.close(EndCause.COMPLETED)
    assert [each.outcome for each in recorded.page().decisions] == [None, None]


def test_old_decisions_give_way_to_new_ones_by_memory() -> None:
    recorded = Recorded(explain_bytes=20_000)
    for number in range(100):
        recorded.epp.handle(request_id=f"r-{number}")
    ring = recorded.explanations.ring
    assert 1 < len(ring) < 20
    assert ring.used_bytes <= 20_000


@pytest.mark.parametrize("endpoints", [2, 50, 400])
def test_the_estimate_of_its_memory_is_about_right(endpoints: int) -> None:
    pool = [
        make_endpoint(f"default/{n}", address=f"10.0.0.{n}:8000", waiting_requests=n)
        for n in range(endpoints)
    ]
    recorded = Recorded(pool, explain_bytes=1 << 30, explain_rate=0.0)
    ring = recorded.explanations.ring

    def send(count: int) -> None:
        for number in range(count):
            routed = recorded.epp.handle(request_id=f"request-{number}")
            routed.body_sent()
            routed.close(EndCause.ENDED)

    send(20)
    gc.collect()
    before_bytes = ring.used_bytes
    tracemalloc.start()
    send(200)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 < (ring.used_bytes - before_bytes) / used < 2


def test_an_endpoint_that_left_and_plugins_that_were_replaced_are_freed() -> None:
    class Noting(NotingPlugin):
        """Can be referred to weakly."""

    pool = three()
    recorded = Recorded(pool, plugins=[Noting("noting", [])])
    epp = recorded.epp
    recorded.epp.handle(request_id="old").close(EndCause.ENDED)
    plugins: list[Plugin] = [*epp.plugins]
    freed: list[weakref.ref[object]] = [weakref.ref(pool[2]), weakref.ref(plugins[0])]
    # The pipeline refers to its plugins; compiled, it has no weak references itself.
    assert epp.director.pipeline.pre_request[0].plugin is plugins[0]
    epp.plugins = ()
    epp.director.pipeline = epp.pipeline()
    epp.endpoints = epp.endpoints[:2]
    plugins.clear()
    pool.clear()
    recorded.epp.handle(BODY, request_id="new").close(EndCause.ENDED)
    gc.collect()
    assert [each() for each in freed] == [None, None]
    assert len(recorded.record("old").inputs) == 3


class Note:
    """A note of some sentences, or one that fails."""

    def __init__(self, *sentences: str) -> None:
        self.said = sentences

    def sentences(self) -> Sequence[str]:
        if not self.said:
            raise RuntimeError
        return self.said


class Noting(DataProducer):
    """Leaves a note on each decision."""

    type = "noting"

    def __init__(self, name: str, note: Note) -> None:
        self.name = name
        self.note = note

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        state.write(DECISION_NOTES, (*(state.read(DECISION_NOTES) or ()), self.note))


def test_notes_of_plugins_are_kept_and_one_that_fails_is_left_out() -> None:
    plugins = [
        Noting("first", Note("a: 1 s", "b: 2 s")),
        Noting("second", Note()),
        Noting("third", Note("x" * 10_000)),
    ]
    recorded = Recorded(plugins=plugins)
    with capture_logs() as logs:
        recorded.epp.handle()
    first, second, long = recorded.record().notes
    assert (first, second) == ("a: 1 s", "b: 2 s")
    assert len(long) < 10_000
    assert [log["event"] for log in logs if log["log_level"] == "error"] == [
        "note on a decision failed"
    ]


def test_without_notes_there_are_none() -> None:
    recorded = Recorded()
    recorded.epp.handle()
    assert recorded.record().notes == []
