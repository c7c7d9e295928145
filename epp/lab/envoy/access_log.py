"""Envoy's access log: what its lines hold, and where they go."""

from epp.lab.envoy._data_plane import (
    Struct,
    access_log_entry,
    core,
    extension,
    file_access_log,
    stdout_access_log,
)

STANDARD_OUTPUT = "-"

FIELDS = {
    "time": "%START_TIME%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "method": "%REQ(:METHOD)%",
    # Without the query, where some clients put their key.
    "path": "%PATH(NQ)%",
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "endpoint": "%UPSTREAM_HOST%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "request_bytes": "%BYTES_RECEIVED%",
    "response_bytes": "%BYTES_SENT%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "duration_ms": "%DURATION%",
}
"""Of each line: its JSON fields and Envoy's formats for them."""


def access_log(path: str) -> access_log_entry.AccessLog:
    """Return a log with a JSON line for each request, to a file or to `STANDARD_OUTPUT`."""
    line = core.SubstitutionFormatString(json_format=Struct.from_dict(FIELDS))
    if path == STANDARD_OUTPUT:
        stdout = stdout_access_log.StdoutAccessLog(log_format=line)
        written = extension("envoy.access_loggers.stdout", stdout)
    else:
        file = file_access_log.FileAccessLog(path=path, log_format=line)
        written = extension("envoy.access_loggers.file", file)
    return access_log_entry.AccessLog(name=written.name, typed_config=written.typed_config)
