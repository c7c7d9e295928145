"""Counts and logs of plugin calls: each kind of failure is logged once."""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from epp.observability import Metrics, PluginWatch
from epp_plugins.scorers import queue_depth

SCORER = queue_depth.QueueScorer("queue", queue_depth.Params())
OTHER = queue_depth.QueueScorer("other", queue_depth.Params())
LABELS = {"plugin_type": "queue-scorer", "plugin_name": "queue"}
POINT = LABELS | {"extension_point": "Scorer"}


class SpeechlessError(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def watch(metrics: Metrics) -> PluginWatch:
    return PluginWatch(metrics, slow_call_seconds=0.05)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


def value(metrics: Metrics, name: str, labels: dict[str, str]) -> float | None:
    return metrics.registry.get_sample_value(f"llm_d_epp_{name}", labels)


def test_calls_over_the_limit_are_overruns(metrics: Metrics, watch: PluginWatch) -> None:
    timed = watch.timer("Scorer", SCORER)
    for seconds in (0.01, 0.05, 0.0501, 1.0):
        timed(seconds)
    assert value(metrics, "plugin_duration_seconds_count", POINT) == 4
    assert value(metrics, "plugin_overruns_total", POINT) == 2


def test_every_failure_is_counted_and_the_first_of_its_kind_logged(
    metrics: Metrics, watch: PluginWatch, logged: list[Any]
) -> None:
    for error in (ValueError("a"), ValueError("b"), TypeError("c")):
        watch.plugin_failed("Scorer", SCORER, error)
    watch.plugin_failed("Filter", SCORER, ValueError("d"))
    watch.plugin_failed("Scorer", OTHER, ValueError("e"))
    assert value(metrics, "plugin_failures_total", POINT) == 3
    assert [(line["log_level"], line["plugin"], line["error"]) for line in logged] == [
        ("error", "queue", "ValueError"),
        ("error", "queue", "TypeError"),
        ("error", "queue", "ValueError"),
        ("error", "other", "ValueError"),
    ]
    assert isinstance(logged[0]["exc_info"], ValueError)


def test_an_error_that_cannot_be_printed_is_logged_all_the_same(
    watch: PluginWatch, logged: list[Any]
) -> None:
    watch.plugin_failed("Scorer", SCORER, SpeechlessError())
    assert [line["error"] for line in logged] == ["SpeechlessError"]


def test_a_disabled_plugin_is_reported_loudly(
    metrics: Metrics, watch: PluginWatch, logged: list[Any]
) -> None:
    watch.plugin_disabled(SCORER, 10)
    assert value(metrics, "plugin_disabled", LABELS) == 1
    ((level, plugin, failures),) = [
        (line["log_level"], line["plugin"], line["failures_in_a_row"]) for line in logged
    ]
    assert (level, plugin, failures) == ("critical", "queue", 10)


@pytest.mark.parametrize("how", ["apart", "retired"])
def test_a_plugin_that_is_disabled_where_it_decides_nothing_leaves_the_gauge_alone(
    metrics: Metrics, watch: PluginWatch, logged: list[Any], how: str
) -> None:
    if how == "apart":
        watch.apart().plugin_disabled(SCORER, 10)
    else:
        watch.retire()
        watch.plugin_disabled(SCORER, 10)
    assert value(metrics, "plugin_disabled", LABELS) is None
    ((level, plugin, failures),) = [
        (line["log_level"], line["plugin"], line["failures_in_a_row"]) for line in logged
    ]
    assert (level, plugin, failures) == ("warning", "queue", 10)


def test_a_shadow_counts_like_the_rest_and_a_fault_of_both_is_logged_once(
    metrics: Metrics, watch: PluginWatch, logged: list[Any]
) -> None:
    shadow = watch.apart()
    for each in (shadow, watch):
        each.plugin_failed("Scorer", SCORER, ValueError("a"))
        each.timer("Scorer", SCORER)(0.06)
    assert value(metrics, "plugin_failures_total", POINT) == 2
    assert value(metrics, "plugin_overruns_total", POINT) == 2
    assert len(logged) == 1
    watch.plugin_disabled(SCORER, 10)  # the shadow's gauge is not its own
    assert value(metrics, "plugin_disabled", LABELS) == 1


def test_corrected_scores_are_counted_by_kind_and_each_kind_is_logged_once(
    metrics: Metrics, watch: PluginWatch, logged: list[Any]
) -> None:
    watch.scores_corrected(SCORER, 2, 0)
    watch.scores_corrected(SCORER, 1, 3)
    watch.scores_corrected(SCORER, 0, 1)
    assert value(metrics, "plugin_scores_corrected_total", LABELS | {"kind": "outside"}) == 3
    assert value(metrics, "plugin_scores_corrected_total", LABELS | {"kind": "nan"}) == 4
    assert [(line["plugin"], line["kind"]) for line in logged] == [
        ("queue", "outside"),
        ("queue", "nan"),
    ]
