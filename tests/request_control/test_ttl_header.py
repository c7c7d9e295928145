"""The header that limits a request's time in the queue."""

import pytest

from epp.request_control.errors import BadRequestError
from epp.request_control.queued_decision import TTL_HEADER, ttl_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, None), ("1", 0.001), ("1500", 1.5), ("0250", 0.25), ("86400000", 86400.0)],
)
def test_it_is_in_milliseconds(text: str | None, seconds: float | None) -> None:
    assert ttl_of({} if text is None else {TTL_HEADER: text}) == seconds


@pytest.mark.parametrize(
    "text", ["0", "", "-5", "1.5", "1e3", "5s", "86400001", "9" * 5000, "\u0665", " 5"]
)
def test_anything_else_is_refused_and_reported(text: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        ttl_of({TTL_HEADER: text})
    assert str(caught.value) == (
        f"header x-llm-d-request-ttl-ms is {text[:40]!r}; it must be a whole number of milliseconds"
        " from 1 to 86400000"
    )
