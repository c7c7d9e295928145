"""Runs of workloads: send times, the prompts of a conversation, and headers."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from epp.lab.load import LoadPlan, PlanError, Report, run
from epp.lab.results import ErrorKind, Record
from epp.lab.traffic import Conversation, Segment, TrafficRequest, Workload, load_traffic

from .model_server import FakeServer, StartServer, http_response, sends

MakePlan = Callable[..., LoadPlan]
CHAT: dict[str, Any] = {
    "generator": "conversations",
    "system_tokens": 8,
    "turns": 3,
    "question_tokens": 4,
    "output_tokens": 5,
    "think_time": "10ms",
}


def make_workload_plan(url: str, workload: Workload, **fields: Any) -> LoadPlan:
    return LoadPlan(url=url, model="m", workload=workload, **fields)


class Recorder:
    """Answers after `seconds` on the loop's clock; notes what came when."""

    def __init__(self, seconds: float, failing: frozenset[int] = frozenset()) -> None:
        self.seconds = seconds
        self.failing = failing
        self.started: dict[int, float] = {}
        self.due: dict[int, float] = {}
        self.peak = self.in_flight = 0

    async def __call__(self, index: int, scheduled_at: float, run_started_at: float) -> Record:
        clock = asyncio.get_running_loop().time
        self.started[index] = started_at = clock() - run_started_at
        self.due[index] = scheduled_at
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(self.seconds)
        self.in_flight -= 1
        return Record(
            index=index,
            scheduled_at=scheduled_at,
            started_at=started_at,
            finished_at=clock() - run_started_at,
            status=200,
            error=ErrorKind.RESET if index in self.failing else None,
        )


async def run_virtually(workload: Workload, sender: Recorder, **fields: Any) -> Report:
    clock = asyncio.get_running_loop().time
    plan = make_workload_plan("http://127.0.0.1:1", workload, **fields)
    return await run(plan, sender=sender, clock=clock)


def workload_of(*conversations: Conversation, concurrency: int | None = None) -> Workload:
    return Workload(lambda: iter(conversations), concurrency=concurrency)


def turn(index: int, *, at: float | None = None, follows: int | None = None) -> TrafficRequest:
    segments: tuple[Segment, ...] = (Segment(index, 4),)
    if follows is not None:
        segments = (Segment(follows, 4), Segment(follows, 2, is_output=True), *segments)
    return TrafficRequest(
        index=index,
        arrives_at=at,
        follows=follows,
        think_seconds=0.0 if follows is None else 0.5,
        segments=segments,
        output_tokens=2,
    )


@pytest.mark.looptime
async def test_requests_are_sent_at_their_times_or_after_those_they_follow() -> None:
    workload = workload_of(
        [turn(0, at=1.0), turn(1, follows=0), turn(2, follows=1)],
        [turn(3, at=1.5)],
        [turn(4, at=2.0), turn(5, follows=4), turn(6, follows=4)],
    )
    sender = Recorder(2.0)
    report = await run_virtually(workload, sender)
    assert report.errors == {}
    # Each follows 0.5 s after the end of the other, which takes 2 s; 5 and 6 follow the same one.
    times = {0: 1.0, 1: 3.5, 2: 6.0, 3: 1.5, 4: 2.0, 5: 4.5, 6: 4.5}
    assert sender.started == pytest.approx(times)
    assert sender.due == pytest.approx(times)
    assert report.schedule_delay_ms is not None
    assert report.schedule_delay_ms.max == pytest.approx(0.0, abs=0.01)


@pytest.mark.looptime
async def test_clients_of_a_closed_loop_send_one_conversation_each_at_a_time() -> None:
    conversations = [[turn(2 * n), turn(2 * n + 1, follows=2 * n)] for n in range(6)]
    sender = Recorder(1.0)
    report = await run_virtually(workload_of(*conversations, concurrency=2), sender)
    assert sender.peak == report.peak_in_flight == 2
    # 3 conversations for each client, 2 requests of 1 s and 0.5 s between them.
    assert report.elapsed_seconds == pytest.approx(7.5)
    assert report.schedule_delay_ms is None


@pytest.mark.looptime
@pytest.mark.parametrize("concurrency", [None, 1])
async def test_a_conversation_ends_with_its_first_failure(concurrency: int | None) -> None:
    at = None if concurrency else 0.0
    workload = workload_of(
        [turn(0, at=at), turn(1, follows=0), turn(2, follows=1)],
        [turn(3, at=at), turn(4, follows=3)],
        concurrency=concurrency,
    )
    report = await run_virtually(workload, sender := Recorder(1.0, frozenset({1})))
    assert sorted(sender.started) == [0, 1, 3, 4]
    assert report.failed == 1


@pytest.mark.looptime
@pytest.mark.parametrize("concurrency", [None, 1])
async def test_a_duration_ends_a_workload(concurrency: int | None) -> None:
    def endless() -> Iterator[Conversation]:
        for n in range(0, 10**9, 2):
            yield [turn(n, at=None if concurrency else n), turn(n + 1, follows=n)]

    sender = Recorder(1.0)
    workload = Workload(endless, concurrency=concurrency)
    report = await run_virtually(workload, sender, duration_seconds=5.0)
    assert max(sender.started.values()) < 5.0
    assert report.sent == len(sender.started) > 3


def bodies(server: FakeServer) -> list[dict[str, Any]]:
    return server.requests


RESPONSE = b'{"choices":[{"text":"The response."}],"usage":{"completion_tokens":5}}'


async def test_prompts_contain_what_was_answered(start_server: StartServer) -> None:
    server = await start_server(sends(http_response(RESPONSE)))
    workload = load_traffic(CHAT | {"arrivals": {"rate": 50}, "limit": 3})
    report = await run(make_workload_plan(server.url, workload, stream=False, ignore_eos=True))
    assert report.errors == {}
    first, second, third = (body["prompt"] for body in bodies(server))
    assert len(first) == 4 * (8 + 4)
    assert second.startswith(first + "The response.")
    assert len(second) == len(first) + len("The response.") + 4 * 4
    assert third.startswith(second + "The response.")
    assert bodies(server)[0]["ignore_eos"] is True
    assert bodies(server)[0]["max_tokens"] == 5
    assert {record.session for record in report.records} == {"s0"}


EVENTS = (
    b'data: {"choices":[{"delta":{"content":"One "}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"two."}}]}\n\ndata: [DONE]\n\n'
)


async def test_a_chat_has_messages_by_turns(start_server: StartServer) -> None:
    headers = "content-type: text/event-stream\r\n"
    server = await start_server(sends(http_response(EVENTS, headers=headers)))
    workload = load_traffic(CHAT | {"arrivals": {"concurrency": 1}, "limit": 2})
    report = await run(make_workload_plan(server.url, workload, api="chat"))
    assert report.errors == {}
    first, second = (body["messages"] for body in bodies(server))
    assert [message["role"] for message in first] == ["user"]
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[0] == first[0]
    assert second[1]["content"] == "One two."


async def test_a_seed_changes_texts_but_not_what_they_share(start_server: StartServer) -> None:
    server = await start_server(sends(http_response(RESPONSE)))
    document = {
        "generator": "shared-prefix",
        "groups": 1,
        "system_tokens": 50,
        "arrivals": {"concurrency": 1},
        "limit": 2,
    }
    for seed in (0, 1):
        plan = make_workload_plan(server.url, load_traffic(document), stream=False, seed=seed)
        await run(plan)
    prompts = [body["prompt"] for body in bodies(server)]
    assert prompts[0][:200] == prompts[1][:200] != prompts[2][:200] == prompts[3][:200]


async def test_labels_become_headers_and_models(start_server: StartServer) -> None:
    server = await start_server(sends(http_response(RESPONSE)))
    labels: dict[str, Any] = {
        "tenants": {"alice": 1},
        "objectives": {"batch": 1},
        "adapters": {"sql": 1},
        "slos": [{"ttft": "1.5s", "tpot": "50ms"}],
    }
    document = {"generator": "random", "arrivals": {"concurrency": 1}, "limit": 1} | labels
    report = await run(make_workload_plan(server.url, load_traffic(document), stream=False))
    (head,) = server.heads
    for line in (
        b"x-llm-d-inference-fairness-id: alice",
        b"x-llm-d-inference-objective: batch",
        b"x-llm-d-slo-ttft-ms: 1500",
        b"x-llm-d-slo-tpot-ms: 50",
        b"x-request-id: " + report.records[0].request_id.encode(),
    ):
        assert b"\r\n" + line + b"\r\n" in head
    assert bodies(server)[0]["model"] == "sql"
    (record,) = report.records
    assert (record.tenant, record.objective, record.adapter) == ("alice", "batch", "sql")
    assert report.tenants["alice"].requests == 1


async def test_the_users_own_headers_are_in_the_records(
    start_server: StartServer, make_plan: MakePlan
) -> None:
    server = await start_server(sends(http_response(RESPONSE)))
    headers = (("X-Request-Id", "mine"), ("X-LLM-D-Inference-Fairness-ID", "bob"))
    report = await run(make_plan(server.url, stream=False, headers=headers))
    assert server.heads[0].lower().count(b"x-request-id") == 1
    assert (report.records[0].request_id, report.records[0].tenant) == ("mine", "bob")


async def test_generated_prompts_draw_labels_too(
    start_server: StartServer, make_plan: MakePlan
) -> None:
    from epp.lab.traffic import LabelMix, Mix

    server = await start_server(sends(http_response(RESPONSE)))
    labels = LabelMix(tenants=Mix.of({"a": 1, "b": 1}), adapters=Mix.of({"": 1, "sql": 1}))
    plan = make_plan(server.url, requests=40, stream=False, labels=labels)
    report, again = await run(plan), await run(plan)
    assert {record.tenant for record in report.records} == {"a", "b"}
    assert {body["model"] for body in bodies(server)} == {"m", "sql"}
    assert [r.tenant for r in report.records] == [r.tenant for r in again.records]


async def test_an_error_without_a_body_says_so(
    start_server: StartServer, make_plan: MakePlan
) -> None:
    server = await start_server(sends(http_response(b"", status="500 Internal Server Error")))
    report = await run(make_plan(server.url))
    assert report.errors["http-500"].first_message == "HTTP 500 without a body"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": 1.0}, "rate: goes without a workload"),
        ({"concurrency": 1}, "concurrency: goes without a workload"),
        ({"requests": 1}, "requests: goes without a workload"),
        ({"abort_share": 0.5}, "abort_share: goes without a workload"),
        ({"duration_seconds": 0.0}, "duration_seconds: 0.0 is not a positive number"),
    ],
)
def test_a_workload_has_its_own_arrivals(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_workload_plan("http://127.0.0.1:1", workload_of([turn(0)]), **fields)


def test_a_plan_is_reported_with_its_traffic() -> None:
    document = {"generator": "random", "arrivals": {"rate": 1}, "limit": 1}
    plan = make_workload_plan("http://127.0.0.1:1", load_traffic(document))
    values = json.loads(json.dumps(plan.to_dict()))
    assert values["traffic"] == document
    assert "workload" not in values
