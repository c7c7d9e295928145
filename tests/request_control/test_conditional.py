"""`Prefer: if-available`: 412 if the chosen endpoint has none of the prompt in its cache."""

from typing import Any

import pytest

from epp.request_control import RequestError
from epp.request_control.plugins import EndCause
from epp_plugins.data_producers import approx_prefix_cache, token
from tools.harness.request_control import Epp, make_pool

CONDITION = {"prefer": "if-available"}
BODY = b'{"model": "llama", "prompt": "%s"}' % (b"hello " * 200)


def make_epp(*, with_producer: bool = True) -> Epp:
    plugins: list[Any] = [
        token.TokenProducer("token", token.Params()),
        approx_prefix_cache.ApproxPrefixCacheProducer(
            "approx-prefix-cache-producer", approx_prefix_cache.Params()
        ),
    ]
    epp = Epp(make_pool()[:1], plugins=plugins if with_producer else [])
    for endpoint in epp.endpoints if with_producer else ():
        plugins[1].endpoint_added(endpoint)
    return epp


def refused(epp: Epp) -> RequestError:
    with pytest.raises(RequestError) as caught:
        epp.handle(BODY, CONDITION)
    return caught.value


def test_a_prompt_that_no_cache_holds_is_refused_until_one_does() -> None:
    epp = make_epp()
    for _ in range(2):  # being refused teaches the index nothing
        error = refused(epp)
        assert (error.status, error.code, error.drop_reason) == (412, "PreconditionFailed", "")
        assert str(error) == "no decode worker has the requested KV cache"
    assert epp.in_flight == 0
    epp.handle(BODY).close(EndCause.COMPLETED)
    epp.handle(BODY, CONDITION).close(EndCause.COMPLETED)
    assert epp.in_flight == 0


def test_without_a_producer_of_prefixes_nothing_is_known_to_be_cached() -> None:
    assert refused(make_epp(with_producer=False)).status == 412


@pytest.mark.parametrize(
    ("prefer", "is_conditional"),
    [
        ("if-available", True),
        ("If-Available", True),
        ("wait=10, if-available; x=1", True),
        ("respond-async", False),
        ("if-available-soon", False),
        ("", False),
    ],
)
def test_the_header_is_read_as_rfc_7240_has_it(prefer: str, is_conditional: bool) -> None:
    epp = make_epp()
    if is_conditional:
        with pytest.raises(RequestError, match="KV cache"):
            epp.handle(BODY, {"prefer": prefer})
    else:
        epp.handle(BODY, {"prefer": prefer}).close(EndCause.COMPLETED)
