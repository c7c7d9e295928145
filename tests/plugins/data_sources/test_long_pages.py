"""Long pages are parsed in short steps, with the same result as in one."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.data_layer.plugins import Extractor, Page, PageTooLargeError
from epp.scheduling import Endpoint, EndpointMetrics
from epp_plugins.data_sources import core_metrics, dcgm_extractor, models, page_parts
from epp_plugins.data_sources.dcgm_extractor import MAX_SAMPLES
from epp_plugins.data_sources.metrics_page import MAX_SERIES
from epp_plugins.data_sources.page_parts import PART_BYTES, parts
from epp_plugins.state_keys import GPU_UTILIZATION

LOAD = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n"
GPU = b'DCGM_FI_DEV_GPU_UTIL{gpu="%d",pod="a"} 7\n'
OTHER = b'vllm:other_metric{id="%d"} 1.0\n'


def lines(form: bytes, count: int) -> bytes:
    return b"".join(form % n for n in range(count))


def core() -> Extractor:
    return core_metrics.CoreMetricsExtractor("core", core_metrics.Params())


def dcgm() -> Extractor:
    return dcgm_extractor.DcgmExtractor("dcgm", dcgm_extractor.Params())


def read(extractor: Extractor, page: bytes) -> tuple[Endpoint, int]:
    """Return the endpoint and in how many steps its page was read."""
    endpoint = Endpoint("ns/a", "10.0.0.1:8000")
    steps = 1
    for _ in extractor.steps(endpoint, Page(page, 1.5)):
        steps += 1
        assert endpoint.metrics == EndpointMetrics(), "nothing is written before the last step"
        assert not endpoint.attributes
    return endpoint, steps


def test_a_page_of_the_usual_length_is_read_in_one_step() -> None:
    _, steps = read(core(), LOAD + lines(OTHER, 1000))
    assert steps == 1


def test_a_long_page_is_read_in_steps() -> None:
    page = lines(OTHER, 20_000) + LOAD
    endpoint, steps = read(core(), page)
    assert endpoint.metrics.waiting_requests == 3
    assert steps > len(page) // PART_BYTES
    endpoint, steps = read(dcgm(), lines(OTHER, 20_000) + GPU % 0)
    assert endpoint.attribute(GPU_UTILIZATION) == 0.07
    assert steps > len(page) // PART_BYTES


def test_only_the_newest_set_of_adapters_is_kept_of_any_number() -> None:
    form = b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="lora-%d"} %d\n'
    count = 2 * MAX_SERIES
    page = LOAD + b"".join(form % (n, n) for n in reversed(range(count)))
    endpoint, _ = read(core(), page)
    assert endpoint.metrics.active_adapters == {f"lora-{count - 1}"}


@pytest.mark.parametrize(
    ("make", "page", "message"),
    [
        pytest.param(
            core,
            LOAD + lines(b'vllm:num_requests_waiting{engine="%d"} 1\n', MAX_SERIES),
            f"more than {MAX_SERIES} series of vllm:num_requests_waiting: have the server",
            id="series of one family",
        ),
        pytest.param(
            core,
            LOAD + b'vllm:cache_config_info{a="' + b"x" * 20_000 + b'"} 1\n',
            "the labels of a series have more than 16384 bytes",
            id="labels of one series",
        ),
        pytest.param(
            dcgm, lines(GPU, MAX_SAMPLES + 1), f"more than {MAX_SAMPLES} series", id="GPUs"
        ),
        pytest.param(
            lambda: models.ModelsDataExtractor("m", models.Params()),
            b'{"data": [' + b",".join([b'{"id":""}'] * (models.MAX_MODELS + 1)) + b"]}",
            "10000 models",
            id="models",
        ),
        pytest.param(
            lambda: models.ModelsDataExtractor("m", models.Params()),
            b'{"data": []}' + b" " * models.MAX_BYTES,
            "786432 bytes",
            id="length of a list of models",
        ),
    ],
)
def test_what_would_take_long_is_refused(
    make: Callable[[], Extractor], page: bytes, message: str
) -> None:
    with pytest.raises(PageTooLargeError) as caught:
        read(make(), page)
    assert message in str(caught.value)


def test_a_line_longer_than_a_part_is_left_out() -> None:
    page = b'vllm:cache_config_info{a="' + b"x" * PART_BYTES + b'"} 1\n' + LOAD
    endpoint, _ = read(core(), page)
    assert endpoint.metrics.waiting_requests == 3
    endpoint, _ = read(core(), LOAD + b"x" * 2 * PART_BYTES)
    assert endpoint.metrics.waiting_requests == 3


def test_many_labels_are_parsed_in_steps() -> None:
    labels = b",".join(b'label_%d="value"' % n for n in range(50))
    form = b'vllm:cache_config_info{num_gpu_blocks="1",engine="%%d",%b} 1\n' % labels
    page = LOAD + lines(form, 60)
    assert len(page) < PART_BYTES
    endpoint, steps = read(core(), page)
    assert endpoint.metrics.cache_blocks == 60
    assert steps >= 10


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=40))
def test_parts_are_whole_lines_and_all_of_them(rows: list[bytes]) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(page_parts, "PART_BYTES", 31)
    try:
        found = list(parts(b"\n".join(rows)))
    finally:
        patch.undo()
    assert all(part.startswith(b"\n") for part in found)
    assert all(len(part) <= 32 for part in found)
    again = [row for part in found for row in part[1:].split(b"\n")]
    assert [row for row in again if row] == [row for row in rows if row]
