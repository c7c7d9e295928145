"""Samples that split a request over several profiles, ports or headers."""

from collections.abc import Mapping
from typing import Any

import pytest

from epp.observability import PluginMetricsCollector
from epp.request_control.errors import ProfileNotFoundError
from epp.testing import make_endpoints

from .harness import PROMPT, ROLE, Epp, graph_of

PLACES = {
    "host": "kubernetes.io/hostname",
    "rack": "topology.kubernetes.io/rack",
    "zone": "topology.kubernetes.io/zone",
    "region": "topology.kubernetes.io/region",
}
"""Labels by the place that they name."""
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
Table = dict[str, dict[str, Any]]


def server(role: str, load: Mapping[str, Any] | None = None, **labels: str) -> dict[str, Any]:
    """Return the row of a server with a role, a load and places."""
    given = {PLACES[place]: name for place, name in labels.items()}
    return {"labels": {ROLE: role, **given}, **(load or {})}


def roles(**counts: int) -> Table:
    """Return idle servers: ``prefill=2`` for ``prefill-0`` and ``prefill-1``."""
    return {f"{role}-{n}": server(role) for role, count in counts.items() for n in range(count)}


def waiting(count: int) -> dict[str, int]:
    return {"waiting_requests": count}


# --- pd.yaml, pd-topology.yaml, pd-joint.yaml, predicted-time-pd.yaml -------------------------


@pytest.mark.parametrize("sample", ["pd", "pd-topology", "pd-joint", "predicted-time-pd"])
@pytest.mark.parametrize(
    ("tokens", "stages"),
    [
        pytest.param(511, {"decode"}, id="511 tokens: decode alone"),
        pytest.param(512, {"decode", "prefill"}, id="512 tokens: prefill"),
    ],
)
def test_a_new_prompt_of_this_length_goes_through(
    sample: str, tokens: int, stages: set[str]
) -> None:
    ran = Epp.of(sample, roles(prefill=2, decode=2)).stages("x" * (4 * tokens - 2))
    assert set(ran) == stages
    assert all(name.startswith(stage) for stage, names in ran.items() for name in names)


@pytest.mark.parametrize("sample", ["pd", "pd-topology", "pd-joint", "predicted-time-pd"])
def test_what_the_decode_server_has_in_cache_is_not_prefilled_again(sample: str) -> None:
    epp = Epp.of(sample, roles(prefill=2, decode=2))
    first = epp.stages(PROMPT)
    assert epp.stages(PROMPT) == {"decode": first["decode"]}
    # 500 tokens more are too few, 512 are enough; the prompt's last block, 42 tokens, was partial.
    assert set(epp.stages(PROMPT + "x" * 1800)) == {"decode"}
    again = epp.stages(PROMPT + "y" * 2100)
    assert again == first


@pytest.mark.parametrize(
    ("table", "counted"),
    [
        pytest.param(roles(decode=2), 1, id="no prefill server is there"),
        pytest.param({**roles(decode=2), "e": server("encode")}, 1, id="only one of another role"),
        pytest.param(roles(decode=2, prefill=1), 0, id="there is one"),
    ],
)
def test_without_prefill_servers_decode_does_all_and_that_is_counted(
    table: Table, counted: int
) -> None:
    metrics = PluginMetricsCollector()
    epp = Epp(graph_of("pd", metrics=metrics), make_endpoints(table))
    exchange = epp.decided(PROMPT, headers={"x-prefiller-host-port": "10.6.6.6:80"})
    assert ("prefill" in exchange.decision.result.profiles) is (not counted)
    prefiller = exchange.decision.request_headers["x-prefiller-host-port"]
    assert prefiller == (None if counted else epp.endpoints["prefill-0"].address)
    degraded = [
        sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.name == "llm_d_epp_disagg_degraded_total"
        and (sample.labels["stage"], sample.labels["reason"]) == ("prefill", "no-endpoints")
    ]
    assert sum(degraded) == counted


@pytest.mark.parametrize(
    ("prefills", "wanted"),
    [
        pytest.param(
            {"in-b": server("prefill", zone="b"), "in-a": server("prefill", waiting(9), zone="a")},
            "in-a",
            id="in the zone, though its queue is longer",
        ),
        pytest.param(
            {"in-b": server("prefill", zone="b"), "anywhere": server("prefill", waiting(9))},
            "in-b",
            id="elsewhere, if there is none in the zone",
        ),
        pytest.param(
            {
                "in-region": server("prefill", zone="b", region="x"),
                "in-a": server("prefill", waiting(9), zone="a", region="x"),
            },
            "in-a",
            id="the region is not close enough",
        ),
        # 3 * 0.2 + 2 against 3 * 0.05 + 2
        pytest.param(
            {"in-a": server("prefill", zone="a"), "r": server("prefill", zone="a", rack="r")},
            "r",
            id="in the rack rather than in the zone",
        ),
        # 3 * 0.2 + 0 against 3 * 0.05 + 2
        pytest.param(
            {
                "in-a": server("prefill", zone="a"),
                "r": server("prefill", waiting(9), zone="a", rack="r"),
            },
            "in-a",
            id="not in the rack, if its queue is longer",
        ),
        # 3 * 1 + 0 against 3 * 0.2 + 2
        pytest.param(
            {
                "r": server("prefill", zone="a", rack="r"),
                "h": server("prefill", waiting(9), zone="a", rack="r", host="h"),
            },
            "h",
            id="on the host, though its queue is longer",
        ),
    ],
)
def test_the_prefill_is_close_to_the_decode(prefills: Table, wanted: str) -> None:
    decode = {"decode": server("decode", region="x", zone="a", rack="r", host="h")}
    epp = Epp.of("pd-topology", decode | prefills)
    assert epp.stages(PROMPT) == {"decode": ["decode"], "prefill": [wanted]}


PAIRS: Table = {
    # Queue scores 1, 1 - 1/40 and 0, so totals 2, 1.95 and 0.
    "best-in-a": server("prefill", waiting(0), zone="a"),
    "second-in-b": server("prefill", waiting(1), zone="b"),
    "full": server("prefill", waiting(40)),
    "decode-in-b": server("decode", zone="b"),
}


@pytest.mark.parametrize(
    ("sample", "change", "wanted"),
    [
        # 1 + 1.95/2 + 0.05 against 1 + 1 + 0
        pytest.param("pd-joint", {}, "second-in-b", id="the pair in one zone"),
        pytest.param("pd", {}, "best-in-a", id="each for itself without `joint`"),
        # A total of 2 * (1 - 5/40) = 1.75 is below 0.9 of the best.
        pytest.param(
            "pd-joint",
            {"second-in-b": server("prefill", waiting(5), zone="b")},
            "best-in-a",
            id="no pair with a server far from the best",
        ),
    ],
)
def test_a_pair_is_chosen(sample: str, change: Table, wanted: str) -> None:
    epp = Epp.of(sample, PAIRS | change)
    assert epp.stages(PROMPT) == {"decode": ["decode-in-b"], "prefill": [wanted]}


def test_a_pair_may_move_the_decode_too() -> None:
    table = {
        "p": server("prefill", zone="a", host="h"),
        "decode-alone": server("decode", waiting(0)),
        # Totals 2 + 2 and 2 * (1 - 1/40) + 2: 0.99 + 1 + 1 against 1 + 1 + 0.
        "decode-on-h": server("decode", waiting(1), zone="a", host="h"),
        "decode-full": server("decode", waiting(40)),
    }
    assert Epp.of("pd", table).stages(PROMPT)["decode"] == ["decode-alone"]
    assert Epp.of("pd-joint", table).stages(PROMPT)["decode"] == ["decode-on-h"]


# --- epd.yaml ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "parts", "stages"),
    [
        pytest.param("Hello", (), {"decode"}, id="a short text"),
        pytest.param(PROMPT, (), {"decode", "prefill"}, id="a long text"),
        # 640 * 360 / 1024 = 225 tokens
        pytest.param("Hello", (PICTURE,), {"decode", "encode"}, id="a picture"),
        pytest.param(
            PROMPT, (PICTURE,), {"decode", "prefill", "encode"}, id="a picture and a long text"
        ),
        pytest.param(
            "Hello",
            ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},),
            {"decode", "encode"},
            id="sound",
        ),
        pytest.param(
            "Hello",
            (PICTURE, PICTURE, PICTURE),
            {"decode", "prefill", "encode"},
            id="three pictures, 675 tokens",
        ),
    ],
)
def test_a_request_goes_through_the_stages_it_needs(
    prompt: str, parts: tuple[dict[str, Any], ...], stages: set[str]
) -> None:
    epp = Epp.of("epd", roles(encode=3, prefill=2, decode=2))
    ran = epp.stages(prompt, parts=parts)
    assert set(ran) == stages
    assert all(name.startswith(stage) for stage, names in ran.items() for name in names)
    assert len(set(ran.get("encode", ()))) == (2 if parts else 0)
    assert len(ran["decode"]) == 1


def test_the_idlest_two_of_three_encode_servers_are_listed_best_first() -> None:
    table = {
        "x": server("encode", waiting(4)),
        "y": server("encode", waiting(9)),
        "z": server("encode", waiting(1)),
        **roles(decode=1),
    }
    assert Epp.of("epd", table).stages(parts=(PICTURE,))["encode"] == ["z", "x"]


# --- data-parallel.yaml -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "rank"),
    [
        pytest.param((3, 0, 2), "10.0.0.1:8002", id="the second rank"),
        pytest.param((3, 4, 2), "10.0.0.1:8003", id="the third"),
        pytest.param((0, 4, 2), "10.0.0.1:8001", id="the first"),
    ],
)
def test_the_gateway_gets_the_port_and_the_server_the_rank(
    queues: tuple[int, ...], rank: str
) -> None:
    epp = Epp.of("data-parallel", {f"rank-{n}": waiting(q) for n, q in enumerate(queues)})
    exchange = epp.send(headers={"x-data-parallel-host-port": "10.6.6.6:80"})
    assert exchange.decision.destination == "10.0.0.1:8000"
    assert exchange.decision.request_headers == {"x-data-parallel-host-port": rank}
    assert exchange.endpoint.address == rank


# --- header-routing.yaml ----------------------------------------------------------------------

ZONES: Table = {
    f"{role}-{zone}": server(role, zone=zone) for role in ("prefill", "decode") for zone in "ab"
}


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        pytest.param({}, {"decode-a", "decode-b"}, id="no header"),
        pytest.param({"epp-profile": "prefill"}, {"prefill-a", "prefill-b"}, id="profile"),
        pytest.param({"x-preferred-zone": "b"}, {"decode-b"}, id="zone"),
        pytest.param({"epp-profile": "prefill", "x-preferred-zone": "a"}, {"prefill-a"}, id="both"),
        pytest.param({"x-preferred-zone": "c"}, {"decode-a", "decode-b"}, id="an unknown zone"),
    ],
)
def test_headers_choose(headers: dict[str, str], wanted: set[str]) -> None:
    epp = Epp.of("header-routing", ZONES)
    assert {epp.chosen(headers=headers) for _ in range(20)} == wanted


def test_a_longer_queue_outweighs_the_zone() -> None:
    epp = Epp.of("header-routing", ZONES)
    epp.load("decode-b", waiting=5)
    # 1 + 2 * 0 against 0 + 2 * 1
    assert epp.chosen(headers={"x-preferred-zone": "b"}) == "decode-a"


def test_a_profile_that_is_not_there_is_a_bad_request() -> None:
    with pytest.raises(ProfileNotFoundError, match="there are: 'decode', 'prefill'"):
        Epp.of("header-routing", ZONES).send(headers={"epp-profile": "encode"})
