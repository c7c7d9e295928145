"""The endpoint picker stopped, killed and replaced while requests are in flight.

Each scenario runs traffic through a real Envoy, does one thing to the picker meanwhile, and returns
the outcome of every request and the promises that were broken.
"""

import time
from signal import SIGKILL, SIGTERM

from tools.faults.changes import endpoint_removed, endpoints_emptied, reloaded
from tools.faults.files import endpoints_torn, files_bombed, reloaded_often
from tools.faults.processes import PickerProcess, Setting
from tools.faults.traffic import Traffic, Verdict
from tools.faults.trial import Pace, Run, Scenario, TrialOutcome, after, judge, running, under_way
from tools.faults.waiting import stopped_amid_slow_readers, stopped_while_undecided

_ROLLOUT = "12s"
"""Time for which a stopping picker serves new requests; a process starts in 1 to 7 s."""


async def stopped(setting: Setting, pace: Pace, *, signals: int = 1) -> TrialOutcome:
    """SIGTERM, once or repeatedly, with a drain time shorter than the longest responses."""
    async with running(setting, pace) as run:
        await run.until_share(0.5)
        picker, signalled_at = run.site.picker, time.monotonic()
        for _ in range(signals):
            picker.signal(SIGTERM)
        status = await picker.wait()
        gone_at = time.monotonic()
        await run.end()
        traffic = run.traffic
        cut_short = traffic.verdicts(under_way(gone_at))
        before = traffic.verdicts(under_way(signalled_at))
        later = traffic.verdicts(after(signalled_at + 0.5))
        outcome = await judge(
            "SIGTERM" if signals == 1 else f"SIGTERM {signals} times",
            run,
            under_way_at_signal=before.total(),
            under_way_at_exit=cut_short.total(),
            seconds_to_exit=gone_at - signalled_at,
        )
    outcome.expect("exit status 0", holds=status == 0)
    outcome.expect("some responses outlast the picker", holds=cut_short[Verdict.WHOLE] > 0)
    outcome.expect("no response truncated", holds=not outcome.verdicts[Verdict.TRUNCATED])
    outcome.expect("what was under way ends well", holds=set(before) == {Verdict.WHOLE})
    expected = {Verdict.WHOLE} if setting.fail_open else {Verdict.REFUSED}
    outcome.expect(f"afterwards only {expected}: {later}", holds=set(later) == expected)
    return outcome


async def stopped_twice(setting: Setting, pace: Pace) -> TrialOutcome:
    """SIGTERM twice, as from an impatient supervisor."""
    return await stopped(setting, pace, signals=2)


async def replaced(setting: Setting, pace: Pace) -> TrialOutcome:
    """SIGTERM, and at once a new picker on the same port."""
    async with running(setting, pace, goes_on=True) as run:
        await run.until_share(0.4)
        old, signalled_at = run.site.picker, time.monotonic()
        old.signal(SIGTERM)
        new = await run.site.start_picker(port=old.ports["grpc"])
        serves_after = time.monotonic() - signalled_at
        return await _replaced("SIGTERM, another on its port", run, signalled_at, serves_after, new)


async def handed_over(setting: Setting, pace: Pace) -> TrialOutcome:
    """First a second picker on the same port, then SIGTERM to the first one."""
    sharing = ("--transport-setting", "reuse_port=true")
    async with running(setting, pace, *sharing, goes_on=True) as run:
        await run.until_share(0.3)
        old = run.site.picker
        new = await run.site.start_picker(port=old.ports["grpc"])
        signalled_at = time.monotonic()
        old.signal(SIGTERM)
        outcome = await _replaced("another on its port, SIGTERM", run, signalled_at, 0.0, new)
    outcome.expect("no request fails", holds=set(outcome.verdicts) == {Verdict.WHOLE})
    return outcome


async def rolled(setting: Setting, pace: Pace) -> TrialOutcome:
    """A rollout as in Kubernetes: SIGTERM with the Go EPP's flag, and only then a new picker.

    Envoy is not notified, so the old picker has to serve until the new one does.
    """
    options = ("--transport-setting", "reuse_port=true")
    drain = ("--drain-timeout", _ROLLOUT)
    async with running(setting, pace, *options, drain=drain, goes_on=True) as run:
        await run.until_share(0.3)
        old, signalled_at = run.site.picker, time.monotonic()
        old.signal(SIGTERM)
        new = await run.site.start_picker(port=old.ports["grpc"])
        overlaps = old.process.returncode is None
        outcome = await _replaced("SIGTERM, then another", run, signalled_at, 0.0, new)
    outcome.expect("the next one starts within the drain time", holds=overlaps)
    outcome.expect("no request fails", holds=set(outcome.verdicts) == {Verdict.WHOLE})
    return outcome


async def _replaced(
    name: str, run: Run, signalled_at: float, serves_after: float, new: PickerProcess
) -> TrialOutcome:
    status = await run.site.pickers[0].wait()
    await run.end(after_success_since=signalled_at + serves_after)
    await new.until_idle()
    traffic = run.traffic
    before = traffic.verdicts(under_way(signalled_at))
    outcome = await judge(
        name,
        run,
        seconds_until_new_serves=serves_after,
        seconds_until_last_refusal=_last_failure(traffic, signalled_at),
    )
    outcome.expect("exit status 0", holds=status == 0)
    outcome.expect("no response truncated", holds=not outcome.verdicts[Verdict.TRUNCATED])
    outcome.expect("what was under way ends well", holds=set(before) == {Verdict.WHOLE})
    outcome.expect(
        "the last requests succeed",
        holds=set(traffic.verdicts(after(signalled_at + serves_after + 2))) <= {Verdict.WHOLE},
    )
    return outcome


def _last_failure(traffic: Traffic, since: float) -> float | None:
    """Return the seconds from ``since`` to the start of the last failed request; None for none."""
    failed = [each for each in traffic.sent if each.verdict is not Verdict.WHOLE]
    late = [each.began_at - since for each in failed if each.began_at >= since]
    return max(late, default=None)


async def killed(setting: Setting, pace: Pace) -> TrialOutcome:
    """SIGKILL, and a new picker on the same port."""
    async with running(setting, pace, goes_on=True) as run:
        await run.until_share(0.4)
        old, killed_at = run.site.picker, time.monotonic()
        old.signal(SIGKILL)
        await old.wait()
        new = await run.site.start_picker(port=old.ports["grpc"])
        serves_after = time.monotonic() - killed_at
        await run.end(after_success_since=killed_at + serves_after)
        await new.until_idle()
        traffic = run.traffic
        before = traffic.verdicts(under_way(killed_at))
        outcome = await judge(
            "SIGKILL, another on its port",
            run,
            under_way=before.total(),
            under_way_whole=before[Verdict.WHOLE],
            under_way_truncated=before[Verdict.TRUNCATED],
            under_way_refused=before[Verdict.REFUSED],
            seconds_until_new_serves=serves_after,
            seconds_until_first_success=traffic.seconds_until_whole(killed_at),
            seconds_until_last_refusal=_last_failure(traffic, killed_at),
        )
        later = traffic.verdicts(after(killed_at + serves_after + 2))
    if setting.fail_open:
        outcome.expect("no request fails", holds=set(outcome.verdicts) == {Verdict.WHOLE})
    else:
        outcome.expect("responses under way are cut off", holds=before[Verdict.TRUNCATED] > 0)
    outcome.expect("the last requests succeed", holds=set(later) <= {Verdict.WHOLE})
    return outcome


async def one_of_two_stopped(setting: Setting, pace: Pace) -> TrialOutcome:
    """One of two pickers behind one Envoy is stopped."""
    return await _one_of_two(setting, pace, kills=False)


async def one_of_two_killed(setting: Setting, pace: Pace) -> TrialOutcome:
    """One of two pickers behind one Envoy is killed."""
    return await _one_of_two(setting, pace, kills=True)


async def _one_of_two(setting: Setting, pace: Pace, *, kills: bool) -> TrialOutcome:
    async with running(setting, pace, pickers=2) as run:
        await run.until_share(0.4)
        leaving, staying = run.site.pickers
        moment = time.monotonic()
        leaving.signal(SIGKILL if kills else SIGTERM)
        status = await leaving.wait()
        await run.end()
        await staying.until_idle()
        traffic = run.traffic
        before = traffic.verdicts(under_way(moment))
        outcome = await judge(
            "one of two killed" if kills else "one of two stopped",
            run,
            under_way=before.total(),
            under_way_truncated=before[Verdict.TRUNCATED],
            refused_afterwards=traffic.verdicts(after(moment))[Verdict.REFUSED],
            seconds_until_last_refusal=_last_failure(traffic, moment),
        )
        later = traffic.verdicts(after(moment + 1))
    outcome.expect("exit status", holds=status == (-SIGKILL if kills else 0))
    if not kills or setting.fail_open:
        outcome.expect("no request fails", holds=set(outcome.verdicts) == {Verdict.WHOLE})
    outcome.expect("the other takes over", holds=set(later) <= {Verdict.WHOLE})
    return outcome


SCENARIOS: tuple[Scenario, ...] = (
    stopped,
    stopped_twice,
    stopped_while_undecided,
    stopped_amid_slow_readers,
    replaced,
    handed_over,
    rolled,
    killed,
    one_of_two_stopped,
    one_of_two_killed,
    endpoints_emptied,
    endpoint_removed,
    reloaded,
    reloaded_often,
    endpoints_torn,
    files_bombed,
)
