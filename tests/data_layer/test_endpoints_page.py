"""The page /debug/endpoints: health, draining, and requests in flight."""

from random import Random
from typing import Any

import msgspec

from epp.data_layer import DrainMarks, EndpointSpec, EndpointStore, EndpointsView
from epp.outlier_detection import OutlierDetector, OutlierSettings

SPECS = [
    EndpointSpec("default/0", "10.0.0.0:80"),
    EndpointSpec("default/1", "10.0.0.1:80", {"drain": "true"}),
]


class Pool:
    """Two endpoints, of which the second has the drain label."""

    def __init__(self, *, is_watched: bool) -> None:
        self.now = 10.0
        self.store = EndpointStore(DrainMarks(("drain", "true")))
        self.outliers: OutlierDetector | None = None
        if is_watched:
            self.outliers = OutlierDetector(
                lambda: self.store.serving,
                settings=OutlierSettings(),
                clock=lambda: self.now,
                rng=Random(0),
                waiting=lambda: (),
            )
            self.store.add_listener(self.outliers)
        self.view = EndpointsView(self.store, self.outliers, lambda: self.now)
        self.store.replace_endpoints("test", SPECS)

    def page(self) -> Any:
        return msgspec.to_builtins(self.view.page())


def test_every_endpoint_has_its_state_and_the_reason() -> None:
    pool = Pool(is_watched=True)
    assert pool.outliers is not None
    for _ in range(3):
        pool.outliers.responded(pool.store.snapshot[0], 502)
    pool.now += 0.25
    page = pool.page()
    assert page["panic"] is False
    assert page["endpoints"][0] == {
        "name": "default/0",
        "address": "10.0.0.0:80",
        "state": "ejected",
        "since_seconds": 0.25,
        "reason": "3 failed responses in a row, the last with 502",
        "share": 0.0,
        "returns_in_seconds": 0.75,
        "ejections": {
            "scrapes": 0,
            "health-checks": 0,
            "responses": 1,
            "success-rate": 0,
            "silence": 0,
        },
        "draining": "",
        "drain_ends_in_seconds": None,
        "in_flight": 0,
    }
    draining = page["endpoints"][1]
    assert (draining["state"], draining["draining"]) == ("healthy", "label drain=true")
    assert (draining["share"], draining["returns_in_seconds"]) == (0.0, None)


def test_without_outlier_detection_health_is_unknown_and_draining_is_shown() -> None:
    pool = Pool(is_watched=False)
    first, second = pool.store.snapshot
    pool.store.drains.commands[second] = 15.0
    page = pool.page()
    assert page["panic"] is False
    assert page["endpoints"][0] == {
        "name": "default/0",
        "address": "10.0.0.0:80",
        "state": "unwatched",
        "since_seconds": None,
        "reason": "",
        "share": 1.0,
        "returns_in_seconds": None,
        "ejections": {},
        "draining": "",
        "drain_ends_in_seconds": None,
        "in_flight": 0,
    }
    shown = page["endpoints"][1]
    assert shown["draining"] == "label drain=true and epp drain"
    assert (shown["share"], shown["drain_ends_in_seconds"]) == (0.0, 5.0)
    assert not first.is_draining
