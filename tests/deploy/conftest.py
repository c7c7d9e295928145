"""The sample objects."""

import asyncio

import pytest

from epp.building import make_random
from epp.data_layer import ObjectFiles, ObjectStore

from .harness import DEPLOY


@pytest.fixture(scope="module")
def objects() -> ObjectStore:
    store = ObjectStore(pool_name="default", rng=make_random(0, "objects"))
    asyncio.run(ObjectFiles([DEPLOY / "objects"]).load(store))
    return store
