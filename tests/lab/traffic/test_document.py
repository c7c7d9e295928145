"""Traffic descriptions: generators, labels, limits, and errors."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from epp.lab.traffic import TrafficError, TrafficRequest, describe, load_traffic

RANDOM = {"generator": "random", "arrivals": {"rate": 5}, "limit": 50}
CHATS: dict[str, Any] = {
    "generator": "conversations",
    "arrivals": {"rate": 2},
    "turns": "2-4",
    "limit": 60,
}


@pytest.mark.parametrize(
    "document",
    [
        RANDOM,
        CHATS,
        {"generator": "shared-prefix", "arrivals": {"concurrency": 4}, "limit": 40},
        {"generator": "agents", "arrivals": {"rate": 1, "on": "5s", "off": "20s"}, "limit": 80},
        {"streams": [RANDOM, CHATS], "tenants": {"a": 1, "b": 2}},
    ],
)
def test_a_workload_is_the_same_again_and_another_with_another_seed(
    document: dict[str, Any],
) -> None:
    workload = load_traffic(document, seed=3)
    requests = list(workload)
    assert requests == list(workload) == list(load_traffic(document, seed=3))
    assert requests != list(load_traffic(document, seed=4))
    assert [request.index for request in requests] == list(range(len(requests)))
    _check_order(requests)


def _check_order(requests: list[TrafficRequest]) -> None:
    times = [request.arrives_at for request in requests if request.arrives_at is not None]
    assert times == sorted(times)
    for request in requests:
        assert (request.follows is None) or request.arrives_at is None
        assert request.follows is None or request.follows < request.index
        for segment in request.segments:
            assert segment.tokens >= 1
            if segment.is_output:
                earlier = requests[segment.content]
                assert earlier.session == request.session
                assert earlier.output_tokens == segment.tokens
    assert all(request.output_tokens >= 1 for request in requests)


def test_a_prompt_of_a_conversation_is_its_history() -> None:
    requests = list(load_traffic(CHATS))
    followed = [each for each in requests if each.follows is not None]
    assert followed
    for request in followed:
        assert request.follows is not None
        before = requests[request.follows]
        assert request.segments[: len(before.segments)] == before.segments
        output, question = request.segments[len(before.segments) :]
        assert output == (before.index, before.output_tokens, True)
        assert not question.is_output
        assert request.think_seconds > 0


def test_groups_and_users_share_their_texts() -> None:
    document = {
        "generator": "shared-prefix",
        "groups": 3,
        "system_tokens": 100,
        "users_per_group": 2,
        "user_tokens": 50,
        "question_tokens": "10-20",
        "arrivals": {"rate": 1},
        "limit": 300,
    }
    requests = list(load_traffic(document))
    assert len({request.segments[0] for request in requests}) == 3
    assert len({request.segments[1] for request in requests}) == 6
    assert len({request.segments[2] for request in requests}) == 300
    assert {len(request.segments) for request in requests} == {3}


def test_a_skew_makes_a_group_popular() -> None:
    document = {
        "generator": "shared-prefix",
        "groups": 10,
        "group_skew": 1.0,
        "arrivals": {"rate": 1},
        "limit": 2000,
    }
    counts = Counter(request.segments[0] for request in load_traffic(document))
    # By Zipf's law the first of ten has 1 / 2.929 of all.
    assert counts.most_common(1)[0][1] == pytest.approx(2000 / 2.929, rel=0.1)


def test_labels_are_drawn_by_weight_and_for_whole_conversations() -> None:
    document = CHATS | {
        "limit": 3000,
        "tenants": {"alice": 3, "bob": 1},
        "adapters": {"": 1, "sql": 1},
        "objectives": {"batch": 1},
        "slos": [{"weight": 1, "ttft": "500ms", "tpot": 0.05}, {"weight": 1}],
    }
    requests = list(load_traffic(document))
    sessions = {each.session: each for each in requests}
    assert all(sessions[each.session].tenant == each.tenant for each in requests)
    tenants = Counter(each.tenant for each in sessions.values())
    assert tenants["alice"] / len(sessions) == pytest.approx(0.75, abs=0.06)
    assert {each.adapter for each in requests} == {"", "sql"}
    assert {each.objective for each in requests} == {"batch"}
    limits = {(each.ttft_slo_seconds, each.tpot_slo_seconds) for each in requests}
    assert limits == {(0.5, 0.05), (None, None)}


def test_streams_keep_their_own_labels_and_texts() -> None:
    stream = {"generator": "shared-prefix", "groups": 1, "arrivals": {"rate": 5}, "limit": 20}
    streams = [stream | {"tenants": {"a": 1}}, stream | {"tenants": {"b": 1}}]
    requests = list(load_traffic({"streams": streams}))
    assert Counter(each.tenant for each in requests) == {"a": 20, "b": 20}
    assert len({(each.tenant, each.segments[0]) for each in requests}) == 2
    assert len({each.segments[0] for each in requests}) == 2


def test_time_scale_duration_skip_and_long_prompts() -> None:
    base = list(load_traffic(RANDOM))
    fast = list(load_traffic(RANDOM | {"time_scale": 0.5}))
    assert [each.arrives_at for each in fast] == [(each.arrives_at or 0) / 2 for each in base]
    short = list(load_traffic(RANDOM | {"duration": "4s"}))
    assert short == [each for each in base if (each.arrives_at or 0) < 4]
    later = list(load_traffic(RANDOM | {"skip": 10, "limit": 5}))
    assert [each.segments for each in later] == [each.segments for each in base[10:15]]
    assert later[0].arrives_at == 0
    small = list(load_traffic(CHATS | {"max_prompt_tokens": 700}))
    assert max(each.prompt_tokens for each in small) <= 700
    _check_order(small)


def test_lengths_come_from_a_list_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("5 6\n7\n")
    document = RANDOM | {"prompt_tokens": {"file": "lengths.txt"}, "output_tokens": [1, 1, 9]}
    requests = list(load_traffic(document | {"limit": 600}, folder=tmp_path))
    assert {each.prompt_tokens for each in requests} == {5, 6, 7}
    outputs = Counter(each.output_tokens for each in requests)
    assert outputs[1] / 600 == pytest.approx(2 / 3, abs=0.08)
    assert set(outputs) == {1, 9}


def test_a_normal_distribution_is_drawn_from() -> None:
    document = RANDOM | {"limit": 2000, "prompt_tokens": "normal:500:100"}
    lengths = describe(load_traffic(document)).prompt_tokens
    assert lengths.mean == pytest.approx(500, rel=0.03)
    # 1.2816 standard deviations above the mean.
    assert lengths.p90 == pytest.approx(628, rel=0.03)


def test_what_ends_by_itself_needs_no_limit() -> None:
    stages = {"stages": [{"rate": 5, "duration": "2s"}, {"from": 5, "to": 20, "duration": 2}]}
    requests = list(load_traffic({"generator": "random", "arrivals": stages}))
    assert 0 < len(requests) < 100
    endless = {"generator": "random", "arrivals": stages | {"repeat": True}}
    with pytest.raises(TrafficError, match="would never end; give limit"):
        load_traffic(endless)
    assert load_traffic(endless, must_end=False).concurrency is None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "traffic: must be a mapping, not list"),
        ({}, "traffic: give one of generator, trace, streams; none is given"),
        ({"generator": "random", "trace": "x"}, "not generator and trace"),
        ({"generator": "x"}, "traffic.generator: 'x' is not one of random, shared-prefix"),
        ({"generator": "random", "limit": 1}, r"traffic.arrivals: is missing; write"),
        (RANDOM | {"prompt_token": 1}, "unknown field 'prompt_token'; did you mean prompt_tokens"),
        (RANDOM | {"prompt_tokens": 0}, "traffic.prompt_tokens: must be above 0"),
        (RANDOM | {"prompt_tokens": []}, "prompt_tokens: a list of lengths must not be empty"),
        (RANDOM | {"prompt_tokens": [0]}, "prompt_tokens: 0 in a list of lengths"),
        (RANDOM | {"prompt_tokens": "a"}, "traffic.prompt_tokens: 'a' is not a length"),
        (RANDOM | {"prompt_tokens": {"x": "y"}}, "a mapping must have the field `file`"),
        (RANDOM | {"prompt_tokens": {"file": "no"}}, "prompt_tokens: no: no such file"),
        (RANDOM | {"limit": 0}, "traffic.limit: 0 is not above 0"),
        (RANDOM | {"limit": "x"}, r"traffic.limit: Expected `int \| null`, got `str`"),
        (RANDOM | {"skip": -1}, "traffic.skip: -1 is below 0"),
        (RANDOM | {"time_scale": 0}, "traffic.time_scale: 0.0 is not above 0"),
        (RANDOM | {"duration": "4"}, "traffic.duration: `4` is no duration"),
        (RANDOM | {"tenants": {"a": -1}}, "traffic.tenants: weight -1.0 of 'a'"),
        (RANDOM | {"tenants": {"a": 0}}, "traffic.tenants: give at least one weight above 0"),
        (RANDOM | {"slos": [{"ttf": "1s"}]}, r"traffic.slos\[0\]: unknown field 'ttf'; did you"),
        (RANDOM | {"arrivals": {}}, "traffic.arrivals: give one of concurrency, rate and stages"),
        (RANDOM | {"arrivals": {"rate": 0}}, "traffic.arrivals: rate 0.0 is not a number above 0"),
        (RANDOM | {"arrivals": {"rate": 1, "cv": 2}}, "arrivals.cv: goes with process gamma"),
        (RANDOM | {"arrivals": {"rate": 1, "on": 1}}, "on and off: give both or neither"),
        (RANDOM | {"arrivals": {"rate": 1, "repeat": True}}, "repeat: goes with stages"),
        (RANDOM | {"arrivals": {"concurrency": 0}}, "arrivals.concurrency: 0 is not above 0"),
        (
            RANDOM | {"arrivals": {"stages": [{"rate": 1, "to": 2, "duration": 1}]}},
            r"traffic.arrivals.stages\[0\]: give rate, or from and to",
        ),
        (RANDOM | {"arrivals": {"stages": []}}, "traffic.arrivals: the rate is 0 all the time"),
        (
            RANDOM | {"arrivals": {"concurrency": 3}, "duration": "5s"},
            "traffic.duration: needs arrivals with times",
        ),
        ({"streams": []}, "traffic.streams: must not be empty"),
        ({"streams": [RANDOM], "arrivals": {"rate": 1}}, "each stream has its own"),
        (
            {"streams": [RANDOM | {"arrivals": {"concurrency": 1}}]},
            r"traffic.streams\[0\].arrivals: streams need times",
        ),
        (
            {"streams": [RANDOM | {"groups": 1}]},
            r"traffic.streams\[0\]: unknown field 'groups'",
        ),
        ({"trace": "no.jsonl"}, "no.jsonl: no such file"),
        ({"trace": "x", "format": "y"}, "traffic.format: 'y' is not one of mooncake, azure"),
    ],
)
def test_an_invalid_description_is_refused_by_the_name_of_its_field(
    document: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TrafficError, match=message):
        load_traffic(document, folder=Path())
