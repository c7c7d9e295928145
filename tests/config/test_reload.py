"""Following a configuration file: every kind of change and fault, and rollback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from config.graphs import HEAD, make_builder
from log_watch import watched_logs
from prometheus_client import CollectorRegistry

from epp.config import (
    ConfigError,
    ConfigReloader,
    LoadedConfig,
    PluginGraph,
    PluginTypes,
    RollbackSettings,
    load_file,
    load_text,
)
from epp.flow_control.session_plugins import session_plan
from epp.observability import ConfigMetrics, ReloadResult

ONE = HEAD + "plugins: [{type: keep-all-filter, name: a}]\n"
TWO = HEAD + "plugins: [{type: keep-all-filter, name: a}, {type: queue-scorer}]\n"
BROKEN = HEAD + "plugins: [{type: keep-all-filtr, name: a}]\n"


class Metrics(ConfigMetrics):
    """Queues the results of reloads for a test to wait for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        super().__init__(self.registry)
        self.results: asyncio.Queue[str] = asyncio.Queue()

    def reloaded(self, result: ReloadResult) -> None:
        super().reloaded(result)
        self.results.put_nowait(result)

    def unchanged(self) -> None:
        super().unchanged()
        self.results.put_nowait("unchanged")


class User:
    """Uses graphs for nothing; may refuse one."""

    def __init__(self, config: LoadedConfig) -> None:
        self._builder = make_builder()
        self.graph = self._builder.build(config)
        self.fault: Exception | None = None
        self.keeps_previous = False
        self.built: list[str] = []

    def build(self, config: LoadedConfig, types: PluginTypes) -> PluginGraph:
        self.built.append(config.digest)
        return self._builder.build(config, self.graph, types=types)

    async def swap(self, graph: PluginGraph) -> None:
        if self.fault is not None:
            raise self.fault
        self.graph = graph
        self.keeps_previous = True

    def forget_previous(self) -> None:
        self.keeps_previous = False


async def replace(path: Path, text: str) -> None:
    """Replace a file's content in one step: a thread may pause between emptying and writing."""

    def write() -> None:
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(text)
        unfinished.replace(path)

    await asyncio.to_thread(write)


class Followed:
    """A configuration file that is followed."""

    def __init__(self, path: Path, choose: Callable[[], Path | None] = lambda: None) -> None:
        self.path = path
        self.user = User(load_file(path))
        self.metrics = Metrics()
        self.now = 0.0
        self.reloader = ConfigReloader(
            path,
            self.user,
            registry=make_builder().registry,
            metrics=self.metrics,
            clock=lambda: self.now,
            rollback=RollbackSettings(requests=10),
            poll_seconds=0.01,
            choose=choose,
        )

    async def result(self) -> str:
        async with asyncio.timeout(10):
            return await self.metrics.results.get()

    async def write(self, text: str) -> None:
        """Replace the content of the configuration."""
        await replace(self.path, text)

    @property
    def names(self) -> set[str]:
        return set(self.user.graph.plugins) - {"max-score-picker", "single-profile-handler"}

    def page(self) -> dict[str, float]:
        """The samples of the metrics, by name and label."""
        return {
            " ".join([sample.name.removeprefix("llm_d_epp_config_"), *sample.labels.values()]): (
                sample.value
            )
            for family in self.metrics.registry.collect()
            for sample in family.samples
        }


@asynccontextmanager
async def following(
    path: Path, choose: Callable[[], Path | None] = lambda: None
) -> AsyncIterator[Followed]:
    followed = await asyncio.to_thread(Followed, path, choose)
    task = asyncio.create_task(followed.reloader.run(), name="config")
    try:
        assert await followed.result() == "unchanged"  # the first settled look
        yield followed
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "config.yaml"
    made.write_text(ONE)
    return made


async def test_edit_in_place_is_taken_into_use_and_what_is_unchanged_is_kept(path: Path) -> None:
    async with following(path) as followed:
        before = followed.user.graph.plugins["a"]
        await followed.write(TWO)
        assert await followed.result() == "success"
        assert followed.names == {"a", "queue-scorer"}
        assert followed.user.graph.plugins["a"] is before
        assert followed.page() == {
            "reloads_total success": 1,
            "reloads_total failure": 0,
            "reloads_total rollback": 0,
            "last_reload_successful": 1,
        }


async def test_path_that_no_file_can_have_does_not_end_the_following(path: Path) -> None:
    async with following(path) as followed:
        await followed.write(HEAD + 'plugins: [{type: "file:a\\0b.py:Spot"}]\n')
        assert await followed.result() == "failure"
        await followed.write(TWO)
        assert await followed.result() == "success"


async def test_atomic_rename_is_seen(path: Path) -> None:
    async with following(path) as followed:
        other = path.with_name("other")
        await asyncio.to_thread(other.write_text, TWO)
        await asyncio.to_thread(other.replace, path)
        assert await followed.result() == "success"


async def test_link_swap_of_a_mounted_config_map_is_seen(tmp_path: Path) -> None:
    def make_version(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)

    def point_to(name: str) -> None:
        (tmp_path / "fresh").symlink_to(name)
        (tmp_path / "fresh").replace(tmp_path / "data")

    def make_both() -> None:
        make_version("v1", ONE)
        make_version("v2", TWO)
        point_to("v1")
        (tmp_path / "config.yaml").symlink_to("data/config.yaml")

    await asyncio.to_thread(make_both)
    async with following(tmp_path / "config.yaml") as followed:
        await asyncio.to_thread(point_to, "v2")
        assert await followed.result() == "success"
        assert followed.names == {"a", "queue-scorer"}


async def test_change_before_the_first_look_is_not_lost(path: Path) -> None:
    followed = await asyncio.to_thread(Followed, path)
    await followed.write(TWO)
    task = asyncio.create_task(followed.reloader.run())
    assert await followed.result() == "success"
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_change_between_a_look_and_the_reading_that_is_undone_is_not_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[LoadedConfig] = []

    def changed_and_loaded(path: Path, **arguments: Any) -> LoadedConfig:
        if not reads:
            path.write_text(TWO)  # after the look that found ONE
        reads.append(load_file(path, **arguments))
        return reads[-1]

    monkeypatch.setattr("epp.config.reload.load_file", changed_and_loaded)
    followed = await asyncio.to_thread(Followed, path)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(followed.reloader.run())
        assert await followed.result() == "success"
        assert followed.names == {"a", "queue-scorer"}
        await followed.write(ONE)
        while followed.names != {"a"}:
            await followed.result()
        following.cancel()


async def test_broken_file_keeps_the_graph_and_is_reported_once(path: Path) -> None:
    with watched_logs() as logs:
        async with following(path) as followed:
            graph = followed.user.graph
            await followed.write(BROKEN)
            assert await followed.result() == "failure"
            assert followed.user.graph is graph
            await followed.write(BROKEN + "# and still\n")
            await followed.write(ONE)
            assert await followed.result() == "unchanged"
            assert followed.page()["last_reload_successful"] == 1
    errors = [event for event in logs.entries if event["log_level"] == "error"]
    assert [event["problems"] for event in errors] == [
        [
            (
                f"{path}:3:18: plugins[0].type: unknown plugin type `keep-all-filtr`; did you mean"
                " `keep-all-filter`?"
            )
        ]
    ]


async def test_types_and_schema_are_reported_together(path: Path) -> None:
    with watched_logs() as logs:
        async with following(path) as followed:
            await followed.write(BROKEN + "unknown: 1\n")
            assert await followed.result() == "failure"
    (entry,) = [event for event in logs.entries if event["log_level"] == "error"]
    assert len(entry["problems"]) == 2


async def test_file_that_is_gone_keeps_the_graph_and_may_come_back(path: Path) -> None:
    async with following(path) as followed:
        graph = followed.user.graph
        await asyncio.to_thread(path.unlink)
        assert await followed.result() == "failure"
        assert followed.user.graph is graph
        await followed.write(TWO)
        assert await followed.result() == "success"


@pytest.mark.parametrize(
    "fault", [ConfigError("no endpoints"), RuntimeError("bug")], ids=["refused", "bug"]
)
async def test_graph_that_cannot_be_taken_into_use_leaves_the_one_in_use(
    path: Path, fault: Exception
) -> None:
    with watched_logs() as logs:
        async with following(path) as followed:
            graph = followed.user.graph
            followed.user.fault = fault
            await followed.write(TWO)
            assert await followed.result() == "failure"
            assert followed.user.graph is graph
            followed.user.fault = None
            followed.reloader.reload_now()
            assert await followed.result() == "success"
    assert str(fault) in str(logs.entries)


async def test_asking_reads_the_file_again_at_once(path: Path) -> None:
    async with following(path) as followed:
        followed.reloader.reload_now()
        assert await followed.result() == "unchanged"
        await followed.write(TWO)
        followed.reloader.reload_now()
        assert await followed.result() == "success"


async def test_who_asked_gets_the_fault_of_the_file(path: Path) -> None:
    async with following(path) as followed:
        assert await followed.reloader.reload_now() == ""
        await followed.write(TWO.replace("queue-scorer", "queue-scorrer"))
        first, second = followed.reloader.reload_now(), followed.reloader.reload_now()
        assert "unknown plugin type `queue-scorrer`" in await first
        assert await second == await first == followed.reloader.fault
        last = followed.reloader.reload_now()
    assert await last == followed.reloader.fault, "a reloader that stops leaves nobody waiting"


async def test_plugin_file_is_followed_like_the_configuration(path: Path) -> None:
    source = await asyncio.to_thread((Path(__file__).parent / "spot_filter.txt").read_text)
    spot = path.with_name("spot.py")
    await asyncio.to_thread(spot.write_text, source)
    async with following(path) as followed:
        await followed.write(HEAD + "plugins: [{type: 'file:spot.py:SpotFilter', name: spot}]\n")
        assert await followed.result() == "success"
        assert await followed.result() == "unchanged"  # now that the new file is looked at, too
        before = followed.user.graph.plugins["spot"]

        await replace(spot, source.replace("list(endpoints)", "list(endpoint"))
        assert await followed.result() == "failure"
        assert followed.user.graph.plugins["spot"] is before

        await replace(spot, source + "# mended\n")
        assert await followed.result() == "success"
        assert followed.user.graph.plugins["spot"] is not before


async def test_session_plugin_in_a_file_is_followed_and_may_alone_change(path: Path) -> None:
    source = """\
from epp.flow_control.sessions import SessionPlugin

class Mine(SessionPlugin):
    name = "mine"

    def __init__(self, arguments):
        self.size = arguments.get_int("size")
"""
    mine = path.with_name("mine.py")
    await asyncio.to_thread(mine.write_text, source)
    entry = "'file:mine.py:Mine': {arguments: {size: 3}}"
    with watched_logs() as logs:
        async with following(path) as followed:
            await followed.write(HEAD + f"extensions: {{sessions: {{plugins: {{{entry}}}}}}}\n")
            assert await followed.result() == "success"
            assert await followed.result() == "unchanged"  # now that the new file is looked at
            before = session_plan(followed.user.graph)

            await replace(mine, source.replace('"size"', '"length"'))
            assert await followed.result() == "failure"
            assert session_plan(followed.user.graph) is before

            await replace(mine, source.replace("mine", "ours"))
            assert await followed.result() == "success"
            (plugin,) = session_plan(followed.user.graph).plugins
            assert plugin.name == "ours"
    rebuilt = [each["rebuilt"] for each in logs.entries if "rebuilt" in each]
    assert rebuilt == [["extensions.sessions"]] * 2
    (record,) = [event for event in logs.entries if event["log_level"] == "error"]
    assert record["problems"] == [
        (
            f'{path}:3:69: extensions.sessions.plugins["file:mine.py:Mine"].arguments.size: session'
            " plugin 'file:mine.py:Mine': unknown argument 'size'; it takes: length"
        )
    ]


def fail_requests(followed: Followed) -> None:
    for _ in range(10):
        followed.reloader.outcomes.refused(500)


def regress(followed: Followed) -> None:
    """Have as many requests refused as it takes, with a status that is no failure of the EPP."""
    outcomes = followed.reloader.outcomes
    for _ in range(10):
        outcomes.refused(429)
        assert outcomes.take_dry_run()
        outcomes.judged(is_regression=True, status=429, reason="rejected", error="none left")


async def test_graph_that_fails_requests_is_taken_back_and_its_version_refused(path: Path) -> None:
    async with following(path) as followed:
        kept = followed.user.graph.plugins["a"]
        await followed.write(TWO)
        assert await followed.result() == "success"
        fail_requests(followed)
        assert await followed.result() == "rollback"
        assert followed.names == {"a"}
        assert followed.user.graph.plugins["a"] is kept
        assert followed.page()["last_reload_successful"] == 0

        with watched_logs() as logs:
            followed.reloader.reload_now()
            assert await followed.result() == "failure"
        assert "taken back because requests failed" in str(logs.entries)
        assert followed.names == {"a"}

        await followed.write(TWO + "# changed\n")
        assert await followed.result() == "success"
        assert followed.names == {"a", "queue-scorer"}


async def test_graph_that_refuses_requests_is_taken_back_and_the_log_tells_why(path: Path) -> None:
    with watched_logs() as logs:
        async with following(path) as followed:
            await followed.write(TWO)
            assert await followed.result() == "success"
            regress(followed)
            assert await followed.result() == "rollback"
            assert followed.names == {"a"}
            assert followed.page()["last_reload_successful"] == 0
    (entry,) = [each for each in logs.entries if each["log_level"] == "error"]
    expected = {
        "event": "configuration taken back because requests failed with it",
        "regressions": 10,
        "requests": 10,
        "status": 429,
        "reason": "rejected",
        "first_error": "none left",
    }
    assert expected.items() <= entry.items()


async def test_graph_before_is_kept_as_long_as_the_reload_is_watched(path: Path) -> None:
    async with following(path) as followed:
        user = followed.user
        await followed.write(TWO)
        assert await followed.result() == "success"
        followed.reloader.reload_now()
        assert await followed.result() == "unchanged"  # the loop has passed since the swap
        assert user.keeps_previous
        followed.now += 60.5
        followed.reloader.reload_now()
        assert await followed.result() == "unchanged"
        assert not user.keeps_previous


async def test_graph_that_was_taken_back_is_not_kept(path: Path) -> None:
    async with following(path) as followed:
        await followed.write(TWO)
        assert await followed.result() == "success"
        regress(followed)
        assert await followed.result() == "rollback"
        assert not followed.user.keeps_previous


async def test_plugin_from_a_file_is_taken_back_as_it_was_though_the_file_has_changed(
    path: Path,
) -> None:
    source = await asyncio.to_thread((Path(__file__).parent / "spot_filter.txt").read_text)
    spot = path.with_name("spot.py")
    await asyncio.to_thread(spot.write_text, source)
    await asyncio.to_thread(
        path.write_text, HEAD + "plugins: [{type: 'file:spot.py:SpotFilter', name: spot}]\n"
    )
    async with following(path) as followed:
        before = type(followed.user.graph.plugins["spot"])
        assert await followed.result() == "unchanged"
        await asyncio.to_thread(spot.write_text, source + "# worse\n")
        assert await followed.result() == "success"
        assert type(followed.user.graph.plugins["spot"]) is not before
        fail_requests(followed)
        assert await followed.result() == "rollback"
        assert type(followed.user.graph.plugins["spot"]) is before


async def test_there_is_nothing_to_take_back_before_the_first_reload(path: Path) -> None:
    async with following(path) as followed:
        fail_requests(followed)
        followed.reloader.reload_now()
        assert await followed.result() == "unchanged"


async def test_failure_to_take_back_is_reported_and_following_goes_on(path: Path) -> None:
    with watched_logs() as logs:
        async with following(path) as followed:
            await followed.write(TWO)
            assert await followed.result() == "success"
            followed.user.fault = RuntimeError("no")
            fail_requests(followed)
            assert await followed.result() == "failure"
            followed.user.fault = None
            await followed.write(ONE)
            assert await followed.result() == "success"
    assert "configuration not taken back" in str(logs.entries)


async def test_another_file_may_be_chosen_while_running(path: Path, tmp_path: Path) -> None:
    other, chosen = tmp_path / "other.yaml", [path]
    async with following(path, lambda: chosen[-1]) as followed:
        chosen.append(other)
        assert await followed.result() == "failure"  # there is no such file
        assert followed.names == {"a"}
        await asyncio.to_thread(other.write_text, TWO)
        assert await followed.result() == "success"
        assert followed.names == {"a", "queue-scorer"}
        chosen.append(path)
        assert await followed.result() == "success"
        assert followed.names == {"a"}


async def test_without_a_file_nothing_is_loaded_until_one_is_chosen(path: Path) -> None:
    chosen: list[Path] = []
    looks = asyncio.Event()
    loop = asyncio.get_running_loop()

    def choose() -> Path | None:
        loop.call_soon_threadsafe(looks.set)
        return chosen[0] if chosen else None

    user = await asyncio.to_thread(User, load_text(TWO, "built-in"))
    metrics = Metrics()
    registry = (await asyncio.to_thread(make_builder)).registry
    reloader = ConfigReloader(
        None,
        user,
        registry=registry,
        metrics=metrics,
        clock=lambda: 0.0,
        poll_seconds=0.01,
        choose=choose,
    )
    task = asyncio.create_task(reloader.run(), name="config")
    try:
        async with asyncio.timeout(10):
            for _ in range(4):
                await looks.wait()
                looks.clear()
            reloader.reload_now()
            await looks.wait()
            assert metrics.results.empty()
            chosen.append(path)
            assert await metrics.results.get() == "success"
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert "queue-scorer" not in user.graph.plugins
