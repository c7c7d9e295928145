"""A real Envoy in front of the endpoint picker: its bootstrap, its process.

`epp.lab.envoy.bootstrap` (`bootstrap`, `render_yaml`) turns a `GatewayConfig` into Envoy's
bootstrap; it needs the extra `gateway`, so it is imported by its own name. `EnvoyProcess` runs the
result.
"""

from epp.lab.envoy.errors import (
    EnvoyAdminError,
    EnvoyConfigError,
    EnvoyError,
    EnvoyNotFoundError,
    EnvoyStartError,
    MissingDependencyError,
)
from epp.lab.envoy.gateway_config import Destination, GatewayConfig, Mode
from epp.lab.envoy.names import DESTINATION_HEADER, EXT_PROC_STATS
from epp.lab.envoy.process import EnvoyProcess, find_envoy, validate

__all__ = [
    "DESTINATION_HEADER",
    "EXT_PROC_STATS",
    "Destination",
    "EnvoyAdminError",
    "EnvoyConfigError",
    "EnvoyError",
    "EnvoyNotFoundError",
    "EnvoyProcess",
    "EnvoyStartError",
    "GatewayConfig",
    "MissingDependencyError",
    "Mode",
    "find_envoy",
    "validate",
]
