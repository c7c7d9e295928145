import pytest

from epp_plugins.slo_headers import tpot_slo_ms, ttft_slo_ms


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"x-llm-d-slo-ttft-ms": "500"}, 500.0, id="whole"),
        pytest.param({"x-llm-d-slo-ttft-ms": "500.5"}, 500.5, id="with a fraction"),
        pytest.param({"x-slo-ttft-ms": "7"}, 7.0, id="older name"),
        pytest.param({"x-llm-d-slo-ttft-ms": "5", "x-slo-ttft-ms": "7"}, 5.0, id="both names"),
        pytest.param({"x-llm-d-slo-ttft-ms": "", "x-slo-ttft-ms": "7"}, 7.0, id="first is empty"),
        pytest.param(
            {"x-llm-d-slo-ttft-ms": "x", "x-slo-ttft-ms": "7"}, None, id="first is no number"
        ),
        pytest.param({"x-llm-d-slo-ttft-ms": "0"}, None, id="zero"),
        pytest.param({"x-llm-d-slo-ttft-ms": "-1"}, None, id="below zero"),
        pytest.param({"x-llm-d-slo-ttft-ms": "inf"}, None, id="infinite"),
        pytest.param({"x-llm-d-slo-ttft-ms": "nan"}, None, id="NaN"),
        pytest.param({"x-llm-d-slo-ttft-ms": "1_000"}, None, id="underscore"),
        pytest.param({"x-llm-d-slo-ttft-ms": "\u0665"}, None, id="a digit of another script"),
        pytest.param({"x-llm-d-slo-ttft-ms": "1e400"}, None, id="beyond all numbers"),
        pytest.param({"x-llm-d-slo-ttft-ms": "+5"}, 5.0, id="with a sign"),
        pytest.param({"x-llm-d-slo-tpot-ms": "20"}, None, id="the other SLO"),
    ],
)
def test_ttft(headers: dict[str, str], expected: float | None) -> None:
    assert ttft_slo_ms(headers) == expected


def test_tpot_has_its_own_names() -> None:
    assert tpot_slo_ms({"x-llm-d-slo-tpot-ms": "20.5"}) == 20.5
    assert tpot_slo_ms({"x-slo-tpot-ms": "20"}) == 20.0
    assert tpot_slo_ms({"x-llm-d-slo-ttft-ms": "20"}) is None
