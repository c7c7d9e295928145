"""Samples with affinity: to a prompt's prefix, and to a session's server."""

from base64 import b64encode
from typing import Any

import pytest

from .harness import PROMPT, Epp, idle

# --- optimized-baseline.yaml ------------------------------------------------------------------


def test_the_baseline_sends_new_prompts_to_the_servers_in_turn() -> None:
    epp = Epp.of("optimized-baseline", idle("a", "b", "c"))
    assert [epp.chosen(f"{turn} {PROMPT}") for turn in range(6)] == ["a", "b", "c"] * 2


@pytest.mark.parametrize(
    ("kv_cache_usage", "goes_back"),
    [
        # Holder: 2 * 0 + 2 * 0.6 + 3 * 1 + 2 * 0.5 = 5.2, the others: 2 + 2 + 0 + 1 = 5.
        pytest.param(0.4, True, id="queue and cache a little fuller"),
        # Holder: 2 * 0 + 2 * 0.4 + 3 * 1 + 2 * 0.5 = 4.8.
        pytest.param(0.6, False, id="queue and cache much fuller"),
    ],
)
def test_the_baseline_sends_a_known_prompt_back_unless_its_server_is(
    kv_cache_usage: float, goes_back: bool
) -> None:
    epp = Epp.of("optimized-baseline", idle("a", "b", "c"))
    assert epp.chosen(PROMPT) == "a"
    epp.load("a", waiting=5, kv_cache_usage=kv_cache_usage)
    assert (epp.chosen(PROMPT) == "a") is goes_back


# --- approx-prefix-cache.yaml -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("common", "goes_back"),
    [
        # One block of three: 3 * 1/3 + 2 + 2 * 0.9 = 4.8 against 2 + 2.
        pytest.param(300, True, id="300 characters: a block of 64 tokens"),
        # 2 + 2 * 0.9 = 3.8 against 2 + 2.
        pytest.param(200, False, id="200 characters: less than a block"),
    ],
)
def test_a_whole_block_in_common_sends_a_prompt_back(common: int, goes_back: bool) -> None:
    # autoTune would take the server's blocks of 128 tokens, 512 characters.
    epp = Epp.of("approx-prefix-cache", {name: {"cache_block_size": 128} for name in "abc"})
    holder = epp.chosen(PROMPT[:600])
    epp.load(holder, kv_cache_usage=0.1)
    other = PROMPT[:common] + "x" * (600 - common)
    assert (epp.chosen(other) == holder) is goes_back


# --- session-affinity.yaml --------------------------------------------------------------------


def token_of(name: str) -> str:
    return b64encode(name.encode()).decode()


@pytest.mark.parametrize(
    ("token", "wanted"),
    [
        # 5 + 0 + 0 against 0 + 2 + 2.
        pytest.param(token_of("default/a"), "default/a", id="the server it names, however full"),
        pytest.param("", "default/b", id="without one where there is room"),
        pytest.param(token_of("default/z"), "default/b", id="not to a server that is gone"),
        pytest.param("default/a", "default/b", id="not by what is no token"),
    ],
)
def test_a_session_token_leads_to(token: str, wanted: str) -> None:
    table = {"default/a": {"waiting_requests": 50, "kv_cache_usage": 1.0}, "default/b": {}}
    epp = Epp.of("session-affinity", table)
    exchange = epp.send(headers={"x-session-token": token} if token else {})
    assert exchange.endpoint.name == wanted
    # The response's token is that of whoever served, so a lost session goes on.
    assert exchange.response_started(200, {}) == {"x-session-token": token_of(wanted)}


# --- session-id.yaml --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"x-session-id": "s"},
        {"x-claude-code-session-id": "s"},
        {"x-session-affinity": "s"},
        {"session-id": "s"},
        {"session_id": "s"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_session_stays_at_64_waiting_and_moves_for_good_at_65(headers: dict[str, str]) -> None:
    epp = Epp.of("session-id", idle("a", "b", "c"))
    home = epp.chosen(headers=headers)
    epp.load(home, waiting=64, kv_cache_usage=1.0)
    assert {epp.chosen(f"{turn}", headers=headers) for turn in range(5)} == {home}
    assert home not in {epp.chosen(f"{turn}") for turn in range(5)}
    epp.load(home, waiting=65)
    other = epp.chosen(headers=headers)
    assert other != home
    epp.load(home)
    assert {epp.chosen(f"{turn}", headers=headers) for turn in range(5)} == {other}


def test_a_session_stays_where_it_is_while_all_are_full() -> None:
    epp = Epp.of("session-id", idle("a", "b", "c"))
    home = epp.chosen(headers={"x-session-id": "s"})
    for name in "abc":
        epp.load(name, waiting=70 if name == home else 65)
    assert {epp.chosen(headers={"x-session-id": "s"}) for _ in range(5)} == {home}


def test_the_session_header_counts_before_that_of_an_agent() -> None:
    epp = Epp.of("session-id", idle("a", "b", "c"))
    home = epp.chosen(headers={"x-session-id": "s"})
    epp.load(home, waiting=70)
    other = epp.chosen(headers={"session_id": "t"})
    epp.load(home)
    both = {"session_id": "t", "x-session-id": "s"}
    assert (other != home, epp.chosen(headers=both)) == (True, home)


# --- context-length.yaml ----------------------------------------------------------------------

LABEL = "llm-d.ai/context-length-range"
LENGTHS: dict[str, dict[str, Any]] = {
    "short": {"labels": {LABEL: "0-1024"}},
    "long": {"labels": {LABEL: "1025-8192"}},
}


@pytest.mark.parametrize(
    ("tokens", "loaded", "wanted"),
    [
        # short: 0.3 + 0.7 * (0.7 / 1.1024 + 0.3 * 924/1024) = 0.93; long: 0.3 / 1.925 = 0.16.
        pytest.param(100, {}, "short", id="a short prompt to the short server"),
        # The last token in range: 0.3 + 0.7 * 0.7 / 1.1024 = 0.74 against 0.3 / 1.001 = 0.30.
        pytest.param(1024, {}, "short", id="1024 tokens"),
        pytest.param(1025, {}, "long", id="1025 tokens"),
        # 4 * 0.93 + 0 + 2 * 1 = 5.7 against 4 * 0.16 + 2 + 2 = 4.6.
        pytest.param(100, {"waiting": 20}, "short", id="though its queue is longer"),
        # 4 * 0.93 + 0 + 0 = 3.7 against 4.6.
        pytest.param(
            100,
            {"waiting": 20, "kv_cache_usage": 1.0},
            "long",
            id="not if queue and cache are much fuller",
        ),
    ],
)
def test_a_prompt_of_this_length_goes(tokens: int, loaded: dict[str, Any], wanted: str) -> None:
    epp = Epp.of("context-length", LENGTHS)
    if loaded:
        epp.load("short", **loaded)
    # Four characters a token; two are the quotes of the JSON string.
    assert epp.chosen("x" * (4 * tokens - 2)) == wanted


def test_a_prompt_longer_than_all_ranges_is_served_all_the_same() -> None:
    assert Epp.of("context-length", LENGTHS).chosen("x" * 40_000) == "long"


# --- multimodal.yaml --------------------------------------------------------------------------


def picture(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"https://example.com/{name}.png"}}


@pytest.mark.parametrize(
    ("kv_cache_usage", "goes_back"),
    [
        # Holder: 4 * 1 + 2 * 0 + 2 * 0.5 = 5, the others: 2 + 2 = 4.
        pytest.param(0.5, True, id="its server has a queue and half of its cache free"),
        # Holder: 4 * 0.5 + 2 * 0 + 2 * 0.5 = 3 against 4.
        pytest.param(0.5, False, id="the same with another picture beside it"),
    ],
)
def test_a_picture_goes_where_it_was_encoded_unless_that_is_full(
    kv_cache_usage: float, goes_back: bool
) -> None:
    epp = Epp.of("multimodal", idle("a", "b", "c"))
    first = epp.chosen(parts=[picture("x")])
    assert {epp.chosen(f"{turn}", parts=[picture("x")]) for turn in range(8)} == {first}
    epp.load(first, waiting=5, kv_cache_usage=kv_cache_usage)
    parts = [picture("x")] if goes_back else [picture("x"), picture("y")]
    assert (epp.chosen(parts=parts) == first) is goes_back
