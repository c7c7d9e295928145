"""The only module that imports `envoy-data-plane`, the package with Envoy's API as dataclasses.

If the package is missing (`pip install --no-deps`), the import raises a clear error. The pydantic
deprecation warnings that its generated modules emit on import (2.2.0 with pydantic 2.12) are
suppressed, for programs that treat warnings as errors.
"""

import datetime
import warnings

from epp.lab.envoy.errors import MissingDependencyError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        import betterproto2
        from envoy_data_plane.envoy.config.accesslog import v3 as access_log_entry
        from envoy_data_plane.envoy.config.bootstrap import v3 as bootstrap
        from envoy_data_plane.envoy.config.cluster import v3 as cluster
        from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation_rules
        from envoy_data_plane.envoy.config.core import v3 as core
        from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
        from envoy_data_plane.envoy.config.listener import v3 as listener
        from envoy_data_plane.envoy.config.overload import v3 as overload
        from envoy_data_plane.envoy.config.route import v3 as route
        from envoy_data_plane.envoy.extensions.access_loggers.file import v3 as file_access_log
        from envoy_data_plane.envoy.extensions.access_loggers.stream import v3 as stdout_access_log
        from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
        from envoy_data_plane.envoy.extensions.filters.http.header_mutation import (
            v3 as header_mutation,
        )
        from envoy_data_plane.envoy.extensions.filters.http.header_to_metadata import (
            v3 as header_to_metadata,
        )
        from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
        from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import (
            v3 as connection_manager,
        )
        from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation import (
            v3 as early_header_mutation,
        )
        from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host import (
            v3 as override_host,
        )
        from envoy_data_plane.envoy.extensions.load_balancing_policies.round_robin import (
            v3 as round_robin,
        )
        from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections import (
            v3 as downstream_connections,
        )
        from envoy_data_plane.envoy.extensions.resource_monitors.fixed_heap import (
            v3 as fixed_heap,
        )
        from envoy_data_plane.envoy.extensions.retry.host.previous_hosts import (
            v3 as previous_hosts,
        )
        from envoy_data_plane.envoy.extensions.transport_sockets.tls import v3 as tls
        from envoy_data_plane.envoy.extensions.upstreams.http import v3 as upstream_http
        from envoy_data_plane.envoy.type import v3 as envoy_type
        from envoy_data_plane.envoy.type.matcher import v3 as matcher
        from envoy_data_plane.envoy.type.metadata import v3 as metadata
        from envoy_data_plane.google.protobuf import Any as PackedMessage
        from envoy_data_plane.google.protobuf import Struct
    except ModuleNotFoundError as error:
        package = (error.name or "envoy_data_plane").partition(".")[0]
        what = f"the Python package {package}"
        raise MissingDependencyError(what, "envoy-data-plane==2.*") from error

__all__ = [
    "PackedMessage",
    "Struct",
    "access_log_entry",
    "betterproto2",
    "bootstrap",
    "cluster",
    "connection_manager",
    "core",
    "downstream_connections",
    "early_header_mutation",
    "endpoint",
    "envoy_type",
    "ext_proc",
    "extension",
    "file_access_log",
    "fixed_heap",
    "header_mutation",
    "header_to_metadata",
    "listener",
    "matcher",
    "metadata",
    "mutation_rules",
    "overload",
    "override_host",
    "previous_hosts",
    "round_robin",
    "route",
    "router",
    "seconds",
    "socket_address",
    "socket_path",
    "stdout_access_log",
    "tls",
    "upstream_http",
]


def extension(name: str, config: betterproto2.Message) -> core.TypedExtensionConfig:
    """Return `config` as an Envoy extension with this name."""
    return core.TypedExtensionConfig(name=name, typed_config=PackedMessage.pack(config))


def seconds(value: float) -> datetime.timedelta:
    """Return a duration in the type of Envoy's messages."""
    return datetime.timedelta(seconds=value)


def socket_address(host: str, port: int) -> core.Address:
    """Return a TCP address; `host` is an IP address (IPv6 without brackets) or a DNS name."""
    return core.Address(socket_address=core.SocketAddress(address=host, port_value=port))


def socket_path(path: str) -> core.Address:
    """Return the address of a unix socket."""
    return core.Address(pipe=core.Pipe(path=path))
