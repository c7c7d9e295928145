"""The distribution of a process's file descriptors."""

import resource
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from epp.cli.running import raise_descriptor_limit
from epp.sockets import DescriptorDemand, descriptor_limit, open_descriptors, share_out

DEMAND = DescriptorDemand(ext_proc=1000, health=200, metrics=50, scrapes=250)


def test_every_purpose_gets_its_demand_and_scrapes_get_the_rest() -> None:
    shares = share_out(2000, DEMAND)
    assert (shares.ext_proc, shares.health, shares.metrics) == (1000, 200, 50)
    # 2000 less 64 for the process, 64 in reserve and 1250 for the ports.
    assert shares.scrapes == 622
    assert shares.is_enough


def test_the_smallest_sufficient_limit_is_reported() -> None:
    needed = share_out(2000, DEMAND).needed
    assert needed == 1500 + 128
    assert share_out(needed, DEMAND).is_enough
    assert not share_out(needed - 1, DEMAND).is_enough


@pytest.mark.parametrize("limit", [1627, 1024, 512, 256])
def test_a_low_limit_does_not_use_up_the_reserve(limit: int) -> None:
    shares = share_out(limit, DEMAND)
    given = shares.ext_proc + shares.health + shares.metrics + shares.scrapes
    assert given <= limit - 128
    assert shares.ext_proc > shares.health > shares.metrics


def test_every_purpose_gets_a_minimum_at_any_limit() -> None:
    shares = share_out(0, DEMAND)
    assert (shares.ext_proc, shares.health, shares.metrics, shares.scrapes) == (16, 8, 4, 8)


def test_no_purpose_gets_more_than_its_demand() -> None:
    shares = share_out(0, DescriptorDemand(ext_proc=1, health=1, metrics=1, scrapes=1))
    assert (shares.ext_proc, shares.health, shares.metrics, shares.scrapes) == (1, 1, 1, 1)


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    script = (
        "import resource\n"
        "from epp.sockets import descriptor_limit, raise_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))\n"
        "print(*raise_limit(), *descriptor_limit(), *raise_limit())\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["100", "200", "200", "200", "200", "200"]


@pytest.mark.parametrize(
    ("soft", "hard", "logged"), [(100, 200, [{"soft": 100, "hard": 200}]), (200, 200, [])]
)
def test_a_limit_that_is_raised_is_logged(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, logged: list[dict[str, int]]
) -> None:
    limits = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(
        resource, "setrlimit", lambda _, wanted: limits.__setitem__(slice(2), wanted)
    )
    with capture_logs() as logs:
        raise_descriptor_limit()
    found = [{"soft": each["soft"], "hard": each["hard"]} for each in logs]
    assert found == logged


@pytest.mark.parametrize("error", [ValueError("above the maximum"), OSError("not permitted")])
def test_a_limit_that_cannot_be_raised_stays(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(_resource: int, _limits: tuple[int, int]) -> None:
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refused)
    with capture_logs() as logs:
        raise_descriptor_limit()
    assert logs == []
    assert descriptor_limit().soft == 100


def test_open_descriptors_are_counted() -> None:
    before = open_descriptors()
    assert before is not None
    with open("/dev/null"):  # noqa: PTH123 - the descriptor is what matters
        assert open_descriptors() == before + 1
    assert before < descriptor_limit().soft
