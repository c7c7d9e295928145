"""A real Envoy in front of the endpoint picker: its bootstrap and its process.

`epp.lab.envoy.bootstrap` (`bootstrap`, `render_yaml`) turns a `GatewayConfig` into an Envoy
bootstrap, and `epp.lab.envoy.samples` renders the files of deploy/envoy. The package does not
import these two modules, because that takes most of a second. `EnvoyProcess` runs a bootstrap.
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
    CheckedHosts,
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
    "CheckedHosts",
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
