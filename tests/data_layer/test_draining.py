"""Endpoints that an operator drains: by name, for a time, until undone or removed."""

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from epp.data_layer import DrainCalls, DrainMarks, EndpointSpec, EndpointStore, EndpointsView
from epp.data_layer.endpoints_page import EndpointLine
from epp.observability import AdminError


def spec(name: str, **labels: str) -> EndpointSpec:
    number = ord(name[-1])
    return EndpointSpec(name, f"10.0.0.{number}:80", labels)


class Pool:
    """A pool, and the calls that drain its endpoints."""

    def __init__(self, *specs: EndpointSpec) -> None:
        self.changes = 0
        self.store = EndpointStore(
            DrainMarks(("drain", "true")), serving_changed=self._serving_changed
        )
        clock = asyncio.get_running_loop().time
        view = EndpointsView(self.store, None, clock)
        self.calls = DrainCalls(self.store, line=view.line, clock=clock)
        self.store.add_listener(self.calls)
        self.report(*specs)

    def _serving_changed(self) -> None:
        self.changes += 1

    def report(self, *specs: EndpointSpec) -> None:
        self.store.replace_endpoints("test", specs)

    def drain(self, endpoint: str, **parameters: str) -> EndpointLine:
        response = self.calls.drain({"endpoint": endpoint, **parameters})
        assert response.serving == len(self.store.serving)
        return response.endpoint

    def undrain(self, endpoint: str) -> EndpointLine:
        return self.drain(endpoint, undo="true")

    @property
    def serving(self) -> Sequence[str]:
        return [each.name for each in self.store.serving]


async def test_a_drained_endpoint_gets_no_new_requests_until_that_is_undone() -> None:
    pool = Pool(spec("ns/a"), spec("ns/b"))
    with capture_logs() as logs:
        line = pool.drain("ns/a")
    assert (line.name, line.draining, line.share) == ("ns/a", "epp drain", 0.0)
    assert pool.serving == ["ns/b"]
    assert [each.name for each in pool.store.snapshot] == ["ns/a", "ns/b"]
    assert [(each["event"], each["reason"]) for each in logs] == [
        ("endpoint is draining", "epp drain")
    ]
    with capture_logs() as logs:
        line = pool.undrain("ns/a")
    assert (line.draining, pool.serving) == ("", ["ns/a", "ns/b"])
    assert [each["event"] for each in logs] == ["endpoint takes new requests again"]
    assert pool.changes == 2


async def test_to_undo_what_nobody_did_changes_nothing() -> None:
    pool = Pool(spec("ns/a"))
    with capture_logs() as logs:
        assert pool.undrain("ns/a").draining == ""
    assert (logs, pool.changes) == ([], 0)


async def test_a_command_outlives_a_change_of_labels() -> None:
    pool = Pool(spec("ns/a"), spec("ns/b"))
    pool.drain("ns/a")
    pool.report(spec("ns/a", drain="true"), spec("ns/b"))
    pool.report(spec("ns/a", drain="false"), spec("ns/b"))
    assert pool.serving == ["ns/b"]


async def test_the_label_drains_what_a_command_does_not_any_more() -> None:
    pool = Pool(spec("ns/a", drain="true"), spec("ns/b"))
    both = pool.drain("ns/a").draining
    assert both == "label drain=true and epp drain"
    assert pool.undrain("ns/a").draining == "label drain=true"
    assert pool.serving == ["ns/b"]
    assert pool.changes == 1


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(EndpointSpec("ns/a", "10.0.0.97:80"), id="the same endpoint"),
        pytest.param(EndpointSpec("ns/a", "10.0.0.1:80"), id="another server of that name"),
    ],
)
async def test_a_command_ends_when_its_endpoint_leaves_the_pool(again: EndpointSpec) -> None:
    pool = Pool(spec("ns/a"), spec("ns/b"))
    pool.drain("ns/a", seconds="60")
    pool.report(spec("ns/b"))
    assert pool.store.drains.commands == {}
    pool.report(again, spec("ns/b"))
    assert pool.serving == ["ns/a", "ns/b"]


@pytest.mark.looptime
async def test_a_command_for_a_time_ends_by_itself() -> None:
    pool = Pool(spec("ns/a"), spec("ns/b"))
    line = pool.drain("ns/a", seconds="1.5")
    assert line.drain_ends_in_seconds == 1.5
    await asyncio.sleep(1.4)
    assert pool.serving == ["ns/b"]
    await asyncio.sleep(0.2)
    assert pool.serving == ["ns/a", "ns/b"]


@pytest.mark.looptime
async def test_a_second_command_replaces_the_time_of_the_first() -> None:
    pool = Pool(spec("ns/a"), spec("ns/b"))
    pool.drain("ns/a", seconds="1")
    assert pool.drain("ns/a").drain_ends_in_seconds is None
    pool.drain("ns/b", seconds="1")
    pool.undrain("ns/b")
    pool.drain("ns/b", seconds="5")
    await asyncio.sleep(2.0)
    assert pool.serving == []
    await asyncio.sleep(4.0)
    assert pool.serving == ["ns/b"]


@pytest.mark.parametrize("name", ["ns/a", "a", "10.0.0.97:80"])
async def test_an_endpoint_may_be_named_as_in_explain(name: str) -> None:
    pool = Pool(spec("ns/a"), spec("ns/b"))
    assert pool.drain(name).name == "ns/a"


async def test_a_name_of_several_endpoints_is_refused() -> None:
    pool = Pool(spec("x/a"), spec("y/a"), spec("a"))
    assert pool.drain("a").name == "a"
    pool.report(spec("x/a"), spec("y/a"))
    with pytest.raises(AdminError, match="'a' is more than one endpoint: x/a, y/a") as caught:
        pool.drain("a")
    assert caught.value.status == 409
    assert pool.serving == ["x/a", "y/a"]


async def test_an_unknown_endpoint_is_refused_with_some_of_the_known_ones() -> None:
    pool = Pool(*(spec(f"ns/{letter}") for letter in "abcdefghijkl"))
    with pytest.raises(AdminError) as caught:
        pool.drain("z")
    assert caught.value.status == 404
    assert str(caught.value) == (
        "there is no endpoint 'z'; the pool has ns/a, ns/b, ns/c, ns/d, ns/e, ns/f, ns/g, ns/h,"
        " ns/i, ns/j and 2 more"
    )
    pool.report()
    with pytest.raises(AdminError, match="no endpoint ''; the pool has none"):
        pool.calls.drain({})


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        *(
            ({"seconds": seconds}, f"seconds is '{seconds}', not a positive number")
            for seconds in ("0", "-1", "nan", "inf", "soon", "")
        ),
        ({"undo": "yes"}, "undo is 'yes', not true or false"),
        ({"second": "5"}, "there is no parameter 'second'; there are endpoint, seconds, undo"),
    ],
)
async def test_invalid_parameters_are_refused(parameters: dict[str, str], error: str) -> None:
    pool = Pool(spec("ns/a"))
    with pytest.raises(AdminError) as caught:
        pool.drain("ns/a", **parameters)
    assert (caught.value.status, str(caught.value)) == (400, error)
    assert pool.serving == ["ns/a"]


async def test_if_no_endpoint_takes_requests_the_reason_says_how_to_end_that() -> None:
    pool = Pool()
    assert pool.store.why_none_serves() == ""
    pool.report(spec("ns/a", drain="true"))
    assert pool.store.why_none_serves() == (
        "the only endpoint of the pool is draining; remove the label drain=true"
    )
    pool.report(spec("ns/a", drain="true"), spec("ns/b"))
    pool.drain("b")
    assert pool.store.why_none_serves() == (
        "all 2 endpoints of the pool are draining; remove the label drain=true or run `epp drain"
        " --undo ENDPOINT`"
    )
