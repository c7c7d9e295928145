"""Reads a deployment from the inputs of ``epp doctor``."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from epp.cli.doctor_cluster import ask_cluster
from epp.cli.doctor_endpoints import find_endpoints
from epp.cli.doctor_options import ServeOptions
from epp.cli.kubernetes_options import pod_source
from epp.config import (
    ConfigError,
    GraphBuilder,
    LoadedConfig,
    PluginGraph,
    default_config,
    load_text,
)
from epp.doctor import Deployment, Gateway, RunningPicker, ScrapeTimes, probe_all, try_ports
from epp.kubernetes.source import PodSource, PoolsSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs from the command line."""

    options: ServeOptions
    config: LoadedConfig | None
    """The configuration file."""
    times: ScrapeTimes | None
    """Options on the age of metrics; None if none of them is given."""
    gateway: Gateway | None
    picker: RunningPicker | None
    ports: Mapping[str, int]
    """Ports that must be free, by option."""
    reviews_tokens: bool
    """Whether the metrics port authenticates its clients by the Kubernetes API."""
    account: str
    """Service account whose rights are checked; "" for that of the doctor."""

    @property
    def pods(self) -> PodSource | PoolsSource | None:
        """Source of the endpoints in a cluster; None if options name them, as with ``epp serve``.

        Raises:
            ValueError: An option is invalid.
        """
        if self.options.has_endpoints:
            return None
        return pod_source(self.options.kubernetes, os.environ)


async def read_deployment(inputs: Inputs, builder: GraphBuilder) -> Deployment:
    """Return a deployment with all data that can be read; the caller closes its plugins.

    Raises:
        ConfigError: The configuration is invalid.
        DoctorError: Endpoints could not be read.
        ImportError: An extra is not installed.
        ValueError: An option is invalid.
    """
    picker, pods, gateway = inputs.picker, inputs.pods, inputs.gateway
    graph = read_graph(inputs, builder)
    endpoints = await find_endpoints(inputs.options, builder, graph, pods, picker)
    cluster = None
    if pods is not None:
        cluster = await ask_cluster(
            pods,
            inputs.options,
            graph,
            reviews_tokens=inputs.reviews_tokens,
            account=inputs.account,
        )
    return Deployment(
        graph=graph,
        is_config_given=inputs.config is not None,
        times=inputs.times,
        servers=None if endpoints is None else await probe_all(endpoints, graph),
        pools_speak_tls=None if gateway is None else gateway.pools_speak_tls,
        pickers_speak_tls=None if gateway is None else gateway.pickers_speak_tls,
        picker=picker,
        cluster=cluster,
        ports=tuple(try_ports(inputs.options.values["host"], inputs.ports))
        if inputs.ports and picker is None
        else None,
    )


def read_graph(inputs: Inputs, builder: GraphBuilder) -> PluginGraph | None:
    """Return the plugins of the configuration; None without a configuration.

    Without a file, the configuration is that of the running endpoint picker or, if endpoints are
    given, the default one.

    Raises:
        ConfigError: The file is invalid.
    """
    if inputs.config is not None:
        return builder.build(inputs.config)
    if inputs.picker is not None and inputs.picker.config is not None:
        try:
            return builder.build(load_text(inputs.picker.config.text, "the running EPP"))
        except ConfigError:
            return None  # expected: the page hides secrets, and plugin files are remote
    if inputs.options.has_endpoints or inputs.pods is not None:
        return builder.build(default_config())
    return None
