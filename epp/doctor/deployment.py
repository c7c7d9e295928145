"""A deployment, as far as the options of the doctor describe it."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from epp.config import PluginGraph
from epp.doctor.cluster import ClusterView
from epp.doctor.listening_ports import PortState
from epp.doctor.model_servers import ModelServer
from epp.doctor.running import RunningPicker


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTimes:
    """Options of ``epp serve`` that affect the age of metrics."""

    interval_seconds: float = 0.05
    is_adaptive: bool = True
    """Whether idle endpoints are scraped less often."""
    scoring_staleness_seconds: float = 0.2
    metrics_staleness_seconds: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The data that checks can read; None for data that was not given."""

    graph: PluginGraph | None = None
    """The plugin graph built from the configuration."""
    is_config_given: bool = False
    """Whether the operator gave the configuration as a file; otherwise it is that of the running
    endpoint picker, or the default one."""
    times: ScrapeTimes | None = None
    servers: tuple[ModelServer, ...] | None = None
    pools_speak_tls: bool | None = None
    """Whether the gateway uses TLS to the model servers; None if that is unknown, or mixed."""
    pickers_speak_tls: bool | None = None
    """Whether the gateway uses TLS to the endpoint picker; None if that is unknown, or mixed."""
    picker: RunningPicker | None = None
    cluster: ClusterView | None = None
    ports: tuple[PortState, ...] | None = None

    @property
    def responding_servers(self) -> tuple[ModelServer, ...]:
        """The model servers that speak HTTP."""
        return tuple(each for each in self.servers or () if each.responds)


def parameters_of(graph: PluginGraph) -> Mapping[str, Mapping[str, object]]:
    """Return the parameters of each plugin, defaults included."""
    found: dict[str, Mapping[str, object]] = {}
    for name, instance in graph.instances.items():
        try:
            decoded = msgspec.msgpack.decode(instance.parameters)
        except msgspec.DecodeError:
            continue  # a type that msgpack cannot encode
        if isinstance(decoded, dict):
            found[name] = decoded
    return found


def place_of(graph: PluginGraph, name: str) -> str:
    """Return the path of a plugin in the configuration; "" if it is not in the file."""
    names = [entry.name for entry in graph.config.file.plugins]
    return f"plugins[{names.index(name)}]" if name in names else ""
