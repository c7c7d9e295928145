"""The pool of a request, if one endpoint picker serves several."""

from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from epp.ext_proc import MatchedPool, PoolMatcher
from epp.observability import Metrics
from epp.request_control import (
    UNCOUNTED,
    EndCause,
    NoPoolMatchesError,
    PendingDecision,
    PoolNotServedError,
    Refusals,
    RequestError,
    RequestMemory,
    RoutedRequest,
)
from epp.tracing import RequestTrace

POOL = "x-gateway-inference-pool"


class Undecided(PendingDecision):
    """A decision that is never made."""

    def cancel(self, cause: EndCause) -> None:
        """Do nothing."""


class Handler:
    """Records the requests that it would decide."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[str] = []
        self.ended: list[tuple[str, RequestError | EndCause]] = []

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        received_at: float,
        subset: Sequence[str] | None = None,
        memory: RequestMemory = UNCOUNTED,
        trace: RequestTrace | None = None,
    ) -> RoutedRequest | PendingDecision:
        self.requests.append(request_id)
        return Undecided()

    def ended_early(
        self,
        why: RequestError | EndCause,
        *,
        request_id: str,
        headers: Mapping[str, str],
        received_at: float,
    ) -> None:
        self.ended.append((request_id, why))

    def priority_of(self, headers: Mapping[str, str]) -> int:
        return len(self.name)


class Matching:
    """A matcher of the pools ``chat``, ``code`` and ``plain``."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.matcher = PoolMatcher("serving", Refusals(self.metrics, lambda: 0.0))
        self.handlers = {name: Handler(name) for name in ("chat", "code", "plain")}
        self.matcher.use(
            [
                self.pool("chat", "chat-epp", "chat.example.com", "*.chat.example.com"),
                self.pool("code", "code-epp", "code.example.com"),
                self.pool("plain"),
            ]
        )

    def pool(self, name: str, service: str = "", *hosts: str) -> MatchedPool:
        return MatchedPool(name, self.handlers[name], service, hosts)


@pytest.fixture
def matching() -> Matching:
    return Matching()


def decided(matching: Matching, stream: Mapping[str, str], request: Mapping[str, str]) -> str:
    """Return the name of the pool whose handler gets a request."""
    for each in matching.handlers.values():
        each.requests.clear()
    handler = matching.matcher.of_stream(stream)
    handler.handle(request_id="r", headers=request, body=b"", received_at=0.0)
    (name,) = (each.name for each in matching.handlers.values() if each.requests == ["r"])
    assert handler.priority_of(request) == len(name)
    return name


@pytest.mark.parametrize(
    ("stream", "request_headers", "pool"),
    [
        pytest.param({POOL: "code"}, {}, "code", id="metadata"),
        pytest.param({POOL: "serving/code"}, {}, "code", id="metadata with the namespace"),
        pytest.param(
            {POOL: "code", ":authority": "chat-epp.serving.svc:9002"},
            {POOL: "chat"},
            "code",
            id="metadata before everything else",
        ),
        pytest.param({":authority": "chat-epp.serving.svc:9002"}, {}, "chat", id="a Service"),
        pytest.param({":authority": "chat-epp"}, {}, "chat", id="a Service by its name alone"),
        pytest.param(
            {":authority": "outbound|9002||code-epp.serving.svc.cluster.local"},
            {},
            "code",
            id="Istio's name of the cluster of a Service",
        ),
        pytest.param(
            {":authority": "Code-EPP.serving.svc.cluster.local:9002"},
            {POOL: "chat"},
            "code",
            id="a Service before the header",
        ),
        pytest.param(
            {":authority": "code-epp.other.svc:9002"},
            {POOL: "chat"},
            "chat",
            id="a Service of another namespace is none",
        ),
        pytest.param({}, {POOL: "plain", ":authority": "chat.example.com"}, "plain", id="header"),
        pytest.param({}, {":authority": "code.example.com"}, "code", id="host"),
        pytest.param({}, {":authority": "Code.Example.com:8443"}, "code", id="host and port"),
        pytest.param({}, {":authority": "a.b.chat.example.com"}, "chat", id="below a domain"),
        pytest.param(
            {":authority": "epp:9002"}, {":authority": "code.example.com"}, "code", id="another"
        ),
    ],
)
def test_a_request_goes_to_the_pool_that_is_named_first(
    matching: Matching, stream: dict[str, str], request_headers: dict[str, str], pool: str
) -> None:
    assert decided(matching, stream, request_headers) == pool
    assert decided(matching, stream, request_headers) == pool  # the same when it is remembered


@pytest.mark.parametrize(
    ("stream", "request_headers", "error", "text"),
    [
        pytest.param({POOL: "gone"}, {}, PoolNotServedError, "the pool gone$", id="metadata"),
        pytest.param(
            {POOL: "other/code"}, {}, PoolNotServedError, "the pool other/code$", id="namespace"
        ),
        pytest.param({}, {POOL: "gone"}, PoolNotServedError, "the pool gone$", id="header"),
        pytest.param({}, {}, NoPoolMatchesError, "no pool matches", id="nothing"),
        pytest.param(
            {}, {":authority": "example.com"}, NoPoolMatchesError, "host of a pool", id="host"
        ),
        pytest.param(
            {},
            {":authority": "plain"},
            NoPoolMatchesError,
            "host of a pool",
            id="no name is a host",
        ),
    ],
)
def test_a_request_that_names_no_pool_is_refused_and_counted(
    matching: Matching,
    stream: dict[str, str],
    request_headers: dict[str, str],
    error: type[Exception],
    text: str,
) -> None:
    handler = matching.matcher.of_stream(stream)
    with capture_logs() as logs, pytest.raises(error, match=text):
        handler.handle(request_id="r-7", headers=request_headers, body=b"", received_at=0.0)
    assert handler.priority_of(request_headers) == 0
    (line,) = logs
    assert (line["event"], line["request_id"]) == ("request refused", "r-7")
    errors = [
        sample.value
        for family in matching.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "llm_d_epp_request_error_total"
    ]
    assert errors == [1.0]


def test_a_long_name_of_a_pool_is_cut(matching: Matching) -> None:
    handler = matching.matcher.of_stream({POOL: "x" * 10_000})
    with pytest.raises(PoolNotServedError) as caught:
        handler.handle(request_id="r", headers={}, body=b"", received_at=0.0)
    assert len(str(caught.value)) < 400


def test_a_pool_that_comes_later_decides_on_streams_that_are_open(matching: Matching) -> None:
    named = matching.matcher.of_stream({POOL: "late"})
    late = matching.handlers["late"] = Handler("late")
    matching.matcher.use([MatchedPool("late", late)])
    named.handle(request_id="r", headers={}, body=b"", received_at=0.0)
    assert late.requests == ["r"]


def test_a_change_of_the_pools_reaches_authorities_that_are_remembered(matching: Matching) -> None:
    stream = {":authority": "chat-epp.serving.svc:9002"}
    assert decided(matching, stream, {}) == "chat"
    matching.matcher.use([matching.pool("plain", "chat-epp")])
    assert decided(matching, stream, {}) == "plain"


def test_a_service_or_host_of_several_pools_selects_none_of_them(matching: Matching) -> None:
    shared = [matching.pool("chat", "epp", "h"), matching.pool("code", "epp", "h")]
    with capture_logs() as logs:
        matching.matcher.use(shared)
        matching.matcher.use(shared)  # it is said once
    assert [(line["kind"], line["name"], line["pools"]) for line in logs] == [
        ("Service", "epp", ["chat", "code"]),
        ("host", "h", ["chat", "code"]),
    ]
    assert decided(matching, {":authority": "epp:9002"}, {POOL: "code"}) == "code"
    handler = matching.matcher.of_stream({":authority": "epp:9002"})
    with pytest.raises(NoPoolMatchesError):
        handler.handle(request_id="r", headers={":authority": "h"}, body=b"", received_at=0.0)


def test_authorities_that_are_remembered_are_limited(matching: Matching) -> None:
    for number in range(1000):
        matching.matcher.of_stream({":authority": f"host-{number}"})
    assert len(matching.matcher._authorities) <= 256
    assert decided(matching, {":authority": "code-epp"}, {}) == "code"


def test_a_request_that_ends_early_is_recorded_in_its_pool_or_nowhere() -> None:
    matching = Matching()
    by_header = matching.matcher.of_stream({})
    error = NoPoolMatchesError("ended")
    for number, headers in enumerate(({POOL: "code"}, {POOL: "unknown"}, {})):
        by_header.ended_early(error, request_id=f"r-{number}", headers=headers, received_at=0.0)
    ended = {each.name: each.ended for each in matching.handlers.values()}
    assert ended == {"chat": [], "code": [("r-0", error)], "plain": []}
