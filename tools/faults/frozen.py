"""Endpoint pickers that accept connections and answer nothing, and one that asks to be left.

Both are seen by a health check only: no connection is refused or closed.
"""

import time
from signal import SIGCONT, SIGSTOP, SIGTERM

from tools.faults.processes import Setting
from tools.faults.traffic import Traffic, Verdict
from tools.faults.trial import Outcome, Pace, Run, after, judge, running

_DELAY = "60"
"""Seconds for which a picker that was told to stop serves on: longer than the traffic."""

_REQUESTS = "llm_d_epp_request_total"


async def one_of_two_frozen(setting: Setting, pace: Pace) -> Outcome:
    """Two pickers behind one Envoy, one of them stopped by the kernel for the whole traffic."""
    async with running(setting, pace, pickers=2) as run:
        return await _frozen("one of two frozen", run)


async def frozen(setting: Setting, pace: Pace) -> Outcome:
    """The only picker is stopped by the kernel for the rest of the traffic."""
    async with running(setting, pace) as run:
        return await _frozen("frozen", run)


async def _frozen(name: str, run: Run) -> Outcome:
    await run.until_share(0.2)
    picker, frozen_at = run.site.pickers[0], time.monotonic()
    picker.signal(SIGSTOP)
    await run.end()
    picker.signal(SIGCONT)
    traffic = run.traffic
    failed = _failed(traffic, frozen_at)
    return await judge(
        name,
        run,
        asked_afterwards=traffic.verdicts(after(frozen_at)).total(),
        failed_afterwards=len(failed),
        seconds_until_last_failure=max(failed, default=None),
        slowest_success_seconds=max(
            (each.ended_at - each.began_at for each in traffic.whole(frozen_at)), default=None
        ),
    )


def _failed(traffic: Traffic, since: float) -> list[float]:
    """Return how long after a moment each request began that failed."""
    failed = [each for each in traffic.sent if each.verdict is not Verdict.WHOLE]
    return [each.began_at - since for each in failed if each.began_at >= since]


async def one_of_two_leaving(setting: Setting, pace: Pace) -> Outcome:
    """One of two pickers is not ready any more, and serves all the same."""
    drain = ("--drain-delay-seconds", _DELAY)
    async with running(setting, pace, pickers=2, drain=drain) as run:
        return await _leaving("one of two not ready", run)


async def leaving(setting: Setting, pace: Pace) -> Outcome:
    """The only picker is not ready any more, and serves all the same."""
    async with running(setting, pace, drain=("--drain-delay-seconds", _DELAY)) as run:
        return await _leaving("not ready", run)


async def _leaving(name: str, run: Run) -> Outcome:
    await run.until_share(0.4)
    picker = run.site.pickers[0]
    before, signalled_at = await picker.metric(_REQUESTS), time.monotonic()
    picker.signal(SIGTERM)
    await run.end()
    outcome = await judge(
        name,
        run,
        asked_afterwards=run.traffic.verdicts(after(signalled_at)).total(),
        asked_of_it=await picker.metric(_REQUESTS) - before,
    )
    outcome.expect("no request fails", holds=set(outcome.verdicts) == {Verdict.WHOLE})
    return outcome
