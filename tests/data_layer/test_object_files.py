"""Objects files are followed; a broken one keeps its last good objects and is reported once."""

import asyncio
import contextlib
import errno
import os
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from log_watch import Logs
from structlog.testing import capture_logs

from epp.data_layer import ObjectFileError, ObjectFiles, ObjectStore
from epp.data_layer.objects import Objective, Rewrite


class Store(ObjectStore):
    """Lets a test wait until its content has changed."""

    def __init__(self) -> None:
        super().__init__(pool_name="pool", rng=random.Random(1))
        self.replaced = asyncio.Event()

    def replace(self, objects: Iterable[Objective | Rewrite]) -> Mapping[str, Mapping[str, str]]:
        in_vain = super().replace(objects)
        self.replaced.set()
        return in_vain

    async def until_replaced(self) -> None:
        await self.replaced.wait()
        self.replaced.clear()


def objective(name: str, priority: int | str) -> str:
    return (
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\n"
        f"metadata: {{name: {name}}}\nspec: {{priority: {priority}}}\n"
    )


def write(path: Path, text: str) -> None:
    """Write as an editor does: beside it, then in its place."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.rename(path)


@asynccontextmanager
async def following(store: Store, *paths: Path) -> AsyncIterator[ObjectFiles]:
    files = ObjectFiles(paths, poll_seconds=0.01)
    task = asyncio.create_task(files.run(store))
    await store.until_replaced()
    try:
        yield files
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_files_and_directories_are_read_in_the_order_given(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "b.yml").write_text(objective("two", 2))
    (folder / "a.yaml").write_text(objective("one", 1))
    (folder / "c.json").write_text(
        '{"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceObjective",'
        '"metadata": {"name": "three"}, "spec": {"priority": 3}}'
    )
    (folder / "notes.txt").write_text("not: [read")
    (folder / ".hidden.yaml").write_text("not: [read")
    (folder / "below.yaml").mkdir()
    first = tmp_path / "first.yaml"
    first.write_text(objective("two", 22))
    store = Store()
    with capture_logs() as logs:
        await ObjectFiles([first, folder]).load(store)
    assert [store.priority_of(name) for name in ("one", "two", "three")] == [1, 22, 3]
    assert [log["event"] for log in logs] == ["object left out"]  # the second "two"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "cannot be read: no such file or directory", id="absent"),
        pytest.param("#" * (1024 * 1024 + 1), "larger than the limit of 1 MiB", id="too large"),
        pytest.param(objective("a", "x"), "4:18: spec.priority: expected", id="wrong field"),
    ],
)
async def test_the_first_look_must_succeed(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "o.yaml"
    if text is not None:
        path.write_text(text)
    store = Store()
    with pytest.raises(ObjectFileError) as caught:
        await ObjectFiles([path]).run(store)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert not store.replaced.is_set()


async def test_files_that_change_come_and_go_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(objective("a", 1))
    store = Store()
    async with following(store, tmp_path):
        assert store.priority_of("a") == 1
        write(tmp_path / "a.yaml", objective("a", 2))
        await store.until_replaced()
        assert store.priority_of("a") == 2
        write(tmp_path / "b.yaml", objective("b", 3))
        await store.until_replaced()
        assert store.priority_of("b") == 3
        (tmp_path / "a.yaml").unlink()
        await store.until_replaced()
        assert (store.priority_of("a"), store.priority_of("b")) == (0, 3)


async def test_the_links_of_a_mounted_config_map_are_followed(tmp_path: Path) -> None:
    for version, priority in (("v1", 1), ("v2", 2)):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "o.yaml").write_text(objective("a", priority))
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "o.yaml").symlink_to("..data/o.yaml")
    store = Store()
    async with following(store, tmp_path):
        assert store.priority_of("a") == 1
        (tmp_path / "..tmp").symlink_to("..v2")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        await store.until_replaced()
        assert store.priority_of("a") == 2


async def test_a_broken_file_keeps_its_objects_and_others_are_followed(
    tmp_path: Path, logs: Logs
) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    good, broken, single = folder / "good.yaml", folder / "broken.yaml", tmp_path / "single.yaml"
    for name, path in (("good", good), ("broken", broken), ("single", single)):
        path.write_text(objective(name, 1))
    store = Store()

    def priorities() -> list[int]:
        return [store.priority_of(name) for name in ("good", "broken", "single")]

    async with following(store, folder, single):
        write(broken, objective("broken", "x"))
        await logs.until("spec.priority")
        single.unlink()
        await logs.until("single.yaml: cannot be read")
        write(good, objective("good", 2))
        await store.until_replaced()
        assert priorities() == [2, 1, 1]
        folder.rename(tmp_path / "away")
        await logs.until("good.yaml: cannot be read")
        assert priorities() == [2, 1, 1]
        write(tmp_path / "away" / "broken.yaml", objective("broken", 3))
        (tmp_path / "away").rename(folder)
        write(single, objective("single", 3))
        while priorities() != [2, 3, 3]:
            await store.until_replaced()
        missing = {str(path) for path in (good, broken, single)}
        while missing := missing - {e["path"] for e in logs.entries if "recovered" in e["event"]}:
            await logs.until("recovered")
    warned = [entry["error"] for entry in logs.entries if entry["log_level"] == "warning"]
    assert len(warned) == len(set(warned))  # each fault once


async def test_an_entry_that_may_not_be_looked_at_is_a_fault_of_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("")

    # As in a directory that may be listed but not entered; root may do both.
    def forbidden(self: Path, *_: object, **__: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    for method in ("stat", "open"):
        monkeypatch.setattr(Path, method, forbidden)
    with pytest.raises(ObjectFileError, match=r"a\.yaml: cannot be read: permission denied"):
        await ObjectFiles([tmp_path]).load(Store())
