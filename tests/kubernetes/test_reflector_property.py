"""In any history of objects, watches and faults, the copy finally equals a fresh list."""

import asyncio
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.kubernetes.api import ApiClient, Connection

from .conftest import connect
from .fake_api import CONFIG_MAPS, FakeApi, fake_api
from .fake_state import RefusedError, expired
from .followed import Followed, Thing, following

Change = tuple[str, str]
"""What happens to the object of a name."""

CHANGES = st.tuples(st.sampled_from(["put", "put", "delete", "relabel"]), st.sampled_from("abcd"))


@dataclass(frozen=True)
class Step:
    """Something happens to the server or the watches, then objects change before it is noticed."""

    event: str
    changes: list[Change]
    forgets: bool
    """Whether the server then forgets its history."""
    turns: int
    """How many turns of the event loop the reflector then gets; -1 for until it is equal."""


STEPS = st.lists(
    st.builds(
        Step,
        event=st.sampled_from(
            [
                "none",
                "cut",
                "cut in next event",
                "end",
                "expire",
                "bookmark",
                "restore",
                "refuse",
            ]
        ),
        changes=st.lists(CHANGES, max_size=4),
        forgets=st.booleans(),
        turns=st.sampled_from([-1, -1, 0, 1, 3, 10]),
    ),
    max_size=12,
)


def _change(change: str, name: str, number: int, api: FakeApi) -> None:
    """Change an object."""
    exists = any(
        each["metadata"]["name"] == name for each in api.state.select(CONFIG_MAPS, lambda _: True)
    )
    if change == "put" and not exists:
        api.create(CONFIG_MAPS, name, labels={"app": "x"}, data={"value": str(number)})
    elif change == "put":
        api.update(CONFIG_MAPS, name, data={"value": str(number)})
    elif change == "relabel" and exists:
        api.update(CONFIG_MAPS, name, labels={"app": "y" if number % 2 else "x"})
    elif change == "delete" and exists:
        api.delete(CONFIG_MAPS, name)


def _happen(event: str, api: FakeApi) -> None:
    match event:
        case "cut":
            api.cut_watches()
        case "cut in next event":
            api.cut_watches_in_next_event()
        case "end":
            api.end_watches()
        case "expire":
            api.fail_watches(expired())
        case "bookmark":
            api.send_bookmarks()
        case "restore" if api.state.revision > 200:
            # The watches of a server do not survive a restore of its etcd.
            api.state.restore()
            api.cut_watches()
        case "refuse":
            api.faults.refusals.append(RefusedError(500, "InternalError", "broken"))


async def _equality(api: FakeApi, followed: Followed[Thing]) -> None:
    """Wait until the copy has the resource versions of the objects that match."""

    def is_equal() -> bool:
        expected = {
            each["metadata"]["name"]: each["metadata"]["resourceVersion"]
            for each in api.state.select(
                CONFIG_MAPS, lambda body: body["metadata"]["labels"].get("app") == "x"
            )
        }
        objects = followed.reflector.objects.items()
        return {key[1]: each.metadata.resource_version for key, each in objects} == expected

    await followed.synced()
    await followed.until(is_equal)


async def _run(
    connection: Connection,
    steps: list[Step],
    watch_list: Literal["served", "refused"],
    expired_as: Literal["event", "status"],
) -> None:
    async with fake_api() as api:
        api.faults.watch_list, api.faults.expired_as = watch_list, expired_as
        async with (
            ApiClient(replace(connection, server=api.url)) as client,
            following(
                client,
                CONFIG_MAPS,
                Thing,
                namespace="d",
                label_selector="app=x",
                sleep=lambda _: asyncio.sleep(0),
            ) as followed,
        ):
            for number, step in enumerate(steps):
                _happen(step.event, api)
                for change, name in step.changes:
                    _change(change, name, number, api)
                if step.forgets:
                    api.state.compact()
                for _ in range(step.turns):
                    await asyncio.sleep(0)
                if step.turns < 0:
                    await _equality(api, followed)
            await _equality(api, followed)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Connection:
    """One for all examples: its TLS context takes 25 ms to make."""
    return connect(tmp_path_factory.mktemp("kube"), "http://replaced")


@settings(max_examples=150)
@given(
    steps=STEPS,
    watch_list=st.sampled_from(["served", "refused"]),
    expired_as=st.sampled_from(["event", "status"]),
)
def test_the_copy_ends_in_the_state_of_the_server(
    connection: Connection,
    steps: list[Step],
    watch_list: Literal["served", "refused"],
    expired_as: Literal["event", "status"],
) -> None:
    asyncio.run(_run(connection, steps, watch_list, expired_as))
