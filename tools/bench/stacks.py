"""Attributes stack samples of a process to components and functions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tools import REPOSITORY

LOOP = "loop and sockets"
HTTP2 = "transport: HTTP/2"
GRPC = "transport: gRPC, asyncio"
PROTOBUF = "protobuf"
PARSE = "parse"
SCHEDULE = "schedule"
ACCOUNT = "account"
METRICS = "metrics"
LOG = "log"
GLUE = "stream, director"
SCRAPES = "scrapes"
BARE = "bare handler"
OTHER = "other"
TRANSPORT = (LOOP, HTTP2, GRPC)

# The innermost frame that is listed decides; the first line that fits a frame counts. Nothing but
# the write to the socket takes time in _write.
_PARTS: tuple[tuple[str, str], ...] = (
    ("epp/transport/protocol.py:ConnectionProtocol._write", LOOP),
    ("epp/transport/http2/", HTTP2),
    ("epp/transport/", GRPC),
    ("hpack/", HTTP2),
    ("epp/ext_proc/stream.py", GLUE),
    ("epp/ext_proc/request_body.py", GLUE),
    ("epp/ext_proc/response_body.py", GLUE),
    ("epp/ext_proc/header_replies.py", GLUE),
    ("epp/ext_proc/service.py", GLUE),
    ("epp/ext_proc/", PROTOBUF),
    ("google/protobuf/", PROTOBUF),
    ("epp/parsing/", PARSE),
    ("epp/scheduling/load.py", ACCOUNT),
    ("epp/scheduling/", SCHEDULE),
    ("plugins/epp_plugins/parsers/", PARSE),
    ("plugins/epp_plugins/data_sources/", SCRAPES),
    ("plugins/epp_plugins/", SCHEDULE),
    ("epp/request_control/routed_request.py", ACCOUNT),
    ("epp/request_control/request_log.py", LOG),
    ("epp/request_control/", GLUE),
    ("epp/observability/logging.py", LOG),
    ("structlog/", LOG),
    ("epp/observability/", METRICS),
    ("prometheus_client/", METRICS),
    ("epp/data_layer/", SCRAPES),
    ("tools/bench/bare_server.py", BARE),
)
PARTS = (*TRANSPORT, PROTOBUF, PARSE, SCHEDULE, ACCOUNT, METRICS, LOG, GLUE, BARE, OTHER)

Frame = tuple[str, str]
"""File and function."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function in the samples."""

    name: str
    part: str
    own: float
    """Share of the samples in it, and in what it calls that is not Python."""
    total: float
    """Share of the samples in it or below it."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Summary of the samples."""

    samples: int
    parts: dict[str, float]
    """Share of each part."""
    functions: tuple[Function, ...]
    """The most own time first."""


Samples = list[tuple[int, bool, list[Frame]]]
"""Output of :mod:`tools.bench.sampled`: count, whether in the event loop, stack."""


def profile(sampled: Samples) -> Profile:
    """Sum up samples; scrapes are left out."""
    parts: Counter[str] = Counter()
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for count, in_loop, stack in sampled:
        # What has no file is made by dataclasses: its time is its caller's.
        frames = [f"{_shortened(path)}:{name}" for path, name in stack if path[0] != "<"]
        part = LOOP if in_loop else _part(frames)
        if part == SCRAPES:
            continue
        parts[part] += count
        for frame in set(frames):
            total[frame] += count
        if not in_loop:
            own[frames[0]] += count
    samples = max(1, parts.total())
    functions = (
        Function(name, _part([name]), count / samples, total[name] / samples)
        for name, count in own.most_common()
    )
    shares = {part: parts[part] / samples for part in PARTS if parts[part]}
    return Profile(samples, shares, tuple(functions))


def _part(frames: Sequence[str]) -> str:
    for frame in frames:
        for prefix, part in _PARTS:
            if frame.startswith(prefix):
                return part
    return OTHER


def _shortened(path: str) -> str:
    """Return a path within the repository, or within the folder of packages it is in."""
    _, found, package = path.rpartition("/site-packages/")
    return package if found else path.removeprefix(f"{REPOSITORY}/")
