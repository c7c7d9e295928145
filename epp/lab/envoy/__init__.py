"""A real Envoy in front of the endpoint picker: its bootstrap, its process.

`epp.lab.envoy.bootstrap` (`bootstrap`, `render_yaml`) turns a `GatewayConfig` into Envoy's
bootstrap, `epp.lab.envoy.samples` into the files of deploy/envoy; importing them takes most of a
second, so they are imported by their own names. `EnvoyProcess` runs a bootstrap.
"""

from epp.lab.envoy.client_headers import ClientHeaders, HeaderRules, HeaderToSet
from epp.lab.envoy.errors import (
    EnvoyAdminError,
    EnvoyConfigError,
    EnvoyError,
    EnvoyNotFoundError,
    EnvoyStartError,
    MissingDependencyError,
)
from epp.lab.envoy.gateway_config import (
    Destination,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
    Product,
)
from epp.lab.envoy.gateway_limits import GatewayLimits
from epp.lab.envoy.names import DESTINATION_HEADER, EXT_PROC_STATS
from epp.lab.envoy.process import EnvoyProcess, find_envoy, validate

__all__ = [
    "DESTINATION_HEADER",
    "EXT_PROC_STATS",
    "ClientHeaders",
    "Destination",
    "EnvoyAdminError",
    "EnvoyConfigError",
    "EnvoyError",
    "EnvoyNotFoundError",
    "EnvoyProcess",
    "EnvoyStartError",
    "GatewayConfig",
    "GatewayLimits",
    "HeaderRules",
    "HeaderToSet",
    "MissingDependencyError",
    "Mode",
    "ModelServerProtocol",
    "Product",
    "find_envoy",
    "validate",
]
