"""Synchronous producers: their order, and the effects of a failure."""

import pytest
from structlog.testing import capture_logs

from epp.request_control import EndCause
from request_control.producers import Sync, failures, key
from tools.harness.request_control import Epp, make_pool


def test_all_prepare_before_any_attaches_in_the_order_given() -> None:
    notes: list[str] = []
    Epp(make_pool(), plugins=[Sync("a", notes=notes), Sync("b", "a", notes=notes)]).handle()
    assert notes == ["a prepare", "b prepare", "a attach", "b attach"]


#  a      x     a and x stand alone; b needs a, c needs b, d needs b and x
#  b
#  c  d
def graph(fails_in: dict[str, str], notes: list[str]) -> list[Sync]:
    reads = {"a": (), "x": (), "b": ("a",), "c": ("b",), "d": ("b", "x")}
    return [
        Sync(name, *needed, notes=notes, fails_in=fails_in.get(name, ""))
        for name, needed in reads.items()
    ]


@pytest.mark.parametrize(
    ("fails_in", "failed"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param({"c": "prepare"}, {"c": "error"}, id="one that nobody needs"),
        pytest.param({"x": "prepare"}, {"x": "error", "d": "needs x"}, id="one of two needed"),
        pytest.param(
            {"a": "prepare"},
            {"a": "error", "b": "needs a", "c": "needs b", "d": "needs b"},
            id="the first of a chain",
        ),
        pytest.param(
            {"a": "attach"},
            {"a": "error", "b": "needs a", "c": "needs b", "d": "needs b"},
            id="the first of a chain, when it attaches",
        ),
        pytest.param(
            {"b": "attach", "x": "prepare"},
            {"x": "error", "d": "needs x", "b": "error", "c": "needs b"},
            id="two, in both phases",
        ),
    ],
)
def test_a_failure_costs_the_dependents_and_nobody_else(
    fails_in: dict[str, str], failed: dict[str, str]
) -> None:
    notes: list[str] = []
    epp = Epp(make_pool(), plugins=graph(fails_in, notes))
    with capture_logs() as lines:
        routed = epp.handle()
        routed.close(EndCause.COMPLETED)
    assert failures(routed) == failed
    attached = [note for note in notes if note.endswith("attach")]
    own = {f"{name} attach" for name, method in fails_in.items() if method == "attach"}
    assert sorted(attached) == sorted({f"{n} attach" for n in "abcdx" if n not in failed} | own)
    assert epp.total("plugin_failures_total") == len(fails_in)
    assert lines[-1].get("failed_producers") == (failed or None)
    assert ("failed_producers" in lines[-1]) is bool(failed)


def test_dependents_do_not_prepare_either() -> None:
    notes: list[str] = []
    with capture_logs():
        Epp(make_pool(), plugins=graph({"a": "prepare"}, notes)).handle()
    assert notes == ["a prepare", "x prepare", "x attach"]


def test_a_producer_that_is_off_counts_as_failed() -> None:
    notes: list[str] = []
    epp = Epp(make_pool(), plugins=graph({"a": "prepare"}, notes))
    with capture_logs():
        for _ in range(3):
            epp.handle()
        notes.clear()
        routed = epp.handle()
    assert failures(routed) == {
        "a": "disabled",
        "b": "needs a",
        "c": "needs b",
        "d": "needs b",
    }
    assert notes == ["x prepare", "x attach"]


def test_a_producer_that_prepares_and_never_attaches_is_turned_off() -> None:
    notes: list[str] = []
    bad = Sync("a", notes=notes, fails_in="attach")
    epp = Epp(make_pool(), plugins=[bad])
    with capture_logs():
        for _ in range(5):
            epp.handle()
    assert notes == ["a prepare", "a attach"] * 3
    assert epp.failures("DataProducer", bad) == 3


def test_a_producer_that_works_again_starts_counting_anew() -> None:
    bad = Sync("a", fails_in="prepare")
    epp = Epp(make_pool(), plugins=[bad])
    with capture_logs():
        for fails_in in ("prepare", "prepare", "", "prepare", "prepare"):
            bad.fails_in = fails_in
            epp.handle()
        bad.fails_in = ""
        routed = epp.handle()
    assert failures(routed) == {}
    assert routed.state.read(key("a")) == "a"


def test_one_that_adds_to_a_key_waits_for_those_before_it_and_not_for_itself() -> None:
    notes: list[str] = []
    first, adds, reader = Sync("a", notes=notes), Sync("b", "a", notes=notes), Sync("c", "a")
    adds.writes = (key("a"),)  # type: ignore[misc] # per instance
    adds.fails_in = "prepare"
    with capture_logs():
        routed = Epp(make_pool(), plugins=[first, adds, reader]).handle()
    assert failures(routed) == {"b": "error", "c": "needs b"}


def test_failure_of_a_producer_that_is_read_only_if_there_costs_nothing() -> None:
    notes: list[str] = []
    plugins = [
        Sync("a", notes=notes, fails_in="prepare"),
        Sync("b", optional=["a", "nobody"], notes=notes),
    ]
    routed = Epp(make_pool(), plugins=plugins).handle()
    assert failures(routed) == {"a": "error"}
    assert notes == ["a prepare", "b prepare", "b attach"]
