"""The DCGM exporter's page: its address, and the GPU that counts."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.data_layer.plugins import Page, PageClient, PageError
from epp.scheduling import AttributeKey, Endpoint
from epp.testing import check
from epp_plugins.data_sources.dcgm import DcgmDataSource, DcgmParams
from epp_plugins.data_sources.dcgm_extractor import DcgmExtractor, Params
from epp_plugins.state_keys import GPU_UTILIZATION

NODE = Path(__file__).parent.joinpath("data", "dcgm_node.prom").read_bytes()
"""Five GPUs of one node; the last one is no pod's."""


def sample(labels: str, value: object) -> bytes:
    return f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {value}\n".encode()


def extract(endpoint: Endpoint, body: bytes, name: str = "dcgm-extractor") -> None:
    DcgmExtractor(name, Params()).extract(endpoint, Page(body, 1.5))


def utilization(name: str, body: bytes) -> float | None:
    endpoint = Endpoint(name, "10.0.0.1:8000")
    extract(endpoint, body)
    return endpoint.attribute(GPU_UTILIZATION)


def test_the_classes_are_sound() -> None:
    check(DcgmDataSource)
    check(DcgmExtractor)


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        pytest.param("llm/decode-0", NODE, 0.78, id="the busiest of its GPUs"),  # 42, 78
        pytest.param("llm/prefill-0", NODE, 0.96, id="the pod of its own namespace"),
        pytest.param("other/prefill-0", NODE, 0.99, id="the same name elsewhere"),
        pytest.param("default/decode-0", NODE, 0.78, id="a namespace that is not on the page"),
        pytest.param("ns/a", sample('gpu="0"', 55) + sample('gpu="1"', 12), 0.55, id="a sidecar"),
        pytest.param("ns/a", b"DCGM_FI_DEV_GPU_UTIL 7\n", 0.07, id="no labels at all"),
        pytest.param("ns/a", sample('pod="a"', "33 1700000000000"), 0.33, id="a timestamp"),
        pytest.param("ns/a", sample('pod="a"', 0), 0.0, id="idle"),
        pytest.param(
            "ns/a", sample('pod="a"', 20) + sample('pod="a"', 2**63 - 14), 0.2, id="not supported"
        ),
        pytest.param("ns/a", sample('pod="a"', 20) + sample('pod="a"', "NaN"), 0.2, id="NaN"),
        pytest.param("ns/a", sample('pod="a"', 20) + sample('pod="a"', "x"), 0.2, id="a word"),
    ],
)
def test_the_busiest_gpu_counts(endpoint: str, body: bytes, expected: float) -> None:
    assert utilization(endpoint, body) == expected


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="an empty page"),
        pytest.param(b"vllm:num_requests_waiting 3\n", id="another page"),
        pytest.param(sample('pod="b"', 5), id="another pod's"),
        pytest.param(sample('pod="b"', 5) + sample('gpu="1"', 9), id="another's and nobody's"),
        pytest.param(sample('pod=""', 5), id="a pod without a name"),
        pytest.param(sample('pod="a"', 101), id="no percentage"),
        pytest.param(sample('pod="a",' + 'b="",' * 2000, 5), id="labels beyond measure"),
        pytest.param(b"# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n", id="no samples"),
        pytest.param(b"DCGM_FI_DEV_GPU_UTILITY 5\n", id="a longer name"),
    ],
)
def test_without_a_sample_the_attribute_is_taken_off(body: bytes) -> None:
    endpoint = Endpoint("ns/a", "10.0.0.1:8000")
    extract(endpoint, sample('pod="a"', 50))
    assert endpoint.attribute(GPU_UTILIZATION) == 0.5
    with pytest.raises(PageError, match="the page has no DCGM_FI_DEV_GPU_UTIL of pod ns/a"):
        extract(endpoint, body)
    assert not endpoint.attributes


def test_an_extractor_of_another_name_writes_under_both() -> None:
    mine = AttributeKey[float]("GPUUtilization/mine")
    endpoint = Endpoint("ns/a", "10.0.0.1:8000")
    extract(endpoint, sample('pod="a"', 50), name="mine")
    assert endpoint.attributes == {GPU_UTILIZATION: 0.5, mine: 0.5}
    assert DcgmExtractor("mine", Params()).writes == (GPU_UTILIZATION, mine)
    assert DcgmExtractor("dcgm-extractor", Params()).writes == (GPU_UTILIZATION,)


class NoClient:
    async def get(self) -> Page:
        raise AssertionError("nobody asks")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("parameters", "asked"),
    [
        pytest.param({}, ("10.0.0.1:9400", "/metrics", 0.0), id="the defaults"),
        pytest.param(
            {"port": 0, "path": "/gpu", "interval": "2s", "useNodeAddress": False},
            ("10.0.0.1:8000", "/gpu", 2.0),
            id="the endpoint's own port",
        ),
    ],
)
def test_where_the_exporter_is_asked(
    parameters: dict[str, Any], asked: tuple[str, str, float]
) -> None:
    opened: list[tuple[str, str]] = []

    def open_page(address: str, path: str, tls: object = None, /) -> PageClient:
        opened.append((address, path))
        return NoClient()

    params = msgspec.convert(parameters, DcgmParams)
    source = DcgmDataSource("source", params, open_page=open_page)
    source.open(Endpoint("ns/a", "10.0.0.1:8000"))
    assert (*opened[0], source.interval_seconds) == asked


@pytest.mark.parametrize(
    ("node_address", "asked"),
    [("10.9.0.1", "10.9.0.1:9400"), ("fd00::1", "[fd00::1]:9400"), ("", "10.0.0.1:9400")],
)
def test_the_exporter_of_the_node_is_asked_if_the_node_is_known(
    node_address: str, asked: str
) -> None:
    params = msgspec.convert({"useNodeAddress": True}, DcgmParams)
    source = DcgmDataSource("source", params, open_page=lambda *_: NoClient())
    endpoint = Endpoint("ns/a", "10.0.0.1:8000", node_address=node_address)
    assert source.address_of(endpoint) == asked


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"useNodeAddress": True, "port": 0}, "needs the exporter's port", id="node"),
        pytest.param({"port": -1}, "`$.port`", id="port"),
        pytest.param({"nodeAddress": True}, "unknown field `nodeAddress`", id="unknown field"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(parameters, DcgmParams)
    assert message in str(caught.value)
