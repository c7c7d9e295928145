"""Access to a path, by token reviews of a fake API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from epp.kubernetes.api import ApiClient, ApiError, Resource
from epp.kubernetes.token_reviews import Reviews
from epp.observability import Metrics, MetricsServer

from .conftest import connect
from .fake_api import ACCESS_REVIEWS, TOKEN_REVIEWS, FakeApi, fake_api
from .fake_state import Json, RefusedError

PROMETHEUS: Json = {
    "username": "system:serviceaccount:monitoring:prometheus",
    "uid": "u-1",
    "groups": ["system:serviceaccounts", "system:authenticated"],
    "extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]},
}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with fake_api([TOKEN_REVIEWS, ACCESS_REVIEWS]) as server:
        server.accounts.users["good"] = PROMETHEUS
        server.accounts.paths.add((PROMETHEUS["username"], "get", "/metrics"))
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def reviews(client: ApiClient, clock: Clock) -> AsyncIterator[Reviews]:
    made = Reviews(client, clock=clock)
    yield made
    await made.close()


@pytest.fixture
def kinds_asked(api: FakeApi) -> Callable[[], list[str]]:
    """Return the kinds of the reviews since the last call."""

    def kinds() -> list[str]:
        found = [request.path.rpartition("/")[2] for request in api.requests]
        api.requests.clear()
        return found

    return kinds


async def test_a_user_with_the_right_is_allowed(api: FakeApi, reviews: Reviews) -> None:
    assert (await reviews.allows("good", "/metrics")).status is HTTPStatus.OK
    token, access = (msgspec.json.decode(request.body) for request in api.requests)
    assert (token["apiVersion"], token["kind"]) == ("authentication.k8s.io/v1", "TokenReview")
    assert token["spec"] == {"token": "good"}
    assert (access["apiVersion"], access["kind"]) == (
        "authorization.k8s.io/v1",
        "SubjectAccessReview",
    )
    assert access["spec"] == {
        "user": PROMETHEUS["username"],
        "uid": "u-1",
        "groups": PROMETHEUS["groups"],
        "extra": PROMETHEUS["extra"],
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        pytest.param(("", "/metrics"), 401, "is missing", id="no token"),
        pytest.param(("bad", "/metrics"), 401, "invalid or has expired", id="invalid token"),
        pytest.param(("good", "/debug/x"), 403, "may not get /debug/x", id="another path"),
        pytest.param(("good", "/metrics", "post"), 403, "may not post", id="another verb"),
    ],
)
async def test_others_are_refused(
    reviews: Reviews, asked: tuple[str, ...], status: int, text: str
) -> None:
    verdict = await reviews.allows(*asked)
    assert verdict.status == status
    assert text in verdict.text


async def test_a_valid_token_is_reviewed_once_a_minute(
    reviews: Reviews, clock: Clock, kinds_asked: Callable[[], list[str]]
) -> None:
    await reviews.allows("good", "/metrics")
    assert kinds_asked() == ["tokenreviews", "subjectaccessreviews"]
    clock.now = 59
    await reviews.allows("good", "/metrics")
    assert kinds_asked() == []
    clock.now = 60
    await reviews.allows("good", "/metrics")
    assert kinds_asked() == ["tokenreviews"]
    clock.now = 299
    await reviews.allows("good", "/metrics")
    assert kinds_asked() == ["tokenreviews"]
    clock.now = 300
    await reviews.allows("good", "/metrics")
    assert kinds_asked() == ["subjectaccessreviews"]


async def test_refusals_are_remembered_for_a_shorter_time(
    api: FakeApi, reviews: Reviews, clock: Clock, kinds_asked: Callable[[], list[str]]
) -> None:
    await reviews.allows("good", "/debug/x")
    await reviews.allows("bad", "/metrics")
    assert kinds_asked() == ["tokenreviews", "subjectaccessreviews", "tokenreviews"]
    clock.now = 29
    await reviews.allows("good", "/debug/x")
    await reviews.allows("bad", "/metrics")
    assert kinds_asked() == []
    api.accounts.paths.add((PROMETHEUS["username"], "get", "/debug/x"))
    api.accounts.users["bad"] = PROMETHEUS
    clock.now = 30
    assert (await reviews.allows("good", "/debug/x")).status is HTTPStatus.OK
    assert (await reviews.allows("bad", "/metrics")).status is HTTPStatus.UNAUTHORIZED
    clock.now = 60
    assert (await reviews.allows("bad", "/metrics")).status is HTTPStatus.OK


async def test_any_number_of_invalid_tokens_does_not_displace_a_valid_one(
    reviews: Reviews, kinds_asked: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epp.kubernetes.token_reviews._MAX_VERDICTS", 3)
    await reviews.allows("good", "/metrics")
    for number in range(5):
        await reviews.allows(f"bad-{number}", "/metrics")
        await reviews.allows("good", f"/other-{number}")
    kinds_asked()
    assert (await reviews.allows("good", "/metrics")).status is HTTPStatus.OK
    assert kinds_asked() == []
    # The newest of each are remembered.
    for number in (4, 3, 2):
        await reviews.allows(f"bad-{number}", "/metrics")
        await reviews.allows("good", f"/other-{number}")
    assert kinds_asked() == []
    await reviews.allows("bad-1", "/metrics")
    assert kinds_asked() == ["tokenreviews"]


async def test_without_a_server_only_what_is_known_is_decided(
    api: FakeApi, reviews: Reviews, clock: Clock
) -> None:
    await reviews.allows("good", "/metrics")
    away = RefusedError(500, "InternalError", "etcdserver: no leader")
    with capture_logs() as logs:
        for _ in range(2):
            api.faults.refusals.append(away)
            verdict = await reviews.allows("good", "/debug/x")
            assert verdict.status is HTTPStatus.SERVICE_UNAVAILABLE
            assert "cannot be checked now" in verdict.text
            assert "etcd" not in verdict.text
        assert (await reviews.allows("good", "/metrics")).status is HTTPStatus.OK
        assert isinstance(reviews.fault, ApiError)
        clock.now = 60
        api.faults.refusals.append(away)
        assert (await reviews.allows("good", "/metrics")).status is HTTPStatus.SERVICE_UNAVAILABLE
        # A failure is not remembered.
        assert (await reviews.allows("good", "/metrics")).status is HTTPStatus.OK
    assert [each["event"] for each in logs] == ["access not reviewed", "access reviewed again"]
    assert "etcdserver: no leader" in logs[0]["error"]
    assert reviews.fault is None


@pytest.mark.parametrize("resource", [TOKEN_REVIEWS, ACCESS_REVIEWS], ids=lambda each: each.plural)
async def test_the_log_names_a_right_that_this_process_lacks(
    api: FakeApi, reviews: Reviews, resource: Resource
) -> None:
    api.faults.denied.add(("create", resource.plural))
    with capture_logs() as logs:
        verdict = await reviews.allows("good", "/metrics")
    assert verdict.status is HTTPStatus.SERVICE_UNAVAILABLE
    (entry,) = logs
    assert (
        f'a rule of a ClusterRole: apiGroups: ["{resource.group}"], '
        f'resources: ["{resource.plural}"], verbs: ["create"]'
    ) in entry["error"]


async def test_equal_requests_at_the_same_time_share_a_review(
    reviews: Reviews, kinds_asked: Callable[[], list[str]]
) -> None:
    verdicts = await asyncio.gather(*(reviews.allows("good", "/metrics") for _ in range(20)))
    assert {each.status for each in verdicts} == {HTTPStatus.OK}
    assert kinds_asked() == ["tokenreviews", "subjectaccessreviews"]


async def test_a_client_that_leaves_does_not_end_the_review_for_the_others(
    api: FakeApi, reviews: Reviews
) -> None:
    first = asyncio.create_task(reviews.allows("good", "/metrics"))
    second = asyncio.create_task(reviews.allows("good", "/metrics"))
    await api.until(lambda: bool(api.requests))
    first.cancel()
    assert (await second).status is HTTPStatus.OK
    assert first.cancelled()


async def test_the_end_does_not_wait_for_reviews(api: FakeApi, reviews: Reviews) -> None:
    api.faults.is_hung = True
    waiting = asyncio.create_task(reviews.allows("good", "/metrics"))
    await api.until(lambda: bool(api.requests))
    await reviews.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_metrics_port_asks_from_its_own_event_loop(api: FakeApi, tmp_path: Path) -> None:
    connection = await asyncio.to_thread(connect, tmp_path, api.url)
    reviews = Reviews(ApiClient(connection))
    bearer = {"authorization": "Bearer good"}
    async with (
        MetricsServer(Metrics(), host="127.0.0.1", port=0, authorizer=reviews) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as http,
    ):
        responses = [
            await http.get("/metrics", headers=bearer),
            await http.get("/metrics", headers=bearer),
            await http.get("/debug/", headers=bearer),
            await http.get("/metrics"),
        ]
        # The port is as independent of the main event loop as without an authorizer.
        url = f"http://127.0.0.1:{server.port}/metrics"
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(httpx.get, url, headers=bearer, trust_env=False)
            assert asked.result().status_code == 200  # this blocks the event loop
    assert [each.status_code for each in responses] == [200, 200, 403, 401]
    assert len(api.requests) == 3
