"""The soak of the whole endpoint picker, small; at full length: ``make soak ARGS=--epp``."""

import pytest

from tools.soak.soak import soak_epp

REQUESTS = 5_000


@pytest.mark.timeout(60)  # two processes start, each in seconds on a busy machine
async def test_nothing_is_left_of_requests_of_which_many_are_aborted() -> None:
    figures, wrong = await soak_epp(REQUESTS, seed=1)
    assert wrong == []
    assert figures["requests"] >= REQUESTS
    assert figures["aborted"] > REQUESTS / 20
