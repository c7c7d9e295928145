"""Watched files truncated, made invalid and rewritten under load."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from epp.config import DEFAULT_CONFIG
from tools.faults.processes import PickerProcess, Setting
from tools.faults.traffic import Verdict
from tools.faults.trial import Pace, Run, TrialOutcome, judge, running
from tools.soak.soak import resident_mib

TORN_A_CHANGE = 9
"""Torn writes of the endpoints file per change in a pace (:attr:`Pace.changes`)."""
FAULTY_EACH = 4
"""Every fourth configuration is faulty."""
MAX_GROWTH_MIB = 200.0
RELOADS = "llm_d_epp_config_reloads_total"
CONFIG_REFUSED = "configuration refused, the one in use stays"
ENDPOINTS_REFUSED = "endpoints file refused, last good endpoints kept"


def _following(made: list[Path]) -> Callable[[Path], tuple[str, ...]]:
    """Return a function that writes a configuration file, appends it to ``made`` and names it."""

    def prepare(folder: Path) -> tuple[str, ...]:
        made.append(folder / "config.yaml")
        made[0].write_text(DEFAULT_CONFIG)
        return ("--config-file", str(made[0]))

    return prepare


async def _reload(picker: PickerProcess, file: Path, text: str, nth: int) -> None:
    """Write a configuration, and wait until it is in use or refused."""
    await asyncio.to_thread(file.write_text, text)
    picker.signal(signal.SIGHUP)
    await picker.until(RELOADS, nth)


async def reloaded_often(setting: Setting, pace: Pace) -> TrialOutcome:
    """The configuration is rewritten in place 200 times; one in four is faulty."""
    file: list[Path] = []
    async with running(setting, pace, prepare=_following(file), goes_on=True) as run:
        picker = run.site.picker
        before = resident_mib(picker.process.pid)
        for nth in range(1, pace.changes + 1):
            text = DEFAULT_CONFIG.replace("weight: 3", f"weight: {3 + nth / 1000}")
            if nth % FAULTY_EACH == 0:
                text = text.replace("type: queue-scorer", f"type: no-scorer-{nth}")
            await _reload(picker, file[0], text, nth)
        growth = resident_mib(picker.process.pid) - before
        outcome = await _ended(
            "configuration reloaded often",
            run,
            refused=pace.changes // FAULTY_EACH,
            reloads=pace.changes,
            growth_mib=growth,
        )
    outcome.expect(f"memory grows by {MAX_GROWTH_MIB} MiB at most", holds=growth <= MAX_GROWTH_MIB)
    return outcome


async def endpoints_torn(setting: Setting, pace: Pace) -> TrialOutcome:
    """The endpoints file is repeatedly written in place and truncated anywhere, at last whole."""
    chooser = Random(5)
    async with running(setting, pace, goes_on=True) as run:
        file = run.site.endpoints_file
        whole = await asyncio.to_thread(file.read_bytes)
        torn = pace.changes * TORN_A_CHANGE
        for _ in range(torn):
            cut = chooser.randrange(len(whole) - 1)
            filler = bytes(chooser.choice((0, 0, len(whole) - cut)))
            await asyncio.to_thread(file.write_bytes, whole[:cut] + filler)
            # 90 a second: the EPP polls the file twice a second, and may read it at any point.
            await asyncio.sleep(1 / 90)
        await run.site.list_endpoints()
        outcome = await _ended("endpoints file torn", run, torn_files=torn)
        refused = [
            each for each in await run.site.picker.log() if each["event"] == ENDPOINTS_REFUSED
        ]
        outcome.facts["refused"] = len(refused)
    outcome.expect("some torn files are seen", holds=bool(refused))
    return outcome


def yaml_bombs() -> Sequence[str]:
    """Return documents of at most 1 MiB that are large once they are parsed."""
    laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    merges = "a0: &a0 {x: 1}\n" + "".join(
        f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}\n" for n in range(1, 30)
    )
    return (
        laughs + "endpoints: *a11\nplugins: *a11\n",
        merges + "endpoints: [*a29]\nplugins: [*a29]\n",
        "a: &a [*a, *a]\nendpoints: *a\n",
        "endpoints: " + "{a: " * 100_000,
        "endpoints: " + "[" * 100_000,
        "endpoints: [" + "x, " * 300_000 + "]\n",
        "".join(f"k{n}: 1\n" for n in range(100_000)),
        "endpoints: " + "9" * 1_000_000,
        'plugins: "' + "\\U0001F468" * 90_000 + '"\n',
        "endpoints: !!python/object/apply:os.system [true]\n",
        "# " + "a" * 3_000_000,
    )


async def files_bombed(setting: Setting, pace: Pace) -> TrialOutcome:
    """YAML bombs in the configuration and in the endpoints file: refused, for little memory."""
    file: list[Path] = []
    async with running(setting, pace, prepare=_following(file), goes_on=True) as run:
        picker = run.site.picker
        before = resident_mib(picker.process.pid)
        most = before
        for nth, bomb in enumerate(yaml_bombs()[: pace.changes], 1):
            await asyncio.to_thread(run.site.endpoints_file.write_text, bomb)
            await _reload(picker, file[0], bomb, nth)
            most = max(most, resident_mib(picker.process.pid))
        await run.site.list_endpoints()
        growth = most - before
        outcome = await _ended("YAML bombs", run, refused=nth, bombs=nth, growth_mib=growth)
    outcome.expect(f"memory grows by {MAX_GROWTH_MIB} MiB at most", holds=growth <= MAX_GROWTH_MIB)
    return outcome


async def _ended(name: str, run: Run, *, refused: int = 0, **facts: float) -> TrialOutcome:
    """Wait for the end of the traffic, none of which may have failed.

    Args:
        name: Name of the scenario.
        run: The run to end.
        refused: Number of configurations that the log must report as refused.
        facts: Figures of the scenario.
    """
    await run.end()
    await run.site.picker.until_idle()
    outcome = await judge(name, run, **facts)
    refusals = [each for each in outcome.broken if CONFIG_REFUSED in each]
    outcome.broken = [each for each in outcome.broken if each not in refusals]
    outcome.expect(f"{refused} configurations are refused", holds=len(refusals) == refused)
    outcome.expect("no request fails", holds=set(outcome.verdicts) == {Verdict.WHOLE})
    return outcome
