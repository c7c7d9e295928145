"""The gateway's subset hint in all its forms."""

from parity.case import Case, Ours
from parity.cases.director import HELLO, served, world
from parity.cases.refusals import rejection
from parity.envoy import SUBSET_KEY, SUBSET_NAMESPACE
from parity.fixture import (
    no_candidates,
    pod,
)
from parity.worlds import World

TWO = (pod(0, 3, 0.2), pod(1, 0, 0.1))


def _hint(value: object) -> dict[str, object]:
    return {SUBSET_NAMESPACE: {SUBSET_KEY: value}}


NOBODY_NAMED = no_candidates(
    "the gateway restricts this request to no endpoint, and none of the 2 endpoints of the pool is"
    " one of them"
)
POOL = world(pods=TWO)
NO_FILTER = World(TWO, POOL.config, follows_subset=False)

CANDIDATES = (
    served(
        "candidates: empty metadata",
        POOL,
        HELLO,
        address="192.168.1.2:8000",
        metadata={SUBSET_NAMESPACE: {}},
    ),
    rejection("candidates: empty list", POOL, HELLO, NOBODY_NAMED, metadata=_hint([])),
    rejection("candidates: no texts", POOL, HELLO, NOBODY_NAMED, metadata=_hint([1, 2])),
    *[
        served(
            f"candidates: filter off, {title}",
            NO_FILTER,
            HELLO,
            address="192.168.1.2:8000",
            metadata=_hint(value),
        )
        for title, value in (
            ("one named", ["192.168.1.1:8000"]),
            ("nobody named", []),
            ("one named that is not there", ["192.168.1.99:8000"]),
        )
    ],
    Case(
        name="candidates: a text with commas",
        world=POOL,
        steps=HELLO,
        metadata=_hint("192.168.1.98:8000,192.168.1.99:8000"),
        reference={"grpc_status": "OK", "status": 0},
        ours={"status": Ours(503, "subset hint")},
        ours_in_compat={"status": Ours(503, "subset hint")},
    ),
)
