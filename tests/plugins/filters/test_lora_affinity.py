import random
from collections import Counter

import pytest

from epp.scheduling import Endpoint
from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.filters.lora_affinity import LoraAffinityFilter

ACTIVE = make_endpoint("active", active_adapters=["tuned"], max_adapters=1)
WAITING = make_endpoint("waiting", active_adapters=["x"], waiting_adapters=["tuned"])
ROOM = make_endpoint("room", active_adapters=["x"], max_adapters=2)
FULL = make_endpoint("full", active_adapters=["x"], waiting_adapters=["y"], max_adapters=2)
PLAIN = make_endpoint("plain")


def lora(threshold: float = 0.999, seed: int = 0) -> LoraAffinityFilter:
    parameters = {"threshold": threshold}
    return make_plugin(LoraAffinityFilter, parameters, rng=random.Random(seed))


@pytest.mark.parametrize(
    ("threshold", "endpoints", "want"),
    [
        pytest.param(1.0, [ACTIVE, ROOM, WAITING], ["active", "waiting"], id="holders before room"),
        pytest.param(0.0, [ACTIVE, ROOM, WAITING], ["room"], id="never affinity"),
        pytest.param(0.0, [ACTIVE, FULL], ["active"], id="holders alone, whatever the threshold"),
        pytest.param(1.0, [ROOM, FULL], ["room"], id="room alone, whatever the threshold"),
        pytest.param(1.0, [FULL, PLAIN], [], id="neither leaves nobody"),
        pytest.param(1.0, [], [], id="no endpoint"),
    ],
)
def test_filter(threshold: float, endpoints: list[Endpoint], want: list[str]) -> None:
    assert run_filter(lora(threshold), make_request(target_model="tuned"), endpoints) == want


def test_of_10000_draws_the_threshold_gives_the_share_of_the_holders() -> None:
    plugin, request = lora(0.75), make_request(target_model="tuned")
    drawn = Counter(run_filter(plugin, request, [ACTIVE, ROOM])[0] for _ in range(10_000))
    assert set(drawn) == {"active", "room"}
    assert drawn["active"] / 10_000 == pytest.approx(0.75, abs=0.05)


def test_the_same_seed_draws_the_same() -> None:
    request = make_request(target_model="tuned")
    runs = []
    for _ in range(2):
        plugin = lora(0.5, seed=7)
        runs.append([run_filter(plugin, request, [ACTIVE, ROOM]) for _ in range(50)])
    assert runs[0] == runs[1]


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected `float` <= 1.0 - at `\$\.threshold`"):
        make_plugin(LoraAffinityFilter, {"threshold": 75})


def test_a_profile_picks_the_holder_of_the_adapter() -> None:
    profile = make_profile(filters=[lora(1.0)])
    request = make_request(target_model="tuned")
    assert run_profile(profile, request, [ROOM, FULL, ACTIVE]) == ["active"]
