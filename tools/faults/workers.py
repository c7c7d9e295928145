"""Workers killed while requests are in flight, one after the other, and their supervisor.

Worker 0 scrapes for all workers at first; after its end, another one scrapes.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM

from tools.faults.processes import PickerProcess, Setting
from tools.faults.traffic import Verdict
from tools.faults.trial import Pace, Scenario, TrialOutcome, after, judge, running, under_way
from tools.harness.worker_processes import worker_places

_WORKERS = 2
_SERVERS = 3
_TOKEN_SECONDS = 0.05
_ENQUEUED = "llm_d_epp_flow_control_request_enqueue_duration_seconds_count"
_QUEUES = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {type: concurrency-detector, parameters: {maxConcurrency: SLOTS}}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
"""
"""Flow control over three servers."""


async def each_worker_killed(setting: Setting, pace: Pace) -> TrialOutcome:
    """SIGKILL to each worker, after the previous one has been restarted."""
    return await _each_killed("each worker killed", setting, pace)


async def each_worker_killed_with_queues(setting: Setting, pace: Pace) -> TrialOutcome:
    """The same while requests wait in flow control, whose queues worker 0 owns at first."""

    def prepared(folder: Path) -> tuple[str, ...]:
        config = folder / "queues.yaml"
        config.write_text(_QUEUES.replace("SLOTS", str(_slots(pace))))
        return "--config-file", str(config)

    name = "each worker killed, with queues"
    outcome = await _each_killed(name, setting, pace, prepared)
    outcome.expect("requests have waited", holds=bool(outcome.facts["waited"]))
    return outcome


async def _each_killed(
    name: str,
    setting: Setting,
    pace: Pace,
    prepare: Callable[[Path], tuple[str, ...]] = lambda _: (),
) -> TrialOutcome:
    several = replace(setting, workers=_WORKERS)
    async with running(several, pace, goes_on=True, prepare=prepare) as run:
        picker = run.site.picker
        moments, back_after = [], 0.0
        for number in range(_WORKERS):
            await run.until_share((number + 1) / (_WORKERS + 1))
            pids = await asyncio.to_thread(picker.workers)
            moments.append(time.monotonic())
            os.kill(pids[number], SIGKILL)
            await picker.until("llm_d_epp_worker_restarts_total", number + 1)
            await picker.until("llm_d_epp_worker_ready", _WORKERS)
            back_after = max(back_after, time.monotonic() - moments[-1])
        await run.end(after_success_since=time.monotonic())
        await picker.until_idle()
        await _until_shared_is_idle(picker)
        waited = await picker.metric(_ENQUEUED)
        traffic = run.traffic
        before = [traffic.verdicts(under_way(moment)) for moment in moments]
        outcome = await judge(
            name,
            run,
            waited=waited,
            under_way=sum(each.total() for each in before),
            under_way_truncated=sum(each[Verdict.TRUNCATED] for each in before),
            refused=traffic.verdicts()[Verdict.REFUSED],
            seconds_until_it_is_back=back_after,
        )
        later = [
            traffic.verdicts(lambda each, at=at: at + 1 <= each.began_at < at + 2)  # type: ignore[misc]
            for at in moments
        ]
    if setting.fail_open:
        outcome.expect("no request fails", holds=set(outcome.verdicts) == {Verdict.WHOLE})
        failures = Counter(each.failure for each in traffic.sent if each.failure)
        outcome.broken += [f"{count} times {text}" for text, count in failures.most_common(5)]
    outcome.expect("the others go on", holds=all(set(each) <= {Verdict.WHOLE} for each in later))
    return outcome


async def workers_stopped(setting: Setting, pace: Pace) -> TrialOutcome:
    """SIGTERM to the supervisor, which drains the workers."""
    async with running(replace(setting, workers=_WORKERS), pace) as run:
        await run.until_share(0.5)
        picker, signalled_at = run.site.picker, time.monotonic()
        picker.signal(SIGTERM)
        status = await picker.wait()
        await run.end()
        before = run.traffic.verdicts(under_way(signalled_at))
        outcome = await judge("SIGTERM to the supervisor", run, under_way=before.total())
    outcome.expect("exit status 0", holds=status == 0)
    outcome.expect("what was under way ends well", holds=set(before) <= {Verdict.WHOLE})
    return outcome


async def supervisor_killed(setting: Setting, pace: Pace) -> TrialOutcome:
    """SIGKILL to the supervisor: the workers drain and end, so that another one can start.

    The other one removes the sockets of the first one's workers.
    """
    async with running(replace(setting, workers=_WORKERS), pace, goes_on=True) as run:
        await run.until_share(0.4)
        picker, killed_at = run.site.picker, time.monotonic()
        workers = await asyncio.to_thread(worker_places, picker.process.pid)
        picker.signal(SIGKILL)
        await picker.wait()
        async with asyncio.timeout(30):
            while any(map(_runs, workers)):  # noqa: ASYNC110 - they are not our children
                await asyncio.sleep(0.02)
        ended_after = time.monotonic() - killed_at
        await run.site.start_picker()
        serves_at = time.monotonic()
        await run.end(after_success_since=serves_at)
        before = run.traffic.verdicts(under_way(killed_at))
        later = run.traffic.verdicts(after(serves_at + 1))
        outcome = await judge(
            "SIGKILL to the supervisor",
            run,
            under_way=before.total(),
            under_way_truncated=before[Verdict.TRUNCATED],
            seconds_until_workers_end=ended_after,
        )
    outcome.broken = [each for each in outcome.broken if "the supervisor has ended" not in each]
    outcome.expect("what was under way ends well", holds=set(before) <= {Verdict.WHOLE})
    outcome.expect("the last requests succeed", holds=set(later) <= {Verdict.WHOLE})
    left = [each.folder for each in workers.values() if each.folder_path.exists()]
    outcome.expect("the next one removes the sockets", holds=bool(workers) and not left)
    return outcome


def _slots(pace: Pace) -> int:
    """Return the requests in flight per server at which some requests wait, but none for long."""
    seconds = (2 * pace.short_tokens + pace.long_tokens) / 3 * _TOKEN_SECONDS
    return max(1, round(pace.rate * seconds / _SERVERS))


async def _until_shared_is_idle(picker: PickerProcess) -> None:
    """Wait until no worker counts requests of other workers, such as those of a dead one."""
    async with asyncio.timeout(20):
        for worker in range(_WORKERS):
            while any(  # noqa: ASYNC110 - nothing tells of it
                each["in_flight"] for each in await picker.endpoints(worker)
            ):
                await asyncio.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


SCENARIOS: tuple[Scenario, ...] = (
    each_worker_killed,
    each_worker_killed_with_queues,
    workers_stopped,
    supervisor_killed,
)
