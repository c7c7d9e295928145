"""Limits of the whole process: client connections, and memory."""

from epp.lab.envoy._data_plane import (
    PackedMessage,
    betterproto2,
    downstream_connections,
    fixed_heap,
    overload,
    seconds,
)
from epp.lab.envoy.gateway_limits import GatewayLimits

HEAP = "envoy.resource_monitors.fixed_heap"
CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"

REFRESH_SECONDS = 0.25
"""Interval of heap checks; with Envoy's default of 1 s many large responses can far exceed the
limit."""

RESET_FROM, REFUSE_FROM = 0.85, 0.95
"""Fractions of the heap limit."""

TRACKED_BYTES_POWER = 17
"""Envoy tracks the memory of streams with at least 2^17 bytes, so that it resets the largest."""


def overload_manager(limits: GatewayLimits) -> overload.OverloadManager | None:
    """Return the overload manager; None without any limit."""
    monitors = []
    actions = []
    tracked = None
    if limits.max_connections:
        count = downstream_connections.DownstreamConnectionsConfig(
            max_active_downstream_connections=limits.max_connections
        )
        monitors.append(_monitor(CONNECTIONS, count))
    if limits.max_heap_bytes:
        heap = fixed_heap.FixedHeapConfig(max_heap_size_bytes=limits.max_heap_bytes)
        monitors.append(_monitor(HEAP, heap))
        reset = overload.ScaledTrigger(
            scaling_threshold=RESET_FROM, saturation_threshold=REFUSE_FROM
        )
        refuse = overload.ThresholdTrigger(value=REFUSE_FROM)
        actions = [
            _action("reset_high_memory_stream", overload.Trigger(name=HEAP, scaled=reset)),
            _action("stop_accepting_requests", overload.Trigger(name=HEAP, threshold=refuse)),
        ]
        tracked = overload.BufferFactoryConfig(
            minimum_account_to_track_power_of_two=TRACKED_BYTES_POWER
        )
    if not monitors:
        return None
    return overload.OverloadManager(
        refresh_interval=seconds(REFRESH_SECONDS),
        resource_monitors=monitors,
        actions=actions,
        buffer_factory_config=tracked,
    )


def _monitor(name: str, config: betterproto2.Message) -> overload.ResourceMonitor:
    return overload.ResourceMonitor(name=name, typed_config=PackedMessage.pack(config))


def _action(name: str, trigger: overload.Trigger) -> overload.OverloadAction:
    return overload.OverloadAction(name=f"envoy.overload_actions.{name}", triggers=[trigger])
