"""Samples that limit the load of servers, or split traffic at random."""

from collections import Counter
from typing import Any

import pytest

from epp.data_layer import ObjectStore
from epp.request_control.errors import AdmissionDeniedError, SaturatedError
from epp_plugins.state_keys import GPU_UTILIZATION

from .harness import BATCH, Epp, idle

# --- utilization-limits.yaml ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "passes"),
    [
        ({"waiting": 8}, True),
        ({"waiting": 9}, False),
        ({"kv_cache_usage": 0.9}, True),
        ({"kv_cache_usage": 0.91}, False),
    ],
    ids=["8 waiting", "9 waiting", "90 % of the cache", "91 % of the cache"],
)
def test_a_server_gets_requests_up_to_its_limits(load: dict[str, Any], passes: bool) -> None:
    epp = Epp.of("utilization-limits", idle("a", "b"))
    epp.load("a", waiting=50)
    open_requests = [epp.send() for _ in range(3)]
    assert {each.endpoint.name for each in open_requests} == {"b"}
    # Of the two, a has fewer of our requests: it is taken if it is a candidate.
    epp.load("a", **load)
    assert epp.chosen() == ("a" if passes else "b")


def test_32_requests_of_ours_are_as_many_as_a_server_gets_while_others_have_less() -> None:
    # With slots what is sent counts as running, else it would wait.
    epp = Epp.of("utilization-limits", {"a": {"waiting_requests": 50}, "b": {"slots": 64}})
    assert [epp.send().endpoint.name for _ in range(32)] == ["b"] * 32
    # b is full with ours, a by its queue: both are candidates again, and a has none of ours.
    assert epp.chosen() == "a"
    epp.load("a", waiting=8)
    assert epp.chosen() == "a"


@pytest.mark.parametrize(
    ("in_flight", "headers", "is_served"),
    [(63, BATCH, True), (64, BATCH, False), (64, {}, True), (200, {}, True)],
    ids=["63 and sheddable", "64 and sheddable", "64", "200"],
)
def test_a_pool_of_two_is_full_with_64_requests_of_ours(
    in_flight: int, headers: dict[str, str], is_served: bool, objects: ObjectStore
) -> None:
    epp = Epp.of("utilization-limits", idle("a", "b"), objects=objects)
    spread = Counter(epp.send().endpoint.name for _ in range(in_flight))
    assert abs(spread["a"] - spread["b"]) <= 1
    if is_served:
        assert epp.chosen(headers=headers) in {"a", "b"}
        return
    with pytest.raises(
        SaturatedError, match=r"'concurrency-detector' reports a saturation of 1\.00"
    ) as raised:
        epp.send(headers=headers)
    assert (raised.value.status, raised.value.drop_reason) == (429, "rejected-saturated")


# --- gpu-utilization.yaml ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy", "queues", "wanted"),
    [
        # 2 * 0.1 + 1, 2 * 0.9 + 1, 2 * 0.5 + 1
        pytest.param((0.9, 0.1, 0.5), (0, 0, 0), "b", id="the idlest GPU"),
        # 2 * 0.1 + 1, 2 * 0.9 + 0, 2 * 0.5 + 1 = 2
        pytest.param((0.9, 0.1, 0.5), (0, 9, 0), "c", id="not with the longest queue"),
        # 2 * 0.1 + 1, 2 * 1.0 + 0, 2 * 0.6 + 0.5 = 1.7
        pytest.param((0.9, 0.0, 0.4), (0, 8, 4), "b", id="a GPU counts twice as much"),
        # 2 * 0.5 + 0, 2 * 0.48 + 1, 2 * 0.48 + 4/9
        pytest.param((0.5, 0.52, 0.52), (9, 0, 5), "b", id="not for two percent"),
        # 0 + 1, 2 * 0.1 + 1, 2 * 0.4 + 1
        pytest.param((None, 0.9, 0.6), (0, 0, 0), "c", id="what is not known counts as busy"),
        # All alike, so the queue alone decides.
        pytest.param((None, None, None), (3, 2, 1), "c", id="without an exporter the queue"),
    ],
)
def test_the_server_is_chosen_that_has(
    busy: tuple[float | None, ...], queues: tuple[int, ...], wanted: str
) -> None:
    table = {
        name: {
            "waiting_requests": queue,
            "attributes": {} if share is None else {GPU_UTILIZATION: share},
        }
        for name, share, queue in zip("abc", busy, queues, strict=True)
    }
    assert Epp.of("gpu-utilization", table).chosen() == wanted


# --- load-reports.yaml ------------------------------------------------------------------------


def test_servers_are_asked_for_their_load_and_clients_do_not_see_it() -> None:
    exchange = Epp.of("load-reports", idle("a", "b")).send()
    assert exchange.decision.request_headers == {"endpoint-load-metrics-format": "TEXT"}
    report = {"endpoint-load-metrics": "TEXT named_metrics.num_requests_waiting=3"}
    assert exchange.response_started(200, report) == {"endpoint-load-metrics": None}


def test_without_the_sample_they_are_not_asked() -> None:
    exchange = Epp.of("default", idle("a", "b")).send()
    assert exchange.decision.request_headers == {}
    assert exchange.response_started(200, {"endpoint-load-metrics": "TEXT"}) == {}


# --- probabilistic-admitter.yaml --------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "kv_cache_usage", "headers", "share"),
    [
        pytest.param((0, 0), 0.0, BATCH, 0.0, id="none of an idle pool"),
        # 0.13**5 * 300
        pytest.param((0, 0), 0.13 * 0.8, BATCH, 0.011, id="one in a hundred at 13 %"),
        # 0.28**5 * 300
        pytest.param((0, 0), 0.28 * 0.8, BATCH, 0.516, id="half at 28 %"),
        # The mean of 2/5 and 1/5 is 0.3: 0.3**5 * 300
        pytest.param((2, 1), 0.0, BATCH, 0.729, id="queues count, too"),
        pytest.param((2, 2), 0.0, BATCH, 1.0, id="all at 40 %"),
        pytest.param((50, 50), 1.0, {}, 0.0, id="nobody else, however full"),
    ],
)
def test_of_sheddable_requests_are_turned_away(
    queues: tuple[int, ...],
    kv_cache_usage: float,
    headers: dict[str, str],
    share: float,
    objects: ObjectStore,
) -> None:
    table = {
        name: {"waiting_requests": queue, "kv_cache_usage": kv_cache_usage}
        for name, queue in zip("ab", queues, strict=True)
    }
    epp = Epp.of("probabilistic-admitter", table, objects=objects)
    denied = 0
    for _ in range(2000):
        try:
            epp.chosen(headers=headers)
        except AdmissionDeniedError:
            denied += 1
    # Four standard deviations of the mean of 2000 draws are at most 0.045; of sure ones 0.
    spread = 4 * (share * (1 - share) / 2000) ** 0.5
    assert denied / 2000 == pytest.approx(share, abs=spread)


# --- weighted-random.yaml ---------------------------------------------------------------------


def test_servers_are_drawn_by_their_totals_and_the_gateway_gets_a_second_one() -> None:
    epp = Epp.of("weighted-random", {"busy": {"waiting_requests": 50}, "b": {}, "c": {}})
    address = {endpoint.address: name for name, endpoint in epp.endpoints.items()}
    firsts: Counter[str] = Counter()
    for _ in range(2000):
        exchange = epp.decided()
        first, second = (address[each] for each in exchange.decision.destination.split(","))
        assert first == exchange.endpoint.name != second
        firsts[first] += 1
    # Totals 2 * 0 + 1, 2 + 1 and 2 + 1: 1/7, 3/7, 3/7; four standard deviations are 0.03 and 0.044.
    assert firsts["busy"] / 2000 == pytest.approx(1 / 7, abs=0.03)
    assert firsts["b"] / 2000 == pytest.approx(3 / 7, abs=0.044)
