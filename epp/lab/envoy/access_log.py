"""Envoy's access log: the fields of a line, and the destination."""

from epp.lab.envoy._data_plane import (
    Struct,
    access_log_entry,
    core,
    extension,
    file_access_log,
    stdout_access_log,
)
from epp.lab.envoy.names import DESTINATION_HEADER, DESTINATION_NAMESPACE, EXT_PROC_FILTER

STANDARD_OUTPUT = "-"


def fields(ext_proc_filter: str = EXT_PROC_FILTER) -> dict[str, str]:
    """Return the JSON fields of a line, and Envoy's formats of their values.

    Args:
        ext_proc_filter: Name of the endpoint picker's filter.
    """
    return {
        "time": "%START_TIME%",
        "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "method": "%REQ(:METHOD)%",
        # Without the query, which may contain an API key.
        "path": "%PATH(NQ)%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        # The picked endpoints, and the one that served the request: it may be a later one.
        "picked": f"%DYNAMIC_METADATA({DESTINATION_NAMESPACE}:{DESTINATION_HEADER})%",
        "endpoint": "%UPSTREAM_HOST%",
        # The reason of a refusal, from a header of the endpoint picker's response.
        "dropped": "%RESP(X-LLM-D-REQUEST-DROPPED-REASON)%",
        # Microseconds and gRPC status per message, bytes, and other data of the filter.
        "ext_proc": f"%FILTER_STATE({ext_proc_filter}:PLAIN)%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "request_bytes": "%BYTES_RECEIVED%",
        "response_bytes": "%BYTES_SENT%",
        "first_byte_ms": "%RESPONSE_DURATION%",
        "duration_ms": "%DURATION%",
    }


def access_log(path: str) -> access_log_entry.AccessLog:
    """Return an access log with a line of JSON per request, to a file or `STANDARD_OUTPUT`."""
    line = core.SubstitutionFormatString(json_format=Struct.from_dict(fields()))
    if path == STANDARD_OUTPUT:
        stdout = stdout_access_log.StdoutAccessLog(log_format=line)
        written = extension("envoy.access_loggers.stdout", stdout)
    else:
        file = file_access_log.FileAccessLog(path=path, log_format=line)
        written = extension("envoy.access_loggers.file", file)
    return access_log_entry.AccessLog(name=written.name, typed_config=written.typed_config)
