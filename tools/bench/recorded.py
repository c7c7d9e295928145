"""Cost of recording decisions for `epp explain`: none, a sample, or every one, in turns."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

from epp.admin import ExplainSettings
from epp.app import App, ServeSettings
from epp.config import DEFAULT_CONFIG, load_text
from epp.data_layer import EndpointSpec
from epp.request_control import EndCause, RoutedRequest
from tools.bench.in_process import OPEN_STREAMS, refresh, silenced

SIZES = (10, 100, 1000)
"""Numbers of endpoints."""
SETTINGS: Mapping[str, ExplainSettings] = {
    "off": ExplainSettings(explain_decisions=0),
    "sampled out": ExplainSettings(explain_rate=0.001),
    "every decision": ExplainSettings(explain_rate=0.0),
}
_HEADERS = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Cost:
    """The director's cost of a request, by what is recorded."""

    endpoints: int
    us: Mapping[str, float]
    """CPU microseconds, the least of all repetitions, by the name in :data:`SETTINGS`."""
    bytes: float
    """Memory of a recorded decision, by its own estimate."""


def measure(repeats: int) -> list[Cost]:
    """Return the costs for each number of endpoints."""
    with silenced("info"):
        return [_measure(count, repeats) for count in SIZES]


def _measure(count: int, repeats: int) -> Cost:
    apps = {name: _app(count, settings) for name, settings in SETTINGS.items()}
    loops = max(100, 20_000 // count)
    times: dict[str, list[float]] = {name: [] for name in apps}
    for repeat in range(repeats + 1):  # the first fills the rings
        for name, app in apps.items():
            began = time.process_time()
            _send(app, repeat * loops, loops)
            times[name].append((time.process_time() - began) / loops * 1e6)
            refresh(app)
    ring = apps["every decision"].pool.explanations.ring
    least = {name: min(spent[1:]) for name, spent in times.items()}
    return Cost(count, least, ring.used_bytes / len(ring))


def _app(count: int, settings: ExplainSettings) -> App:
    addresses = [f"10.0.{n // 250}.{n % 250 + 1}:8000" for n in range(count)]
    app = App(
        ServeSettings(
            config=load_text(DEFAULT_CONFIG, "default"),
            endpoints=tuple(addresses),
            explain=settings,
        )
    )
    specs = [EndpointSpec(f"default/server-{n}", each) for n, each in enumerate(addresses)]
    app.pool.store.replace_endpoints("bench", specs)
    refresh(app)
    return app


def _send(app: App, first: int, count: int) -> None:
    director = app.pool.director
    in_flight: list[RoutedRequest] = []
    for number in range(first, first + count):
        routed = director.handle(
            request_id=f"r-{number}",
            headers=_HEADERS,
            body=b'{"model":"m","prompt":"request %d %s","stream":true}' % (number, b"x" * 500),
            received_at=time.monotonic(),
        )
        assert isinstance(routed, RoutedRequest)
        routed.body_sent()
        in_flight.append(routed)
        if len(in_flight) >= OPEN_STREAMS:
            _end(in_flight.pop(0))
    for each in in_flight:
        _end(each)


def _end(routed: RoutedRequest) -> None:
    routed.response_started(200)
    routed.close(EndCause.COMPLETED)


def table(costs: list[Cost]) -> Table:
    """Return the costs as a table."""
    made = Table(title="Recording decisions: director's part of a request, CPU us")
    for heading in ("endpoints", *SETTINGS, "more", "bytes a decision"):
        made.add_column(heading, justify="right")
    for each in costs:
        more = each.us["every decision"] - each.us["off"]
        made.add_row(
            str(each.endpoints),
            *(f"{us:.1f}" for us in each.us.values()),
            f"{more:.1f}",
            f"{each.bytes:.0f}",
        )
    return made
