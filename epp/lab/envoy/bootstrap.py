"""Convert a `GatewayConfig` to an Envoy bootstrap, as a JSON-like dict or as YAML.

The message classes are those of `envoy-data-plane`, so that a misspelt field fails here and not in
Envoy. Importing this module takes most of a second, so the package does not import it.

Raises:
    MissingDependencyError: On import, if the package `envoy-data-plane` is missing.
"""

import typing

import yaml

from epp.lab.envoy import _data_plane as data_plane
from epp.lab.envoy.clusters import epp_clusters, model_servers_cluster
from epp.lab.envoy.gateway_config import Destination, GatewayConfig, Mode
from epp.lab.envoy.http_listener import http_listener
from epp.lab.envoy.overload import overload_manager
from epp.lab.envoy.remarks import comment, remarks

__all__ = ["Destination", "GatewayConfig", "Mode", "bootstrap", "render_yaml"]


def bootstrap(config: GatewayConfig) -> dict[str, typing.Any]:
    """Return the bootstrap in Envoy's JSON form, with the field names of the .proto files.

    Raises:
        ValueError: There is no endpoint, and the destination is `OVERRIDE_HOST`.
    """
    message = data_plane.bootstrap.Bootstrap(
        admin=data_plane.bootstrap.Admin(
            address=data_plane.socket_address(config.admin_host, config.admin_port)
        ),
        static_resources=data_plane.bootstrap.BootstrapStaticResources(
            listeners=[http_listener(config)],
            clusters=[*epp_clusters(config), model_servers_cluster(config)],
        ),
        overload_manager=overload_manager(config.limits),
    )
    return message.to_dict(casing=data_plane.betterproto2.Casing.SNAKE)


def render_yaml(config: GatewayConfig) -> str:
    """Return the bootstrap as YAML for `envoy -c`, with explanatory comments at the top."""
    return comment(remarks(config)) + yaml.safe_dump(bootstrap(config), sort_keys=False)
