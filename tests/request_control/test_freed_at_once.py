"""The objects of a request in flow control are freed at its end, without garbage collection."""

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from epp.app import App, ServeSettings
from epp.config import DEFAULT_CONFIG, load_text
from epp.data_layer.plugins import EndpointSpec
from epp.flow_control import QueuedRequest
from epp.request_control import EndCause, PendingDecision, RequestError, RoutedRequest

ADDRESS = "10.0.0.1:8000"
FULL, IDLE = 100, 0
HEADERS = {":path": "/v1/completions", "content-type": "application/json"}
BODY = b'{"model":"m","prompt":"hello"}'


class Pool:
    """An endpoint behind flow control, full or idle."""

    def __init__(self, sessions: str, most: int) -> None:
        text = (
            f"{DEFAULT_CONFIG}featureGates: [flowControl]\n"
            f'flowControl: {{defaultPriorityBand: {{maxRequests: "{most}"}}}}\n'
            f"extensions: {{sessions: {{plugins: {{{sessions}}}}}}}\n"
        )
        self.app = App(ServeSettings(config=load_text(text, "test"), endpoints=(ADDRESS,)))
        self.app.pool.store.replace_endpoints("test", [EndpointSpec("default/a", ADDRESS)])
        self.outcomes: list[str] = []
        self.is_over = asyncio.Event()

    def waits(self, queue: int) -> None:
        """Set the number of requests queued at the endpoint."""
        (endpoint,) = self.app.pool.store.snapshot
        now = asyncio.get_running_loop().time()
        endpoint.load.observe(waiting=queue, running=0, kv_cache_usage=0.0, requested_at=now)
        self.app.pool.flow.wake()

    def ask(self, headers: dict[str, str]) -> PendingDecision | None:
        """Send a request and record its outcome; return its pending decision."""
        decision = self.app.pool.director.handle(
            request_id="r", headers=HEADERS | headers, body=BODY, received_at=0.0
        )
        if isinstance(decision, RoutedRequest):
            self._decided(decision)
            return None
        decision.then(self._decided)
        return decision

    def _decided(self, outcome: RoutedRequest | RequestError) -> None:
        if isinstance(outcome, RoutedRequest):
            outcome.response_started(200, {})
            outcome.close(EndCause.COMPLETED)
        self.note(type(outcome).__name__)

    def note(self, outcome: str) -> None:
        """Record the end of a request."""
        self.outcomes.append(outcome)
        self.is_over.set()


def dispatched(pool: Pool, _: PendingDecision | None) -> None:
    pool.waits(IDLE)


def given_up(pool: Pool, decision: PendingDecision | None) -> None:
    assert decision is not None
    decision.cancel(EndCause.CLIENT_DISCONNECT)
    pool.note("cancelled")


def left_alone(_pool: Pool, _: PendingDecision | None) -> None:
    pass


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Disable garbage collection, and exclude existing objects."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("end", "headers", "most", "sessions", "outcome"),
    [
        pytest.param(dispatched, {}, 9, "", "RoutedRequest", id="dispatched after a wait"),
        pytest.param(
            dispatched,
            {},
            9,
            "priority: {}",
            "RoutedRequest",
            id="dispatched, with a session plugin",
        ),
        pytest.param(given_up, {}, 9, "", "cancelled", id="given up by its client"),
        pytest.param(
            left_alone,
            {"x-llm-d-request-ttl-ms": "1"},
            9,
            "",
            "QueueExpiredError",
            id="turned away when its time is over",
        ),
        pytest.param(left_alone, {}, 1, "", "QueueFullError", id="turned away at the limit"),
    ],
)
async def test_nothing_of_a_request_is_left_once_it_is(
    end: Callable[[Pool, PendingDecision | None], None],
    headers: dict[str, str],
    most: int,
    sessions: str,
    outcome: str,
) -> None:
    with capture_logs():
        pool = await asyncio.to_thread(Pool, sessions, most)
        pool.waits(FULL)
        fills = pool.ask({}) if most == 1 else None
        end(pool, pool.ask(headers))
        await pool.is_over.wait()
        assert pool.outcomes == [outcome]
        await asyncio.sleep(0)  # the turn in which it was reported ends
    kinds = (QueuedRequest, PendingDecision, RoutedRequest)
    left = [type(each) for each in gc.get_objects() if isinstance(each, kinds)]
    assert len(left) == (0 if fills is None else 2), left  # what fills the queue waits
