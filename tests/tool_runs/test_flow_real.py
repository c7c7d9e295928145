"""The runs through Envoy, a few seconds each; their results also hold on a loaded machine."""

import pytest

from tools.flow import real

pytestmark = pytest.mark.integration


async def test_tenants_get_tokens_by_their_weights() -> None:
    found = (await real.fairness(5.0, time_scale=0.5)).by_name
    assert found["errors"] == 0
    assert found["gold"] > 1.3 * found["silver"]
    assert found["silver"] > 1.3 * found["bronze"]
    assert found["jain"] > 0.9


async def test_sheddable_requests_wait_and_the_others_do_not() -> None:
    found = (await real.priority(4.0)).by_name
    assert found["high errors"] == 0
    assert found["low share"] > 0.05
    assert found["high p50"] < found["low p50"]
