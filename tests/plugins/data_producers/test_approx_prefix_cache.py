import random
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from epp.scheduling import (
    CycleState,
    Endpoint,
    ProfileResult,
    Scheduler,
    SchedulerProfile,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import make_endpoint, make_request
from epp_plugins.data_producers.approx_prefix_cache import (
    LONG_PROMPT_BYTES,
    ApproxPrefixCacheProducer,
    Params,
    hash_blocks,
    seed_of,
)
from epp_plugins.data_producers.token import Params as TokenParams
from epp_plugins.data_producers.token import TokenProducer
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.pickers.max_score import Params as PickerParams
from epp_plugins.profile_handlers.single_profile import Params as HandlerParams
from epp_plugins.profile_handlers.single_profile import SingleProfileHandler
from epp_plugins.state_keys import PREFIX_MATCHES, PrefixMatches, prefix_matches_of

BLOCK = 64 * 4  # bytes in the smallest block
DEFAULT_NAME = "approx-prefix-cache-producer"


def made(
    parameters: Mapping[str, object] | None = None, name: str = DEFAULT_NAME
) -> ApproxPrefixCacheProducer:
    return ApproxPrefixCacheProducer(name, msgspec.convert(parameters or {}, Params))


def looked_up(
    producer: ApproxPrefixCacheProducer,
    prompt: bytes,
    endpoints: Sequence[Endpoint],
    *,
    model: str = "llama",
    salt: str = "",
) -> tuple[CycleState, PrefixMatches]:
    """Prepare and attach as the director does."""
    request = make_request(prompt=prompt, target_model=model, cache_salt=salt)
    state = CycleState()
    TokenProducer("token", TokenParams()).prepare(request, state)
    producer.prepare(request, state)
    producer.attach(request, endpoints, state)
    matches = state.read(PREFIX_MATCHES)
    assert matches is not None
    return state, matches


def chosen(producer: ApproxPrefixCacheProducer, state: CycleState, **profiles: Endpoint) -> None:
    """Tell the producer of a decision; the first profile is the primary."""
    results = {n: ProfileResult(n, [ScoredEndpoint(e, 1.0)]) for n, e in profiles.items()}
    producer.post_schedule(make_request(), SchedulingResult(results, next(iter(results))), state)


@given(st.integers(0, 3 * LONG_PROMPT_BYTES), st.sampled_from([256, 512, 1000]))
@example(LONG_PROMPT_BYTES, 256)
@example(LONG_PROMPT_BYTES - 1, 256)
@example(LONG_PROMPT_BYTES + 1, 256)
def test_each_hash_is_seeded_with_the_one_before(size: int, block_bytes: int) -> None:
    data = bytes(n % 251 for n in range(size))
    want, seed = [], 7
    for start in range(0, size, block_bytes):
        seed = xxh3_64_intdigest(data[start : start + block_bytes], seed)
        want.append(seed)
    assert hash_blocks(data, block_bytes, 7) == want


@pytest.mark.parametrize(
    ("second", "want", "total"),
    [
        pytest.param(b"x" * (3 * BLOCK), 3, 3, id="the same prompt"),
        pytest.param(b"x" * (3 * BLOCK) + b"more", 3, 4, id="a longer one: its partial block"),
        pytest.param(b"x" * (2 * BLOCK) + b"y" * BLOCK, 2, 3, id="another third block"),
        pytest.param(b"y" + b"x" * (3 * BLOCK - 1), 0, 3, id="another first byte"),
        pytest.param(b"x" * 10, 0, 1, id="a piece of the first block"),
    ],
)
def test_the_second_prompt_finds_what_the_first_left(second: bytes, want: int, total: int) -> None:
    producer, pod = made(), make_endpoint("a")
    state, first = looked_up(producer, b"x" * (3 * BLOCK), [pod])
    assert (first.blocks, first.total_blocks) == ({}, 3)
    chosen(producer, state, default=pod)
    _, matches = looked_up(producer, second, [pod])
    assert matches.blocks.get("a", 0) == want
    assert (matches.total_blocks, matches.block_size) == (total, 64)


def test_a_partial_last_block_matches_its_repeat() -> None:
    producer, pod = made(), make_endpoint("a")
    state, _ = looked_up(producer, b"x" * (BLOCK + 7), [pod])
    chosen(producer, state, default=pod)
    assert looked_up(producer, b"x" * (BLOCK + 7), [pod])[1].blocks == {"a": 2}


@pytest.mark.parametrize(
    ("model", "salt"),
    [("other", ""), ("llama", "tenant"), ("llam", "a")],
    ids=["another model", "another salt", "the same letters split elsewhere"],
)
def test_models_and_salts_share_nothing(model: str, salt: str) -> None:
    producer, pod = made(), make_endpoint("a")
    state, _ = looked_up(producer, b"x" * BLOCK, [pod])
    chosen(producer, state, default=pod)
    assert looked_up(producer, b"x" * BLOCK, [pod], model=model, salt=salt)[1].blocks == {}


def test_a_lone_surrogate_in_a_model_name_is_hashed() -> None:
    assert seed_of("\ud800", "\udfff") != seed_of("\ud801", "\udfff")


def test_a_request_without_a_prompt_has_no_blocks() -> None:
    producer, pod = made(), make_endpoint("a")
    state, matches = looked_up(producer, b"", [pod])
    assert (matches.blocks, matches.total_blocks) == ({}, 0)
    chosen(producer, state, default=pod)
    assert len(producer.index) == 0


@pytest.mark.parametrize(
    ("params", "engine_block", "want"),
    [
        pytest.param({}, 0, 64, id="the default 16 is raised"),
        pytest.param({}, 16, 64, id="an engine's 16 is raised"),
        pytest.param({}, 128, 128, id="an engine's 128 is taken"),
        pytest.param({"autoTune": False}, 128, 64, id="the engine is ignored without autoTune"),
        pytest.param({"blockSizeTokens": 256}, 0, 256, id="configured"),
        pytest.param({"blockSizeTokens": 256}, 128, 128, id="the engine goes first"),
        pytest.param({"blockSize": 256}, 0, 256, id="the deprecated name"),
        pytest.param({"blockSize": 256, "blockSizeTokens": 128}, 0, 128, id="the new name wins"),
    ],
)
def test_block_size(params: dict[str, object], engine_block: int, want: int) -> None:
    pods = [make_endpoint("a", cache_block_size=engine_block), make_endpoint("b")]
    _, matches = looked_up(made(params), b"x" * 4096, pods)
    assert matches.block_size == want
    assert matches.total_blocks == 4096 // (4 * want)


@pytest.mark.parametrize(
    ("params", "want"),
    [
        pytest.param({"maxPrefixTokensToMatch": 128}, 2, id="tokens"),
        pytest.param(
            {"maxPrefixTokensToMatch": 128, "maxPrefixBlocksToMatch": 5}, 2, id="tokens win"
        ),
        pytest.param(
            {"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 5}, 5, id="blocks otherwise"
        ),
    ],
)
def test_no_more_is_hashed_than_allowed(params: dict[str, object], want: int) -> None:
    _, matches = looked_up(made(params), b"x" * (10 * BLOCK), [make_endpoint("a")])
    assert matches.total_blocks == want


def test_hashes_are_made_once_per_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(data: bytes, block_bytes: int, seed: int) -> list[int]:
        calls.append(block_bytes)
        return hash_blocks(data, block_bytes, seed)

    monkeypatch.setattr("epp_plugins.data_producers.approx_prefix_cache.hash_blocks", counted)
    producer, pod = made(), make_endpoint("a")
    request = make_request(prompt=b"x" * 4096)
    state, _ = looked_up(producer, request.prompt, [pod])
    producer.attach(request, [pod], state)
    producer.attach(request, [make_endpoint("b", cache_block_size=128)], state)
    assert calls == [256, 512]


def test_every_look_up_is_fresh() -> None:
    producer, pod = made(), make_endpoint("a")
    waits, before = looked_up(producer, b"x" * BLOCK, [pod])
    other, _ = looked_up(producer, b"x" * BLOCK, [pod])
    chosen(producer, other, default=pod)
    producer.attach(make_request(prompt=b"x" * BLOCK), [pod], waits)
    assert before.blocks == {}
    assert waits.read(PREFIX_MATCHES) == PrefixMatches({"a": 1}, 1, 64)


def test_a_burst_sees_itself_where_only_the_scheduler_runs() -> None:
    producer, pods = made(), [make_endpoint("a"), make_endpoint("b")]
    picker = MaxScorePicker("pick", PickerParams(), rng=random.Random(0))
    scheduler = Scheduler(
        SingleProfileHandler("single", HandlerParams()),
        {"default": SchedulerProfile(name="default", picker=picker)},
        post_schedule=[producer],
    )
    waits, _ = looked_up(producer, b"x" * BLOCK, pods)
    state, _ = looked_up(producer, b"x" * BLOCK, pods)
    chosen_name = scheduler.schedule(make_request(), pods, state).endpoints[0].endpoint.name
    producer.attach(make_request(prompt=b"x" * BLOCK), pods, waits)
    assert waits.read(PREFIX_MATCHES) == PrefixMatches({chosen_name: 1}, 1, 64)


def test_a_prefill_endpoint_holds_the_prompt_too() -> None:
    producer, pods = made(), [make_endpoint(n) for n in "abc"]
    state, _ = looked_up(producer, b"x" * BLOCK, pods)
    chosen(producer, state, decode=pods[0], prefill=pods[1], encode=pods[2])
    assert looked_up(producer, b"x" * BLOCK, pods)[1].blocks == {"a": 1, "b": 1}


def test_the_capacity_is_the_engines_if_known() -> None:
    producer = made({"lruCapacityPerServer": 3})
    for pod in (make_endpoint("known", cache_blocks=5), make_endpoint("unknown")):
        state, _ = looked_up(producer, b"x" * (10 * BLOCK), [pod])
        chosen(producer, state, default=pod)
    _, matches = looked_up(producer, b"x" * (10 * BLOCK), [pod])
    assert matches.blocks == {"known": 5, "unknown": 3}


def test_an_endpoint_that_leaves_is_forgotten() -> None:
    producer, pod = made(), make_endpoint("a")
    producer.endpoint_added(pod)
    state, _ = looked_up(producer, b"x" * BLOCK, [pod])
    chosen(producer, state, default=pod)
    producer.endpoint_removed(pod)
    assert looked_up(producer, b"x" * BLOCK, [pod])[1].blocks == {}
    assert len(producer.index) == 0


def test_a_named_producer_also_writes_under_its_name() -> None:
    state, matches = looked_up(made(name="mine"), b"x" * BLOCK, [make_endpoint("a")])
    assert state.read(prefix_matches_of("mine")) is matches
    assert prefix_matches_of(DEFAULT_NAME) is prefix_matches_of("") is PREFIX_MATCHES


@pytest.mark.parametrize("field", ["blockSizeTokens", "lruCapacityPerServer", "blockSizeToken"])
def test_bad_parameters_are_refused(field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        made({field: 0})
