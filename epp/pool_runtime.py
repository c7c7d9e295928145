"""Everything that serves the requests of one pool: its endpoints, queues, plugins and director.

A process has one of these for each pool. What they share (the ports, the ext_proc service, the
limits on request bodies, the process's own metrics) belongs to :mod:`.app`.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import structlog

from epp.admin import DecisionFile, PoolDecisions
from epp.admin.config_page import PATH as CONFIG_PAGE
from epp.admin.config_page import RELOAD_PATH, ConfigView
from epp.admin.live import ConfigReading, LiveSource, PoolReader
from epp.admin.plugin_page import PATH as PLUGINS_PAGE
from epp.admin.plugin_page import PluginsView
from epp.building import InstalledPlugins, make_builder, make_random
from epp.config import PluginGraph, PluginTypes
from epp.config.plugin_states import PATH as STATES_PAGE
from epp.config.plugin_states import plugin_states
from epp.data_layer import (
    Alone,
    DataLayerRuntime,
    DrainCalls,
    DrainMarks,
    EndpointDiscovery,
    EndpointStore,
    EndpointsView,
    HealthCheck,
    LoadReport,
    ObjectFeed,
    ObjectFiles,
    ObjectStore,
    OpenPage,
    PoolSharing,
    ScrapeObserver,
    ScrapeObservers,
    SharedConnections,
    configured_names,
    fixed_discoveries,
    polled,
    served_names,
)
from epp.data_layer.drain_calls import PATH as DRAIN_PATH
from epp.data_layer.endpoints_page import PATH as ENDPOINTS_PAGE
from epp.flow_control import FlowController
from epp.flow_control.controller import WakeOnPage
from epp.flow_control.views.flow_views import debug_pages, flow_gauges
from epp.graph_switch import ChooseFile, GraphSwitch, pipeline_of
from epp.inputs import duration_seconds
from epp.observability import (
    AdminAction,
    DebugPage,
    FlowCollector,
    FlowMetrics,
    Metrics,
    PluginMetricsCollector,
    RevocationMetrics,
)
from epp.outlier_detection import Checks, OutlierDetector, OutlierSettings
from epp.parsing import BodyLimits
from epp.replication import PoolShare, Replica
from epp.request_control import BodyLanes, BodyQueue, Director
from epp.request_control.force_keys import ForceKeys
from epp.request_control.forced_endpoint import ForcedEndpoints
from epp.scheduling import Endpoint
from epp.settings import ServeSettings
from epp.timetable import Timetable
from epp.tracing import Tracer

if TYPE_CHECKING:
    from epp.kubernetes.discovery import KubernetesDiscovery

log = structlog.get_logger(__name__)

Discover = Callable[[ObjectStore | None, Callable[[], bool]], "KubernetesDiscovery"]
"""Makes the discovery of a pool's pods.

Its arguments: the store of the pool's objectives and rewrites, None if they come from elsewhere;
and a function that returns whether a replica that does not lead knows the endpoints, too."""


class PoolRuntime:
    """One pool, with all that its requests need.

    Args:
        settings: Settings of the process, with the pool's name and configuration.
        metrics: Metrics of the pool.
        installed: Plugins of installed packages.
        lanes: Where requests with long bodies wait, shared by all pools.
        discover: Makes the discovery of the pool's pods, unless its configuration has a discovery;
            None if the settings name the endpoints.
        plugin_objects: Follows the Kubernetes objects that plugins read; not used if the
            configuration has a discovery.
        choose_config: Chooses the configuration file while running; None if it is always that of
            the settings.
        types: Plugin classes of the first configuration; None to read its plugin files here, which
            blocks.
        decision_file: Gets the recorded decisions; None for no file.
        tracer: Traces requests; None without tracing.
        force_keys: Keys of the header that forces an endpoint; None to ignore it.
        replica: Exchanges the pool's state with other replicas; None if nothing is shared.
        is_one_of_several: Whether the process serves other pools, too, so that log lines name the
            pool.
        clock: Monotonic seconds.
        open_page: Gets pages of endpoints by other means than HTTP; None for HTTP.
        sharing: What this process shares with others that serve the pool; None if it is the only
            one.
        make_flow: Makes its flow control.
        discoveries: Further discoveries of endpoints.
        timetable: Starts recurring work, by the same clock; None for a new one.

    Raises:
        ConfigError: The configuration is invalid.
        DataLayerError: There are no endpoints, or one is invalid.
    """

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        *,
        installed: InstalledPlugins,
        lanes: BodyLanes,
        discover: Discover | None = None,
        plugin_objects: ObjectFeed | None = None,
        choose_config: ChooseFile | None = None,
        types: PluginTypes | None = None,
        decision_file: DecisionFile | None = None,
        force_keys: ForceKeys | None = None,
        replica: Replica | None = None,
        is_one_of_several: bool = False,
        tracer: Tracer | None = None,
        clock: Callable[[], float] = time.monotonic,
        open_page: OpenPage | None = None,
        sharing: PoolSharing | None = None,
        make_flow: Callable[..., FlowController] = FlowController,
        discoveries: Sequence[EndpointDiscovery] = (),
        timetable: Timetable | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self._clock, self._timetable = clock, timetable or Timetable(clock)
        self._sharing = sharing = sharing or Alone()
        log_fields = _log_fields(settings, is_one_of_several=is_one_of_several)
        self.store = EndpointStore(
            DrainMarks(settings.drain_label),
            log_fields=log_fields,
            serving_changed=lambda: self.flow.pool_changed(),  # noqa: PLW0108 - it is made below
            make_load=sharing.make_load,
        )
        plugin_metrics = PluginMetricsCollector(
            metrics.budget, has_former_names=settings.has_deprecated_metrics
        )
        metrics.registry.register(plugin_metrics)
        connections = SharedConnections()
        builder = make_builder(
            settings.seed,
            installed.registry,
            session_plans=installed.session_plans,
            metrics=plugin_metrics,
            report_load=self._take_report,
            max_page_bytes=settings.max_scrape_page_bytes,
            connections=connections,
            clock=clock,
            open_page=open_page,
            compat=settings.ext_proc.compat,
            experimental="allow" if settings.allow_experimental_plugins else "refuse",
        )

        self.outliers = self._make_outlier_detector(self._serving)
        """None if outlier detection is off."""
        pool = sharing.before(self._serving if self.outliers is None else self.outliers.available)
        self.flow = make_flow(
            pool=pool,
            clock=clock,
            observer=FlowMetrics(metrics, settings.pool_name),
            revocations=RevocationMetrics(metrics.registry, settings.pool_name),
            why_none_serves=self.store.why_none_serves,
        )
        """Queues requests while the pool is saturated."""
        self.graphs = GraphSwitch(
            settings,
            builder,
            metrics=metrics,
            flow=self.flow,
            data_layer=lambda: self._data_layer,
            director=lambda: self.director,
            swapped=self._graph_swapped,
            types=types,
            recorded=tracer.recorder.timer if tracer is not None and tracer.is_recording else None,
        )
        """Owns the plugin graph in use."""
        metrics.registry.register(FlowCollector(settings.pool_name, lambda: flow_gauges(self.flow)))
        for listener in (sharing, self.flow):
            self.store.add_listener(listener)
        scrape_observers: list[ScrapeObserver] = [
            sharing.only_once(metrics.scrapes),
            WakeOnPage(self.flow.wake),
        ]
        if self.outliers is not None:
            self.store.add_listener(self.outliers)
            scrape_observers.insert(0, self.outliers)
        self._scraper = sharing.make_scraper(
            self.store,
            interval_seconds=settings.refresh_metrics_interval_seconds,
            staleness_seconds=settings.scoring_staleness_seconds,
            clock=clock,
            observer=ScrapeObservers(*scrape_observers),
            cpu_share=settings.max_scrape_cpu_percent / 100,
            is_adaptive=settings.scrape == "adaptive" and settings.ext_proc.compat != "reference",
            timetable=self._timetable,
        )
        metrics.watch_scrapes(self._scraper.intervals)
        self.objects = ObjectStore(
            pool_name=settings.pool_name,
            rng=make_random(settings.seed, "objects"),
            rewritten=metrics.model_rewritten,
        )
        """Objectives and rewrites."""
        fixed = [
            *fixed_discoveries(
                builder, settings.endpoints, settings.endpoints_file, settings.endpoint_dns
            ),
            *discoveries,
        ]
        objects: ObjectFeed | None = None
        self.discovery: KubernetesDiscovery | None = None
        """The discovery of its pods; None if the endpoints come from elsewhere."""
        if discover is not None and self.graph.discovery is None:
            self.discovery = discover(
                None if settings.objects else self.objects,
                lambda: self.graph.config.has_gate("haPopulateNonLeaderDatastore"),
            )
            fixed.append(self.discovery)
            objects = plugin_objects
        self._data_layer = DataLayerRuntime(
            self.store,
            self._scraper,
            self.graph,
            fixed,
            []
            if self.outliers is None
            else _health_checks(settings.outliers, connections, clock, open_page),
            objects=objects,
        )
        metrics.watch_pool(
            settings.pool_name,
            lambda: self.store.snapshot,
            staleness_seconds=settings.metrics_staleness_seconds,
            outliers=self.outliers,
        )
        self.store.add_listener(metrics.attempts)
        self._endpoints_view = EndpointsView(self.store, self.outliers, clock)
        self._drain_calls = DrainCalls(self.store, line=self._endpoints_view.line, clock=clock)
        self.store.add_listener(self._drain_calls)
        self._learn_names(metrics)
        self.explanations = PoolDecisions(
            settings.explain,
            clock,
            doubted=None if self.outliers is None else self.outliers.doubted,
            pool=settings.pool_name if is_one_of_several else "",
            file=decision_file,
        )
        """The newest decisions, and why they were made."""
        self._object_files = ObjectFiles(settings.objects)
        self._reloader = self.graphs.make_reloader(choose_config)
        self.director = Director(
            pool=pool,
            whole_pool=self._serving,
            why_none_serves=self.store.why_none_serves,
            find_address=self.store.find_address,
            pipeline=pipeline_of(self.graph),
            metrics=metrics,
            clock=clock,
            policies=self.objects if settings.objects or self.discovery is not None else None,
            outcomes=None if self._reloader is None else self._reloader.outcomes,
            flow=self.flow,
            outliers=self.outliers,
            hedging_budget=settings.hedging_budget_percent / 100.0,
            emit_endpoint_scores=settings.emit_endpoint_scores,
            emit_decision_header=settings.emit_decision_header,
            log_fields=log_fields,
            recorder=self.explanations.recorder,
            traced_as=settings.pool_name,
            forced=None
            if force_keys is None
            else ForcedEndpoints(force_keys, lambda: self.store.snapshot, metrics),
            follow_subset_hint=not settings.ignore_subset_hint,
            body_limits=BodyLimits(
                settings.ext_proc.max_decompressed_bytes,
                settings.ext_proc.max_compression_ratio,
                settings.ext_proc.max_json_values,
            ),
        )
        self.handler = BodyQueue(self.director, lanes)
        """Decides the pool's requests."""
        self._share = self._begin_sharing(replica)

    def _serving(self) -> Sequence[Endpoint]:
        return self.store.serving

    @property
    def graph(self) -> PluginGraph:
        """The plugin graph in use."""
        return self.graphs.graph

    @property
    def config_fault(self) -> str:
        """Why the current configuration file is not in use; "" if it is."""
        return "" if self._reloader is None else self._reloader.fault

    @property
    def polled_sources(self) -> int:
        """The number of data sources that scrape every endpoint."""
        return len(polled(self.graph.sources))

    @property
    def scrapes(self) -> int:
        """The number of connections for scraping."""
        return len(self.store.snapshot) * self.polled_sources

    @property
    def is_ready(self) -> bool:
        """Whether the endpoints are known, even if there are none.

        The pool's protocol must suit the parsers, too.
        """
        pods = self.discovery
        is_known = pods is None or (pods.is_pool_known and pods.suits(self.graph.parsers))
        return self.store.synced and is_known

    def share_limits(self, pools: int) -> None:
        """Take an equal share of the limits of the process, which serves ``pools`` pools."""
        self._scraper.limit_cpu(self.settings.max_scrape_cpu_percent / 100 / pools)
        self.metrics.budget.max_bytes = self.settings.max_metrics_page_bytes // pools

    async def reload_now(self) -> str:
        """Reload the configuration, even if its file is unchanged; return :attr:`config_fault`."""
        if self._reloader is None:
            log.warning("nothing to reload, the configuration does not come from a file")
            return ""
        return await self._reloader.reload_now()

    def debug_pages(self) -> Mapping[str, DebugPage]:
        """Return the pages for operators by path."""
        return {
            **debug_pages(self.flow),
            ENDPOINTS_PAGE: DebugPage(self._endpoints_view.page),
            **self.explanations.pages(),
            STATES_PAGE: DebugPage(self._plugin_states),
            CONFIG_PAGE: DebugPage(self._config_view.page),
            PLUGINS_PAGE: DebugPage(PluginsView(self.metrics, lambda: self.graph).page),
        }

    def _plugin_states(self) -> Mapping[str, object]:
        control = self.flow.active
        return plugin_states(
            self.graph.plugins, () if control is None else control.settings.plugins
        )

    def admin_actions(self) -> Mapping[str, AdminAction]:
        """Return the changing calls by path."""
        return {DRAIN_PATH: self._drain_calls.drain, RELOAD_PATH: self._config_view.reload}

    async def load(self) -> None:
        """Read the files of objectives and rewrites, before :meth:`run`.

        Raises:
            ObjectFileError: One of them is invalid.
        """
        await self._object_files.load(self.objects)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, run in self._tasks().items():
                tasks.create_task(run(), name=name)

    def close(self) -> None:
        """Close the plugins, unless open requests still use them."""
        self.graphs.close()
        if self._share is not None:
            self._share.end()

    def _tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "data layer": self._data_layer.run,
            "sharing": self._sharing.run,
            "objects": partial(self._object_files.run, self.objects),
        }
        if self.outliers is not None:
            tasks["outlier detection"] = Checks(self.outliers, self._timetable).run
        if self._reloader is not None:
            tasks["config"] = self._reloader.run
        return tasks

    def _make_outlier_detector(
        self, pool: Callable[[], Sequence[Endpoint]]
    ) -> OutlierDetector | None:
        settings = self.settings
        if not settings.outliers.outlier_detection or settings.ext_proc.compat == "reference":
            return None
        return OutlierDetector(
            pool,
            settings=settings.outliers,
            clock=self._clock,
            rng=make_random(settings.seed, "outliers"),
            waiting=lambda: self._scraper.waiting(),  # noqa: PLW0108 - it is made later
            changed=lambda: self.flow.wake(),  # noqa: PLW0108 - likewise
        )

    @cached_property
    def _config_view(self) -> ConfigView:
        return ConfigView(lambda: self.graph, self._reloader, self._clock, time.time)

    @cached_property
    def live(self) -> LiveSource:
        """The feed of the live page; used in the thread of the metrics port."""
        reader = PoolReader(
            store=self.store,
            outliers=self.outliers,
            flow=self.flow,
            director=self.director,
            config=self._config_reading,
            clock=self._clock,
        )
        return LiveSource(self.settings.pool_name, reader, self.metrics, writes=self._writes)

    def _config_reading(self) -> ConfigReading:
        config = self.graph.config
        return ConfigReading(config.source, config.digest, self.config_fault)

    def _writes(self) -> list[str]:
        """Return the changing calls that are enabled."""
        is_on = self.settings.enable_admin_writes and self.settings.admin_token_file
        return sorted(self.admin_actions()) if is_on else []

    def _learn_names(self, metrics: Metrics) -> None:
        """Let the metrics know the names that the operator uses."""
        for source in (
            lambda: served_names(self.store.snapshot),
            lambda: configured_names(self.graph.config),
            self.objects.names,
        ):
            metrics.names.learn_from(source)

    def _graph_swapped(self) -> None:
        if self.discovery is not None:
            self.discovery.populate()  # a feature gate may have changed
        if self._share is not None:
            self._share_plugins(self._share)
        self._sharing.use_plugins(self.graph.plugins.values(), self.graph.guards)

    def _begin_sharing(self, replica: Replica | None) -> PoolShare | None:
        self._sharing.use_plugins(self.graph.plugins.values(), self.graph.guards)
        if replica is None:
            return None
        share = replica.share(self.settings.pool_name)
        share.owns_queues = self._sharing.owns_queues
        share.siblings = frozenset(self._sharing.siblings())
        self.store.add_listener(share)
        self._share_plugins(share)
        return share

    def _share_plugins(self, share: PoolShare) -> None:
        interval = self.graph.config.file.data_layer.cross_replica_sync_interval
        share.use_plugins(
            self.graph.plugins.values(), duration_seconds(interval) if interval else 0.0
        )

    def _take_report(self, endpoint: Endpoint, report: LoadReport) -> None:
        self._scraper.take_report(endpoint, report)
        self.flow.wake()  # capacity may be free


def _health_checks(
    settings: OutlierSettings,
    connections: SharedConnections,
    clock: Callable[[], float],
    open_page: OpenPage | None,
) -> list[HealthCheck]:
    if not settings.health_check_path:
        return []
    interval = settings.health_check_interval_seconds
    path = settings.health_check_path
    return [HealthCheck(path, interval, clock, connections=connections, open_page=open_page)]


def _log_fields(settings: ServeSettings, *, is_one_of_several: bool) -> dict[str, str]:
    """Return the fields of log lines about requests that name the pool and the worker."""
    pool = {"pool": settings.pool_name} if is_one_of_several else {}
    return pool if settings.worker is None else {**pool, "worker": str(settings.worker)}
