"""The plugin graph in use, and its replacement on a reload.

A reload builds a graph that keeps the unchanged plugins of the current one. What may fail (the
discovery, the session plugins) runs first; then the data layer, flow control and the director
switch to the new graph together. Requests in flight finish on the previous graph, whose plugins are
also kept for dry runs while the reload may be rolled back.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from epp.config import (
    ConfigError,
    ConfigReloader,
    GraphBuilder,
    LoadedConfig,
    PluginGraph,
    PluginLifetimes,
    PluginTypes,
)
from epp.data_layer import DataLayerError, DataLayerRuntime
from epp.flow_control import FlowControlError, FlowController, SaturationDetector
from epp.flow_control.building import flow_settings
from epp.flow_control.sessions import PluginError, RegistrationError
from epp.observability import ConfigMetrics, Metrics, PluginWatch, WrapTimer
from epp.request_control import Director, Pipeline
from epp.scheduling import NullObserver
from epp.settings import ServeSettings

log = structlog.get_logger(__name__)

ChooseFile = Callable[[], Path | None]
"""Returns a configuration file; blocks."""


class GraphSwitch:
    """Owns the plugin graph in use; a :class:`~epp.config.reload.GraphUser`."""

    def __init__(
        self,
        settings: ServeSettings,
        builder: GraphBuilder,
        *,
        metrics: Metrics,
        flow: FlowController,
        data_layer: Callable[[], DataLayerRuntime],
        director: Callable[[], Director],
        swapped: Callable[[], None],
        types: PluginTypes | None = None,
        recorded: WrapTimer | None = None,
    ) -> None:
        """Build the first graph, and configure ``flow`` with it.

        Args:
            settings: Settings of the process, with the first configuration.
            builder: Builds this graph and those of reloads.
            metrics: Receives the durations and failures of plugin calls.
            flow: Flow control.
            data_layer: Returns the data layer; called on a reload.
            director: Returns the director; called on a reload.
            swapped: Called after each reload.
            types: Plugin classes of the first graph; None to read its plugin files here, which
                blocks.
            recorded: Makes timers that record plugin calls of traced requests; None without
                tracing.

        Raises:
            ConfigError: The configuration is invalid.
        """
        self._settings = settings
        self._builder = builder
        self._metrics = metrics
        self._config_metrics = ConfigMetrics(metrics.registry)
        self._flow = flow
        self._data_layer = data_layer
        self._director = director
        self._swapped = swapped
        self._recorded = recorded
        self._lifetimes = PluginLifetimes()
        self.graph = builder.build(
            settings.config, types=types, observer=self._watch(settings.config)
        )
        """The plugin graph in use."""
        self._lifetimes.enter(self.graph)
        self._previous: PluginGraph | None = None
        """The previous graph with guards that count and log nothing, for dry runs."""
        self._announce(self.graph)
        try:
            self._prepare_flow(self.graph)()
        except ConfigError:
            self.close()  # a process of several pools tries again
            raise

    def close(self) -> None:
        """Close the plugins of the current graph, unless open requests still use them."""
        self.forget_previous()
        self._lifetimes.leave(self.graph)

    def make_reloader(self, choose: ChooseFile | None = None) -> ConfigReloader | None:
        """Return the task that follows the configuration file; None if there is no file.

        Args:
            choose: Chooses the file while running, see :class:`ConfigReloader`; None if it is
                always that of the settings.
        """
        settings = self._settings
        if settings.config_file is None and choose is None:
            return None
        return ConfigReloader(
            settings.config_file,
            self,
            registry=self._builder.registry,
            metrics=self._config_metrics,
            clock=time.monotonic,
            rollback=settings.rollback,
            poll_seconds=settings.config_poll_seconds,
            choose=choose,
        )

    def build(self, config: LoadedConfig, types: PluginTypes) -> PluginGraph:
        """Build a graph that keeps the unchanged instances of the current one.

        Raises:
            ConfigError: The configuration is invalid.
        """
        return self._builder.build(config, self.graph, types=types, observer=self._watch(config))

    async def swap(self, graph: PluginGraph) -> None:
        """Replace the current graph; requests in flight finish on the previous one.

        Raises:
            ConfigError: Its discovery failed, or needs a restart; the current graph stays in use.
        """
        loop = asyncio.get_running_loop()
        data_layer, director = self._data_layer(), self._director()
        self._lifetimes.enter(graph)
        try:
            self._check_discovery(graph)
            following = pipeline_of(graph)
            await data_layer.prepare(graph)
            use_flow = self._prepare_flow(graph)
            data_layer.use(graph)
        except BaseException as error:
            # One loop iteration later: the cancelled task of a failed discovery ends in this one.
            loop.call_soon(self._lifetimes.leave, graph)
            if isinstance(error, DataLayerError):
                raise ConfigError(f"{graph.config.source}: {error}") from error
            raise
        use_flow()  # nothing below can fail
        self.forget_previous()
        before, self.graph = self.graph, graph
        pipeline, director.pipeline = director.pipeline, following
        before.guards.observer.retire()
        self._metrics.plugins_disabled.clear()
        self._announce(graph)
        self._swapped()

        def leave() -> None:
            # One iteration later, as above: tasks of dropped discoveries and sources end first.
            loop.call_soon(self._lifetimes.leave, before)

        pipeline.when_idle(leave)
        self._keep_for_dry_runs(before)

    def forget_previous(self) -> None:
        """Release the graph before the last swap, which is kept for dry runs; idempotent."""
        previous, self._previous = self._previous, None
        if previous is not None:
            self._director().previous_pipeline = None
            self._lifetimes.leave(previous)

    def _check_discovery(self, graph: PluginGraph) -> None:
        """Refuse to leave or join the cluster: leader election and metrics rights depend on it."""
        if self._settings.pods is None or (graph.discovery is None) is (
            self.graph.discovery is None
        ):
            return
        text = (
            "without it, endpoints come from the Kubernetes API; restart to remove it"
            if graph.discovery is None
            else "endpoints come from the Kubernetes API; restart to take them from here instead"
        )
        problem = graph.config.problem("dataLayer.discovery", text, on_key=True)
        raise ConfigError.of(graph.config.source, [problem])

    def _keep_for_dry_runs(self, before: PluginGraph) -> None:
        try:
            # The same plugins with other guards; it takes 1 ms.
            previous = self._builder.build(
                before.config, before, types=before.types, observer=NullObserver()
            )
            pipeline = pipeline_of(previous)
        except Exception:
            log.exception("previous configuration cannot be built again, there are no dry runs")
            return
        self._lifetimes.enter(previous)
        self._previous = previous
        self._director().previous_pipeline = pipeline

    def _prepare_flow(self, graph: PluginGraph) -> Callable[[], None]:
        """Return a callback that switches flow control to ``graph``.

        Raises:
            ConfigError: Its session plugins cannot be configured, or several workers cannot do
                what it asks for.
        """
        settings = flow_settings(
            graph,
            self._settings.refresh_metrics_interval_seconds,
            self._settings.eviction_staleness_seconds,
        )
        if settings is not None and self._settings.ext_proc.compat == "reference":
            settings = replace(settings, holds_filtered=False, displaces=False)
        try:
            return self._flow.prepare(settings)
        except (PluginError, RegistrationError) as error:
            raise ConfigError(f"{graph.config.source}: extensions.sessions: {error}") from error
        except FlowControlError as error:
            raise ConfigError(f"{graph.config.source}: {error}") from error

    def _watch(self, config: LoadedConfig) -> PluginWatch:
        limit = config.file.extensions.guard_rails.slow_call_ms / 1000
        return PluginWatch(self._metrics, slow_call_seconds=limit, recorded=self._recorded)

    def _announce(self, graph: PluginGraph) -> None:
        self._config_metrics.in_use(graph.config.digest, graph.version)
        for warning in (*graph.config.warnings, *graph.warnings):
            text = warning.text(graph.config.source)
            log.warning("configuration accepted with a warning", problem=text)


def pipeline_of(graph: PluginGraph) -> Pipeline:
    """Return the director's pipeline for the plugins of ``graph``."""
    detector = graph.detector
    assert detector is None or isinstance(detector, SaturationDetector)  # noqa: S101 - the plan has looked
    return Pipeline.of(
        graph.hooks,
        graph.scheduler,
        graph.guards,
        graph.shadows,
        detector,
        parsers=graph.parsers,
    )
