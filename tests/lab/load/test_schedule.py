"""Closed and open loop on a virtual clock, with responses of given durations."""

import asyncio
from collections.abc import Callable

import pytest

from epp.lab.load import LoadPlan, Progress, Report, run
from epp.lab.results import ErrorKind, Record

MakePlan = Callable[..., LoadPlan]


class SlowSender:
    """Takes `seconds` per request, on the loop's clock."""

    def __init__(self, seconds: float, *, error: ErrorKind | None = None) -> None:
        self.seconds = seconds
        self.error = error
        self.in_flight = 0
        self.peak = 0
        self.started: list[float] = []

    async def __call__(self, index: int, scheduled_at: float, run_started_at: float) -> Record:
        clock = asyncio.get_running_loop().time
        started_at = clock() - run_started_at
        self.started.append(started_at)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        return Record(
            index=index,
            scheduled_at=scheduled_at,
            started_at=started_at,
            finished_at=clock() - run_started_at,
            status=200,
            error=self.error,
        )


async def run_virtually(
    plan: LoadPlan, sender: SlowSender, progress: Callable[[Progress], None] | None = None
) -> Report:
    clock = asyncio.get_running_loop().time
    return await run(plan, sender=sender, clock=clock, progress=progress)


@pytest.mark.looptime
async def test_a_closed_loop_keeps_its_concurrency_and_never_exceeds_it(
    make_plan: MakePlan,
) -> None:
    sender = SlowSender(1.0)
    report = await run_virtually(make_plan(concurrency=4, requests=20), sender)
    assert sender.peak == report.peak_in_flight == 4
    assert report.sent == report.succeeded == 20
    assert report.elapsed_seconds == pytest.approx(5.0)  # 20 requests by 4 clients, 1 s each
    assert report.requests_per_second == pytest.approx(4.0)
    assert report.schedule_delay_ms is None


@pytest.mark.looptime
async def test_fewer_requests_than_clients_sends_no_more(make_plan: MakePlan) -> None:
    sender = SlowSender(1.0)
    report = await run_virtually(make_plan(concurrency=50, requests=3), sender)
    assert report.sent == sender.peak == 3


@pytest.mark.looptime
async def test_a_duration_starts_no_request_after_it_and_awaits_the_rest(
    make_plan: MakePlan,
) -> None:
    # Two clients start at 0.0, 0.4 and 0.8; the last end at 1.2.
    plan = make_plan(concurrency=2, duration_seconds=1.0)
    report = await run_virtually(plan, SlowSender(0.4))
    assert report.succeeded == 6
    assert report.elapsed_seconds == pytest.approx(1.2)


@pytest.mark.looptime
@pytest.mark.parametrize("error", [ErrorKind.REFUSED, ErrorKind.CONNECT])
async def test_a_client_that_cannot_connect_waits_before_it_tries_again(
    make_plan: MakePlan, error: ErrorKind
) -> None:
    sender = SlowSender(0.0, error=error)
    report = await run_virtually(make_plan(concurrency=2, duration_seconds=1.0), sender)
    assert report.failed == 2 * 10  # one try each 0.1 s


@pytest.mark.looptime
async def test_slow_responses_do_not_slow_an_open_loop(make_plan: MakePlan) -> None:
    sender = SlowSender(10.0)
    plan = make_plan(rate=10.0, arrivals="constant", requests=50)
    report = await run_virtually(plan, sender)
    assert sender.started == pytest.approx([n / 10 for n in range(50)])
    assert report.sent == report.succeeded == report.peak_in_flight == 50
    assert report.elapsed_seconds == pytest.approx(14.9)  # the last begins at 4.9 and takes 10 s
    assert report.schedule_delay_ms is not None
    assert report.schedule_delay_ms.p99 == pytest.approx(0.0, abs=0.01)


@pytest.mark.looptime
async def test_poisson_arrivals_are_the_same_for_the_same_seed(make_plan: MakePlan) -> None:
    first, second, other = SlowSender(0.1), SlowSender(3.0), SlowSender(0.1)
    await run_virtually(make_plan(rate=20.0, requests=40, seed=5), first)
    await run_virtually(make_plan(rate=20.0, requests=40, seed=5), second)
    await run_virtually(make_plan(rate=20.0, requests=40, seed=6), other)
    assert first.started == pytest.approx(second.started)
    assert first.started != pytest.approx(other.started)


@pytest.mark.looptime
async def test_an_open_loop_that_is_late_says_so(make_plan: MakePlan) -> None:
    plan = make_plan(rate=10.0, arrivals="constant", requests=10)
    skew = iter([0.0])  # the run's clock starts at 0, then is 2 s ahead: all are late

    def clock() -> float:
        return next(skew, asyncio.get_running_loop().time() + 2.0)

    async def late(index: int, scheduled_at: float, run_started_at: float) -> Record:
        now = clock() - run_started_at
        return Record(index=index, scheduled_at=scheduled_at, started_at=now, finished_at=now)

    report = await run(plan, sender=late, clock=clock)
    assert report.sent == 10
    assert report.schedule_delay_ms is not None
    assert report.schedule_delay_ms.max >= 1100  # the first, due at 0.0, began at 2.0 or later


@pytest.mark.looptime
@pytest.mark.parametrize("pace", [{"concurrency": 3}, {"rate": 3.0, "arrivals": "constant"}])
async def test_cancelling_gives_the_partial_report(
    make_plan: MakePlan, pace: dict[str, object]
) -> None:
    sender = SlowSender(1.0)
    task = asyncio.create_task(run_virtually(make_plan(**pace, requests=1000), sender))
    await asyncio.sleep(4.5)
    task.cancel()
    report = await task
    assert report.interrupted
    assert report.succeeded >= 9
    assert report.unfinished >= 3
    assert report.sent == report.succeeded + report.unfinished
    assert sender.in_flight == 0
    assert not task.cancelled()


@pytest.mark.looptime
async def test_progress_comes_in_intervals_and_once_at_the_end(make_plan: MakePlan) -> None:
    seen: list[Progress] = []
    sender = SlowSender(0.45, error=ErrorKind.RESET)
    await run_virtually(make_plan(concurrency=2, requests=4), sender, seen.append)
    assert [s.elapsed_seconds for s in seen] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.9])
    assert [s.finished for s in seen] == [0, 0, 0, 2, 2, 4]
    assert [s.in_flight for s in seen[1:]] == [2, 2, 2, 2, 0]
    assert seen[-1].failed == seen[-1].sent == 4


@pytest.mark.looptime
async def test_a_bug_in_a_sender_is_not_counted_but_raised(make_plan: MakePlan) -> None:
    async def broken(index: int, scheduled_at: float, run_started_at: float) -> Record:
        raise KeyError("bug")

    with pytest.raises(ExceptionGroup):
        await run(make_plan(), sender=broken)
