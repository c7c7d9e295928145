"""The pages of workers become one page whose counters never decrease."""

from collections.abc import Hashable

import pytest

from epp.workers.merged_metrics import MergedMetrics, Page, read_page, written

PAGE = """\
# HELP llm_d_epp_request_total Requests.
# TYPE llm_d_epp_request_total counter
llm_d_epp_request_total{{model="a b"}} {count}.0
# HELP llm_d_epp_request_running Running requests.
# TYPE llm_d_epp_request_running gauge
llm_d_epp_request_running {running}.0
# HELP llm_d_epp_ready_endpoints Endpoints.
# TYPE llm_d_epp_ready_endpoints gauge
llm_d_epp_ready_endpoints {ready}.0
# HELP llm_d_epp_config_last_reload_successful 1 if so.
# TYPE llm_d_epp_config_last_reload_successful gauge
llm_d_epp_config_last_reload_successful {reloaded}.0
# HELP llm_d_epp_seconds Time.
# TYPE llm_d_epp_seconds histogram
llm_d_epp_seconds_bucket{{le="0.1"}} {count}.0
llm_d_epp_seconds_bucket{{le="+Inf"}} {count}.0
llm_d_epp_seconds_count {count}.0
llm_d_epp_seconds_sum 0.5
"""


def page(count: int, *, running: int = 0, ready: int = 3, reloaded: int = 1) -> Page:
    text = PAGE.format(count=count, running=running, ready=ready, reloaded=reloaded)
    return read_page(text.encode())


def value(merged: Page, sample: str) -> float:
    return next(v for f in merged.values() for k, v in f.samples.items() if k == sample.encode())


def test_a_page_is_written_as_it_was_read() -> None:
    text = PAGE.format(count=1_500_000, running=2, ready=3, reloaded=0)
    assert b"".join(written(read_page(text.encode()), openmetrics=False, names=())) == (
        text.replace("1500000.0", "1.5e+06").encode()
    )


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ('llm_d_epp_request_total{model="a b"}', 12),
        ("llm_d_epp_request_running", 3),
        ("llm_d_epp_ready_endpoints", 4),
        ("llm_d_epp_config_last_reload_successful", 0),
        ('llm_d_epp_seconds_bucket{le="+Inf"}', 12),
        ("llm_d_epp_seconds_sum", 1.0),
    ],
    ids=["counter", "part of each", "the greatest", "the smallest", "bucket", "sum of a histogram"],
)
def test_values_are_summed_or_chosen(sample: str, expected: float) -> None:
    pages: dict[Hashable, Page] = {
        0: page(5, running=1, ready=4),
        1: page(7, running=2, ready=3, reloaded=0),
    }
    assert value(MergedMetrics().merge(pages, [0, 1]), sample) == expected


def test_one_worker_that_cannot_reach_redis_shows() -> None:
    page = b"# TYPE llm_d_epp_replica_connected gauge\nllm_d_epp_replica_connected %d.0\n"
    merged = MergedMetrics().merge({0: read_page(page % 1), 1: read_page(page % 0)}, [0, 1])
    assert value(merged, "llm_d_epp_replica_connected") == 0


def test_counters_of_a_process_that_ended_stay_and_its_gauges_go() -> None:
    metrics = MergedMetrics()
    counter, gauge = 'llm_d_epp_request_total{model="a b"}', "llm_d_epp_request_running"
    metrics.merge({"0.1": page(5, running=4), "1.1": page(7, running=1)}, ["0.1", "1.1"])
    after = metrics.merge({"1.1": page(8, running=1)}, ["1.1"])
    assert (value(after, counter), value(after, gauge)) == (13, 1)
    again = metrics.merge({"0.2": page(1), "1.1": page(8)}, ["0.2", "1.1"])
    assert value(again, counter) == 14
    metrics.merge({"1.1": page(9)}, ["1.1"])
    assert value(metrics.merge({"1.1": page(9)}, ["1.1"]), counter) == 15


def test_a_worker_that_does_not_answer_once_counts_with_its_last_page() -> None:
    metrics = MergedMetrics()
    metrics.merge({0: page(5, running=4), 1: page(7, running=1)}, [0, 1])
    merged = metrics.merge({1: page(7, running=1)}, [0, 1])
    assert value(merged, 'llm_d_epp_request_total{model="a b"}') == 12
    assert value(merged, "llm_d_epp_request_running") == 1


def test_samples_that_only_one_worker_has_stand_with_their_metric() -> None:
    other = read_page(
        b"# HELP llm_d_epp_request_total Requests.\n# TYPE llm_d_epp_request_total counter\n"
        b'llm_d_epp_request_total{model="c"} 2.0\n'
    )
    merged = MergedMetrics().merge({0: page(1), 1: other}, [0, 1])
    text = b"".join(written(merged, openmetrics=True, names=["llm_d_epp_request_total"]))
    assert text.decode().splitlines()[2:] == [
        'llm_d_epp_request_total{model="a b"} 1.0',
        'llm_d_epp_request_total{model="c"} 2.0',
        "# EOF",
    ]
