"""Whatever happens to objects, watches and history: in the end the copy equals a fresh list."""

import asyncio
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.kubernetes.api import ApiClient, Connection

from .conftest import connect
from .fake_api import CONFIG_MAPS, FakeApi, fake_api
from .fake_state import RefusedError, expired
from .followed import Followed, Thing, following

NAMES = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "delete", "relabel"]), NAMES),
        st.tuples(
            st.sampled_from(
                [
                    "cut",
                    "cut in next event",
                    "end",
                    "expire",
                    "compact",
                    "bookmark",
                    "restore",
                    "refuse",
                    "catch up",
                    "let run",
                ]
            ),
            st.just(""),
        ),
    ),
    max_size=30,
)


def _change(step: str, name: str, number: int, api: FakeApi) -> None:
    """Change an object."""
    exists = any(
        each["metadata"]["name"] == name for each in api.state.select(CONFIG_MAPS, lambda _: True)
    )
    if step == "put" and not exists:
        api.create(CONFIG_MAPS, name, labels={"app": "x"}, data={"value": str(number)})
    elif step == "put":
        api.update(CONFIG_MAPS, name, data={"value": str(number)})
    elif step == "relabel" and exists:
        api.update(CONFIG_MAPS, name, labels={"app": "y" if number % 2 else "x"})
    elif step == "delete" and exists:
        api.delete(CONFIG_MAPS, name)


async def _do(step: str, number: int, api: FakeApi, followed: Followed[Thing]) -> None:
    """Do something to the server or its connections, or let the reflector run."""
    match step:
        case "cut":
            api.cut_watches()
        case "cut in next event":
            api.cut_watches_in_next_event()
        case "end":
            api.end_watches()
        case "expire":
            api.fail_watches(expired())
        case "compact":
            api.state.compact()
        case "bookmark":
            api.send_bookmarks()
        case "restore" if api.state.revision > 200:
            # The watches of a server do not survive a restore of its etcd.
            api.state.restore()
            api.cut_watches()
        case "refuse":
            api.faults.refusals.append(RefusedError(500, "InternalError", "broken"))
        case "catch up":
            await _equality(api, followed)
        case "let run":
            for _ in range(number % 7):
                await asyncio.sleep(0)


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
    steps: list[tuple[str, str]],
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
            for number, (step, name) in enumerate(steps):
                if name:
                    _change(step, name, number, api)
                else:
                    await _do(step, number, api, followed)
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
    steps: list[tuple[str, str]],
    watch_list: Literal["served", "refused"],
    expired_as: Literal["event", "status"],
) -> None:
    asyncio.run(_run(connection, steps, watch_list, expired_as))
