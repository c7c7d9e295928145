"""The attacks in the suite, the scorecard's verdict, and its measurements.

No time is judged here: honest requests are answered, nothing is left, the endpoint picker lives.
All attacks, with the aims of time: ``make faults ARGS="--only attacks"``.
"""

import asyncio
import os
from collections import Counter
from dataclasses import replace
from math import inf
from typing import Any

import msgspec
import pytest

from epp.lab.envoy import Mode
from tools.attacks.attack import Setup
from tools.attacks.bodies import dense_messages
from tools.attacks.catalogue import ATTACKS, Together, of
from tools.attacks.honest import Honest, Path
from tools.attacks.log_pipe import LogPipe
from tools.attacks.main import Plan, plans, run
from tools.attacks.scorecard import ROWS, Figures, missed, short_table, table
from tools.attacks.watching import value_of

IN_THE_SUITE = (
    "bombs",
    "long-names",
    "rewritten-large",
    "unread-log",
    "odd-unicode",
    "tiny-chunks",
    "cancelled-uploads",
    "ends-together",
    "header-storm",
)


@pytest.mark.integration
@pytest.mark.timeout(180)  # six processes start, each in seconds on a busy machine
async def test_honest_requests_are_answered_beside_attacks() -> None:
    attacks = of(Setup.DEFAULT, IN_THE_SUITE)
    figures = await run(Plan(Mode.LEAN, Setup.DEFAULT, attacks, seconds=2.0, rate=15.0))
    assert missed(figures, of_time=False) == []
    assert len(figures.honest.gateway.seconds) >= 10
    assert set(figures.tallies) == set(IN_THE_SUITE)
    for name, tally in figures.tallies.items():
        assert tally.total() > 0, name
        assert not [what for what in tally if what.startswith("FAILED")], name


def make_figures(**changes: Any) -> Figures:
    """Return figures that meet every aim, but for the changes."""
    good = Figures(
        honest=Honest(Path([0.012] * 100), Path([0.010] * 100)),
        rss_bytes=300_000_000,
        envoy_rss_bytes=900_000_000,
        pause_wall_seconds=0.2,
        pause_own_seconds=0.04,
        requests=1000.0,
        log_bytes=400_000,
        log_line_bytes=900,
        page_bytes=9_000_000,
        page_seconds=0.3,
        page_failed=0,
        left={},
        settle_seconds=1.0,
        probes=Counter({"SERVING": 40}),
        cpu_share=0.5,
        is_killed=False,
        exit_status=0,
        stop_seconds=1.0,
        is_alive=True,
        may_refuse=False,
        log_faults=[],
    )
    return replace(good, **changes)


def test_figures_within_every_aim_miss_none() -> None:
    assert missed(make_figures()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"honest": Honest(Path([0.05]), Path([0.01]))}, "p50 beyond Envoy alone: 40 ms"),
        ({"honest": Honest(Path([0.01] * 9 + [3.0]), Path([0.01]))}, "p99 beyond Envoy alone"),
        ({"honest": Honest(Path([]), Path([0.01]))}, "p50 beyond Envoy alone: none answered"),
        (
            {"honest": Honest(Path([0.01], Counter({"503 b''": 2})), Path([0.01]))},
            "refused or failed: 2 of 3",
        ),
        ({"rss_bytes": 800_000_000}, "RSS, most: 800 MB"),
        ({"pause_own_seconds": 0.06}, "without its waits for a CPU: 60 ms"),
        ({"requests": 10.0}, "log bytes a request: 40000"),
        ({"page_bytes": 11_000_000}, "metrics page, most: 11.0 MB"),
        ({"left": {"request_held_bytes": 7.0}}, "left afterwards: request_held_bytes 7"),
        ({"probes": Counter({"SERVING": 3, "NOT_SERVING": 1})}, "without SERVING: 1 of 4"),
        ({"is_alive": False}, "alive: no"),
        ({"exit_status": None}, "ends after SIGTERM: never"),
        ({"log_faults": ["a traceback"]}, "faults in the log: 1"),
    ],
)
def test_a_missed_aim_is_reported(changes: dict[str, Any], expected: str) -> None:
    assert any(expected in line for line in missed(make_figures(**changes)))


def test_aims_of_time_are_left_out_on_demand() -> None:
    slow = make_figures(honest=Honest(Path([0.05]), Path([0.01])), pause_own_seconds=9.0)
    assert missed(slow, of_time=False) == []
    assert len(missed(slow)) == 2


def test_honest_requests_may_be_refused_where_clients_name_flows() -> None:
    refused = Honest(Path([0.01], Counter({"429 b''": 2})), Path([0.01]))
    assert missed(make_figures(honest=refused, may_refuse=True)) == []
    assert missed(make_figures(honest=Honest(Path([], Counter()), Path([])), may_refuse=True))


def test_500s_of_the_failing_server_are_no_refusals() -> None:
    figures = make_figures(honest=Honest(Path([0.01], by_failing_server=9), Path([0.01])))
    assert missed(figures) == []


def test_tables_have_every_figure_and_missed_aims_in_bold() -> None:
    named = {"lean": make_figures(), "adaptive": make_figures(is_alive=False)}
    lines = table(named)
    assert len(lines) == len(ROWS) + 2
    assert "| alive | yes | yes | **no** |" in lines
    assert [line.split(" | ")[0] for line in short_table(named)[2:]] == ["| lean", "| adaptive"]


def test_what_honest_clients_saw_passes_between_processes() -> None:
    seen = Honest(Path([0.1, 0.2], Counter({"503": 2}), 1), Path([0.1]))
    assert Honest.of(seen.text()) == seen


def test_attacks_are_made_at_once_by_set_up_or_one_by_one() -> None:
    at_once = plans([Mode.LEAN, Mode.ADAPTIVE], list(ATTACKS), 1.0, one_by_one=False)
    assert [(plan.mode, plan.setup) for plan in at_once] == [
        (mode, setup) for setup in Setup for mode in (Mode.LEAN, Mode.ADAPTIVE)
    ]
    alone = plans([Mode.LEAN], list(ATTACKS), 1.0, one_by_one=True)
    assert {plan.attacks[0].name for plan in alone} == set(ATTACKS)
    assert len({plan.name for plan in alone}) == len(alone) > len(ATTACKS)
    assert {attack for plan in at_once for attack in plan.attacks} == set(ATTACKS.values())


def test_what_attacks_need_together_is_the_least_and_the_most_of_it() -> None:
    together = Together.of(attack.needs for attack in ATTACKS.values())
    assert together.open_files == 1024
    assert together.unread_log
    assert together.servers == {"failing", "talkative", "large-page"}
    nothing = Together.of([ATTACKS["bombs"].needs])
    assert nothing == Together(open_files=0, unread_log=False, servers=frozenset())


def test_every_known_fault_has_an_attack_and_ten_more_are_ours() -> None:
    items = Counter(attack.item for attack in ATTACKS.values())
    assert set(items) == set(range(13))
    assert items[0] >= 10


def test_dense_messages_are_a_document_of_the_size_asked_for() -> None:
    body = dense_messages(10_000)
    assert 9_990 < len(body) <= 10_000
    document = msgspec.json.decode(body)
    assert document["messages"][0] == {}
    assert document["messages"][-1]["content"][0]["type"] == "image_url"


async def test_the_log_is_measured_while_it_is_read() -> None:
    pipe = LogPipe()
    pipe.read_on()
    os.write(pipe.writer, b'{"level":"info"}\n' + b"a" * 30_000)
    await until(lambda: pipe.bytes == 30_017)
    pipe.pause()
    os.write(pipe.writer, b'"level":"error"' + b"\n")
    await asyncio.sleep(0)
    assert (pipe.lines, pipe.longest_line_bytes, pipe.faults) == (1, 16, [])
    pipe.read_on()
    await until(lambda: pipe.lines == 2)
    assert pipe.longest_line_bytes == 30_015
    assert [len(each) for each in pipe.faults] == [300]
    pipe.close_writer()
    pipe.close()


async def until(holds: Any) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the loop reads in between
            await asyncio.sleep(0)


def test_a_metric_is_summed_over_its_labels() -> None:
    page = (
        b'llm_d_epp_a{b="} 7",c="1"} 2.0\nllm_d_epp_a{b="y"} 3\nllm_d_epp_ab 9\nllm_d_epp_d 1.5\n'
    )
    assert value_of(page, "a") == 5.0
    assert value_of(page, "d") == 1.5
    assert value_of(page, "nothing") == 0.0
    assert make_figures(honest=Honest(Path(), Path([0.1]))).beyond_envoy(50) == inf
