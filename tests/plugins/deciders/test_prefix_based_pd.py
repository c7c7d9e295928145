from typing import Any

import pytest

from epp.scheduling import CycleState, Endpoint
from epp.testing import check, make_endpoint, make_plugin, make_request
from epp_plugins.deciders.prefix_based_pd import PrefixBasedPdDecider
from epp_plugins.state_keys import (
    PREFIX_MATCHES,
    TOKENIZED_PROMPT,
    PrefixMatches,
    TokenizedPrompt,
    prefix_matches_of,
)

DECODE = make_endpoint("decode-a")


def state_of(tokens: int | None, held: dict[str, int] | None, key: Any = PREFIX_MATCHES) -> Any:
    """Return the state for a prompt of ``tokens``, of which endpoints hold blocks of 16 tokens."""
    state = CycleState()
    if tokens is not None:
        state.write(TOKENIZED_PROMPT, TokenizedPrompt(b"", tokens))
    if held is not None:
        state.write(key, PrefixMatches(held, -(-(tokens or 0) // 16), 16))
    return state


@pytest.mark.parametrize(
    ("parameters", "tokens", "held", "endpoint", "want"),
    [
        # Off, whatever is there.
        pytest.param({}, 4096, {}, DECODE, False, id="0 turns it off"),
        pytest.param({"promptTokens": 10}, 4096, {}, DECODE, False, id="promptTokens alone"),
        # 600 - 0 >= 512
        pytest.param({"nonCachedTokens": 512}, 600, {}, DECODE, True, id="nothing cached"),
        # 600 - 5 * 16 = 520 >= 512; 600 - 6 * 16 = 504 < 512
        pytest.param({"nonCachedTokens": 512}, 600, {"decode-a": 5}, DECODE, True, id="too little"),
        pytest.param({"nonCachedTokens": 512}, 600, {"decode-a": 6}, DECODE, False, id="enough"),
        # 608 - 6 * 16 = 512 >= 512
        pytest.param({"nonCachedTokens": 512}, 608, {"decode-a": 6}, DECODE, True, id="just so"),
        # 600 - 38 * 16 = -8: the last block counts as whole.
        pytest.param({"nonCachedTokens": 1}, 600, {"decode-a": 38}, DECODE, False, id="all cached"),
        pytest.param(
            {"nonCachedTokens": 512}, 600, {"decode-b": 38}, DECODE, True, id="cached elsewhere"
        ),
        pytest.param({"nonCachedTokens": 512}, 511, {}, DECODE, False, id="a short prompt"),
        pytest.param({"nonCachedTokens": 512}, 512, {}, DECODE, True, id="one just long enough"),
        pytest.param(
            {"nonCachedTokens": 64, "promptTokens": 1000}, 999, {}, DECODE, False, id="gate closed"
        ),
        pytest.param(
            {"nonCachedTokens": 64, "promptTokens": 1000}, 1000, {}, DECODE, True, id="gate open"
        ),
        pytest.param({"nonCachedTokens": 512}, 600, {}, None, False, id="no endpoint yet"),
        pytest.param({"nonCachedTokens": 512}, None, {}, DECODE, False, id="not tokenized"),
        pytest.param({"nonCachedTokens": 512}, 600, None, DECODE, False, id="nobody knows"),
    ],
)
def test_a_long_uncached_rest_wants_the_stage(
    parameters: dict[str, Any],
    tokens: int | None,
    held: dict[str, int] | None,
    endpoint: Endpoint | None,
    want: bool,
) -> None:
    decider = make_plugin(PrefixBasedPdDecider, parameters)
    assert decider.wants_stage(make_request(), endpoint, state_of(tokens, held)) is want


def test_another_producer_is_believed_if_it_is_named() -> None:
    precise = prefix_matches_of("precise")
    decider = make_plugin(
        PrefixBasedPdDecider, {"nonCachedTokens": 512, "prefixMatchInfoProducerName": "precise"}
    )
    state = state_of(600, {}, PREFIX_MATCHES)
    assert decider.wants_stage(make_request(), DECODE, state) is False
    assert decider.wants_stage(make_request(), DECODE, state_of(600, {}, precise)) is True
    assert decider.reads == (TOKENIZED_PROMPT, precise)


@pytest.mark.parametrize(
    ("parameters", "reads"),
    [
        pytest.param({}, (), id="off, it forces no producer"),
        pytest.param({"nonCachedTokens": 1}, (TOKENIZED_PROMPT, PREFIX_MATCHES), id="on"),
    ],
)
def test_it_reads_what_it_uses(parameters: dict[str, Any], reads: tuple[Any, ...]) -> None:
    check(PrefixBasedPdDecider)
    assert make_plugin(PrefixBasedPdDecider, parameters).reads == reads


@pytest.mark.parametrize("field", ["nonCachedTokens", "promptTokens"])
def test_negative_tokens_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=rf">= 0 - at `\$\.{field}`"):
        make_plugin(PrefixBasedPdDecider, {field: -1})
