"""Configuration and endpoints changed while requests are in flight."""

import asyncio
import time
from pathlib import Path

from epp.config import DEFAULT_CONFIG
from tools.faults.processes import Setting
from tools.faults.traffic import Traffic, Verdict
from tools.faults.trial import Pace, TrialOutcome, judge, running, under_way

_REWRITES = 3


async def endpoints_emptied(setting: Setting, pace: Pace) -> TrialOutcome:
    """The endpoints file is emptied, and filled again later."""
    async with running(setting, pace) as run:
        made, traffic = run.site, run.traffic
        await run.until_share(0.3)
        emptied_at = time.monotonic()
        await made.list_endpoints(())
        await _until_refused(traffic, emptied_at)
        await run.until_share(0.5)
        filled_at = time.monotonic()
        await made.list_endpoints()
        await traffic.until_whole(since=filled_at)
        await run.end()
        await made.picker.until_idle()
        before = traffic.verdicts(under_way(emptied_at))
        outcome = await judge(
            "endpoints emptied and filled",
            run,
            under_way=before.total(),
            under_way_whole=before[Verdict.WHOLE],
            refused=traffic.verdicts()[Verdict.REFUSED],
            seconds_until_first_success=traffic.seconds_until_whole(filled_at),
        )
    outcome.expect("what was under way ends well", holds=set(before) == {Verdict.WHOLE})
    outcome.expect("no response truncated", holds=not outcome.verdicts[Verdict.TRUNCATED])
    return outcome


async def _until_refused(traffic: Traffic, since: float) -> None:
    await traffic.until(
        lambda: any(e.verdict is Verdict.REFUSED and e.began_at >= since for e in traffic.sent)
    )


async def endpoint_removed(setting: Setting, pace: Pace) -> TrialOutcome:
    """One of three endpoints is removed from the file while it serves requests."""
    async with running(setting, pace) as run:
        made = run.site
        await run.until_share(0.4)
        removed_at = time.monotonic()
        await made.list_endpoints((0, 1))
        await run.end()
        await made.picker.until_idle()
        before = run.traffic.verdicts(under_way(removed_at))
        outcome = await judge(
            "endpoint removed",
            run,
            under_way=before.total(),
            served_by_the_removed=made.fleet.servers[2].counters.received,
        )
    outcome.expect("no request fails", holds=set(outcome.verdicts) == {Verdict.WHOLE})
    return outcome


async def reloaded(setting: Setting, pace: Pace) -> TrialOutcome:
    """The configuration is rewritten repeatedly, and put into use each time."""
    file: list[Path] = []

    def prepare(folder: Path) -> tuple[str, ...]:
        file.append(folder / "config.yaml")
        file[0].write_text(DEFAULT_CONFIG)
        return ("--config-file", str(file[0]))

    def rewrite(nth: int) -> None:
        other = file[0].with_suffix(".new")
        other.write_text(DEFAULT_CONFIG.replace("weight: 3", f"weight: {3 + nth / 100}"))
        other.replace(file[0])

    async with running(setting, pace, prepare=prepare, goes_on=True) as run:
        picker = run.site.picker
        for nth in range(1, _REWRITES + 1):
            await run.until_share(nth / (_REWRITES + 1))
            await asyncio.to_thread(rewrite, nth)
            await picker.until("llm_d_epp_config_reloads_total", nth)
        await run.end()
        await picker.until_idle()
        outcome = await judge("configuration reloaded", run, reloads=_REWRITES)
    outcome.expect("no request fails", holds=set(outcome.verdicts) == {Verdict.WHOLE})
    return outcome
