"""Endpoint pickers that hang, and endpoint pickers that serve although they are not ready.

No connection is refused or closed, so Envoy can notice only by checking their health.
"""

import time
from signal import SIGCONT, SIGSTOP, SIGTERM

from tools.faults.processes import Setting
from tools.faults.traffic import Verdict
from tools.faults.trial import Pace, Run, Scenario, TrialOutcome, after, judge, running

_DELAY = "60"
"""Seconds for which a stopping picker continues to serve: longer than the traffic."""

_NOTICED_SECONDS = 12.0
"""Time after which a check has failed twice and Envoy's threads know, even on a busy machine."""

_REQUESTS = "llm_d_epp_request_total"


async def one_of_two_frozen(setting: Setting, pace: Pace) -> TrialOutcome:
    """One of two pickers behind one Envoy is frozen (SIGSTOP) for the rest of the traffic."""
    async with running(setting, pace, pickers=2) as run:
        return await _frozen("one of two frozen", run)


async def frozen(setting: Setting, pace: Pace) -> TrialOutcome:
    """The only picker is frozen (SIGSTOP) for the rest of the traffic."""
    async with running(setting, pace) as run:
        return await _frozen("frozen", run)


async def _frozen(name: str, run: Run) -> TrialOutcome:
    await run.until_share(0.2)
    picker, frozen_at = run.site.pickers[0], time.monotonic()
    picker.signal(SIGSTOP)
    await run.end()
    picker.signal(SIGCONT)
    traffic, setting = run.traffic, run.site.setting
    later = [each for each in traffic.sent if each.began_at >= frozen_at]
    failed = [each.began_at - frozen_at for each in later if each.verdict is not Verdict.WHOLE]
    # Not by `judge`: in this scenario requests hang until their client leaves.
    outcome = TrialOutcome(
        name,
        setting.name,
        traffic.verdicts(),
        {
            "asked_afterwards": len(later),
            "failed_afterwards": len(failed),
            "seconds_until_last_failure": max(failed, default=None),
        },
    )
    if setting.health_check and (setting.fail_open or len(run.site.pickers) > 1):
        outcome.expect(
            f"none fails that was sent {_NOTICED_SECONDS} s later or more",
            holds=max(failed, default=0.0) < _NOTICED_SECONDS,
        )
    return outcome


async def one_of_two_unready(setting: Setting, pace: Pace) -> TrialOutcome:
    """One of two pickers becomes unready, but continues to serve."""
    drain = ("--drain-delay-seconds", _DELAY)
    async with running(setting, pace, pickers=2, drain=drain) as run:
        return await _unready("one of two not ready", run)


async def unready(setting: Setting, pace: Pace) -> TrialOutcome:
    """The only picker becomes unready, but continues to serve."""
    async with running(setting, pace, drain=("--drain-delay-seconds", _DELAY)) as run:
        return await _unready("not ready", run)


async def _unready(name: str, run: Run) -> TrialOutcome:
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


SCENARIOS: tuple[Scenario, ...] = (frozen, one_of_two_frozen, unready, one_of_two_unready)
