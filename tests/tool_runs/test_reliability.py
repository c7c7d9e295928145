"""One run of the scorecard, at a low rate."""

import pytest

from epp.lab.envoy import Mode
from tools.faults.reliability import FAULTS, Setup, measure


@pytest.mark.integration
@pytest.mark.timeout(180)  # seven processes start
async def test_a_killed_server_costs_no_request_whose_response_has_not_begun() -> None:
    (killed,) = [fault for fault in FAULTS if fault.name == "killed"]
    score = await measure(killed, Mode.LEAN, Setup.EPP, rate=60.0)
    assert len(score.sent) == 660
    assert (score.failed, score.misses_aim) == (0, False)
    assert score.share(score.began_at + 1.0, score.ended_at) == 0.0
    assert score.states.seconds_until("ejected", score.began_at) is not None
