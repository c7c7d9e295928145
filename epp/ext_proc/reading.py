"""Reading what Envoy sends."""

from epp.ext_proc.messages import METADATA_NAMESPACE
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb

SERVED_KEY = "x-gateway-destination-endpoint-served"
"""Key in the response's metadata: the ``ip:port`` that answered."""


def mode_name(mode: int) -> str:
    """Return the mode's name; its number for one that a newer Envoy has."""
    values = pb.ProcessingMode.BodySendMode.DESCRIPTOR.values_by_number
    return values[mode].name if mode in values else str(mode)


def headers(message: pb.HttpHeaders) -> dict[str, str]:
    """Return headers by lower-case name; the last of a repeated one."""
    return {
        header.key.lower(): header.raw_value.decode("utf-8", "replace") or header.value
        for header in message.headers.headers
    }


def status(message: pb.HttpHeaders) -> int:
    """Return the HTTP status of response headers, 0 if there is none; Envoy sends it first."""
    for header in message.headers.headers:
        if header.key == ":status":
            value = header.raw_value.decode("utf-8", "replace") or header.value
            return int(value) if value.isdecimal() else 0
    return 0


def served_endpoint(request: pb.ProcessingRequest) -> str:
    """Return the ``ip:port`` that the gateway says has served; "" if it does not say."""
    if not request.HasField("metadata_context"):
        return ""
    metadata = request.metadata_context.filter_metadata
    if METADATA_NAMESPACE not in metadata:
        return ""
    value = metadata[METADATA_NAMESPACE].fields.get(SERVED_KEY)
    return value.string_value if value is not None else ""
