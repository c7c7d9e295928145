"""The parser reads recorded and hand-made pages, and reports errors in garbled ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.data_layer.plugins import PageError
from epp.scheduling import EndpointMetrics
from epp_plugins.data_sources.engines import VLLM
from epp_plugins.data_sources.metric_spec import MetricSpec
from epp_plugins.data_sources.metrics_page import EngineMetrics, MetricsPageScanner

DATA = Path(__file__).parent / "data"
GAUGES = b"""# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 3.0
vllm:num_requests_waiting_by_reason{engine="0"} 99.0
vllm:num_requests_running{engine="0"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
"""

FRAGMENTS = (
    b"vllm:num_requests_waiting 1e308",
    b"vllm:num_requests_running{} 1e18 1700",
    b'vllm:kv_cache_usage_perc{a="\\"} 7',
    b'vllm:lora_requests_info{running_lora_adapters="\xff,"} 1',
    b"vllm:lora_requests_info 1",
    b'vllm:cache_config_info{block_size="%s",num_gpu_blocks="\xc2\xb2"} 1' % (b"9" * 5000),
    b"vllm:cache_config_info",
)


def scan(page: bytes, requested_at: float | None = None) -> EndpointMetrics:
    return MetricsPageScanner(VLLM).scan(page, requested_at).metrics


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        pytest.param(
            "metrics_load_a.prom",
            EndpointMetrics(
                waiting_requests=32,
                running_requests=7,
                kv_cache_usage=0.5819397993311037,
                active_adapters=frozenset({"ad1", "ad2"}),  # the series at 1.7952054420854757e+09
                max_adapters=2,
                cache_block_size=32,
                cache_blocks=300,
                requested_at=7.5,
                prompt_tokens=33621,
                prompts=53,
            ),
            id="under load",
        ),
        pytest.param(
            "metrics_after.prom",
            EndpointMetrics(
                max_adapters=2,
                cache_block_size=32,
                cache_blocks=300,  # the newest series is the one without adapters
                requested_at=7.5,
                prompt_tokens=175992,
                prompts=245,
            ),
            id="after the load",
        ),
        pytest.param(
            "metrics_idle.prom",
            EndpointMetrics(cache_block_size=128, cache_blocks=8192, requested_at=7.5),
            id="idle and without LoRA",
        ),
    ],
)
def test_recorded_pages(page: str, expected: EndpointMetrics) -> None:
    assert scan((DATA / page).read_bytes(), 7.5) == expected


def test_the_required_families_are_enough() -> None:
    assert scan(GAUGES) == EndpointMetrics(3, 2, 0.25)


@pytest.mark.parametrize("value", [b"NaN", b"-3", b"soon", b"1e400", b""])
def test_a_bad_counter_of_prompts_costs_nothing_else(value: bytes) -> None:
    page = (
        GAUGES + b"vllm:prompt_tokens_total %b\nvllm:time_to_first_token_seconds_count 7\n" % value
    )
    assert scan(page) == EndpointMetrics(3, 2, 0.25, prompts=7)


def test_series_of_several_engines_are_one_endpoint() -> None:
    page = (
        b'vllm:num_requests_waiting{engine="0"} 3\nvllm:num_requests_waiting{engine="1"} 4 1700\n'
        b"vllm:num_requests_running 1\nvllm:num_requests_running\t2e0\n"
        b'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"}0.4\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="50"} 1'
    )
    found = scan(page)
    assert (found.waiting_requests, found.running_requests) == (7, 3)
    assert found.kv_cache_usage == pytest.approx(0.3)  # (0.2 + 0.4) / 2
    assert (found.cache_block_size, found.cache_blocks) == (16, 150)


def test_the_older_name_of_the_cache_usage_counts_only_without_the_newer() -> None:
    older = GAUGES.replace(b"kv_cache", b"gpu_cache")
    assert scan(older).kv_cache_usage == 0.25
    assert scan(b"vllm:gpu_cache_usage_perc 0.9\n" + GAUGES).kv_cache_usage == (0.25)


def test_escaped_labels_and_separators_inside_values() -> None:
    page = GAUGES + (
        rb'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a\"b,c\\,}",'
        rb'waiting_lora_adapters="max_lora=, w\n1,c\\"} 2e9'
    )
    found = scan(page)
    assert found.active_adapters == {'a"b', "c\\", "}"}
    assert found.waiting_adapters == {"max_lora=", "w\n1"}  # c\ runs as well
    assert found.max_adapters == 4


def test_unknown_cache_geometry_is_zero() -> None:
    page = GAUGES + b'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1.0\n'
    found = scan(page)
    assert (found.cache_block_size, found.cache_blocks) == (0, 0)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        pytest.param(b"", "has no vllm:num_requests_waiting", id="empty"),
        pytest.param(b"<html>gateway</html>", "is this the /metrics of a vllm", id="not metrics"),
        pytest.param(GAUGES[:-5] + b"x\n", "vllm:kv_cache_usage_perc: value '", id="no number"),
        pytest.param(GAUGES.replace(b"0.25", b""), "value '' is not a number", id="no value"),
        pytest.param(GAUGES.replace(b"3.0", b"NaN"), "nan is not a finite", id="NaN"),
        pytest.param(GAUGES.replace(b"2.0", b"+Inf"), "inf is not a finite", id="infinite"),
        pytest.param(GAUGES.replace(b"2.0", b"1e308"), "1e+308 is not a finite", id="too large"),
        pytest.param(GAUGES.replace(b"2.0", b"-1"), "-1.0 is less than 0", id="negative"),
        pytest.param(
            GAUGES + b'vllm:lora_requests_info{max_lora="1"} soon\n',
            "vllm:lora_requests_info: value 'soon' is not a number",
            id="adapters without a time",
        ),
    ],
)
def test_a_garbled_page_is_refused(page: bytes, message: str) -> None:
    with pytest.raises(PageError) as caught:
        scan(page)
    assert message in str(caught.value)


BEFORE = EndpointMetrics(7, 8, 0.75, requested_at=1.0)


@pytest.mark.parametrize(
    ("family", "missing", "values"),
    [
        pytest.param(
            b"kv_cache_usage",
            "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc",
            (3, 2, 0.75, 2.0, True),
            id="cache usage",
        ),
        pytest.param(
            b"requests_waiting",
            "vllm:num_requests_waiting",
            (7, 8, 0.25, 1.0, False),
            id="waiting requests",
        ),
        pytest.param(
            b"requests_running",
            "vllm:num_requests_running",
            (7, 8, 0.25, 1.0, False),
            id="running requests",
        ),
    ],
)
def test_a_page_without_one_family_gives_the_others(
    family: bytes, missing: str, values: tuple[float, ...]
) -> None:
    scanned = MetricsPageScanner(VLLM).scan(GAUGES.replace(family, b"other"), 2.0, BEFORE)
    assert scanned.missing == [missing]
    found = scanned.metrics
    assert values == (
        found.waiting_requests,
        found.running_requests,
        found.kv_cache_usage,
        found.requested_at,
        found.has_load,
    )


def test_a_family_that_was_never_there_makes_a_server_neither_idle_nor_fresh() -> None:
    page = GAUGES.replace(b"kv_cache_usage", b"other").replace(b"requests_waiting", b"other")
    found = MetricsPageScanner(VLLM).scan(page, 2.0).metrics
    assert (found.kv_cache_usage, found.requested_at, found.has_load) == (0.5, None, False)


def test_values_without_a_name_are_not_read() -> None:
    only_running = EngineMetrics(engine="e", running=(MetricSpec.parse("r{state=on}"),))
    page = b'r{state="on"} 2\nr{state="off"} 9\nr 7\nr{state="on",dp="1"} 3\n'
    assert MetricsPageScanner(only_running).scan(page).metrics == EndpointMetrics(0, 5, 0.0)


def test_a_family_with_the_wrong_labels_alone_is_missing() -> None:
    engine = EngineMetrics(engine="mine", waiting=(MetricSpec.parse("w{state=queued}"),))
    with pytest.raises(PageError, match=r"has no w\{state=queued\}: is this .* of a mine server"):
        MetricsPageScanner(engine).scan(b'w{state="done"} 1\n')


def test_custom_values_are_sums_and_none_where_there_is_no_number() -> None:
    specs = ("heat", "other_heat", "vllm:ratio", "gone", "vllm:num_requests_running")
    engine = EngineMetrics(engine="e", custom=tuple(MetricSpec.parse(spec) for spec in specs))
    page = GAUGES + b'heat{gpu="0"} -4.5\nheat{gpu="1"} 6\nother_heat 1e3 170\nvllm:ratio NaN\n'
    assert MetricsPageScanner(engine).scan(page).custom == [1.5, 1000.0, None, None, 2.0]


@given(st.lists(st.sampled_from([*GAUGES.split(b"\n"), *FRAGMENTS]) | st.binary(max_size=30)))
def test_any_page_is_read_or_refused(lines: list[bytes]) -> None:
    try:
        found = scan(b"\n".join(lines))
    except PageError:
        return
    assert found.waiting_requests >= 0
    assert found.running_requests >= 0
    assert 0.0 <= found.kv_cache_usage <= 1.0
    assert found.cache_blocks >= 0


PROCESS = b"process_cpu_seconds_total 1.5\n"


@pytest.mark.parametrize(
    ("page", "is_same"),
    [
        pytest.param(PROCESS + GAUGES, True, id="the same page"),
        pytest.param(PROCESS * 2 + GAUGES, True, id="more in front of the first family"),
        pytest.param(GAUGES, True, id="nothing in front of it"),
        pytest.param(PROCESS + GAUGES.replace(b" 3.0", b" 4.0"), False, id="another value"),
        pytest.param(PROCESS + GAUGES + b"x 1\n", False, id="more behind"),
        pytest.param(b"vllm:num_requests_waiting 1\n" + GAUGES, False, id="a first line"),
        pytest.param(PROCESS, False, id="no family"),
        pytest.param(b"", False, id="nothing"),
    ],
)
def test_pages_that_read_the_same_have_the_same_digest(page: bytes, is_same: bool) -> None:
    scanner = MetricsPageScanner(VLLM)
    assert (scanner.digest(page) == scanner.digest(PROCESS + GAUGES)) is is_same


@given(
    st.lists(st.sampled_from([*GAUGES.split(b"\n"), b"", b"x 1"]), max_size=8),
    st.lists(st.sampled_from([*GAUGES.split(b"\n"), b"", b"x 1"]), max_size=8),
)
def test_equal_digests_mean_equal_values(one: list[bytes], other: list[bytes]) -> None:
    scanner = MetricsPageScanner(VLLM)
    pages = [b"\n".join(lines) for lines in (one, other)]
    if scanner.digest(pages[0]) == scanner.digest(pages[1]):
        found: list[object] = []
        for page in pages:
            try:
                found.append(scanner.scan(page))
            except PageError as error:
                found.append(str(error))
        assert found[0] == found[1]
