"""Ask the API server who has sent a request, and whether RBAC lets them read a path.

A TokenReview finds the user of a bearer token, a SubjectAccessReview whether that user may use a
verb on a path that is no resource, such as ``/metrics``; a ClusterRole with ``nonResourceURLs``
grants it. Both verdicts are cached, so that known clients do not notice a short outage of the API
server. The account of this process needs ``create`` on both kinds, by a ClusterRole.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from epp.kubernetes.api import ApiClient, KubernetesApiError, Resource

_log = structlog.get_logger(__name__)

_T = TypeVar("_T")

TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"
)

_USER_SECONDS: Final = 60.0
_ALLOWED_SECONDS: Final = 300.0
_DENIED_SECONDS: Final = 30.0
_MAX_VERDICTS: Final = 1024
_CALL_SECONDS: Final = 5.0
"""Limit of a review; Prometheus waits 10 s for both and for the page."""


@dataclass(frozen=True, slots=True)
class ReviewVerdict:
    """Whether a request is allowed."""

    status: HTTPStatus
    """OK if it is; else the status to refuse it with."""
    text: str
    """Why it is refused, for the client; it reveals nothing about the cluster."""


_ALLOWED: Final = ReviewVerdict(HTTPStatus.OK, "")
_NO_TOKEN: Final = ReviewVerdict(
    HTTPStatus.UNAUTHORIZED, "the header `authorization: Bearer TOKEN` is missing"
)
_UNKNOWN: Final = ReviewVerdict(HTTPStatus.UNAUTHORIZED, "the token is invalid or has expired")
_UNDECIDED: Final = ReviewVerdict(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "the token cannot be checked now: the review by the Kubernetes API failed, and the log of this"
    " server says why",
)


class _User(msgspec.Struct, frozen=True, omit_defaults=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenSpec(msgspec.Struct, frozen=True):
    token: str


class _TokenReview(msgspec.Struct, frozen=True):
    spec: _TokenSpec


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _ReviewedToken(msgspec.Struct, frozen=True):
    status: _TokenStatus


class _PathAttributes(msgspec.Struct, frozen=True):
    path: str
    verb: str


class _AccessSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    user: str
    non_resource_attributes: _PathAttributes
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _AccessReview(msgspec.Struct, frozen=True):
    spec: _AccessSpec


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _ReviewedAccess(msgspec.Struct, frozen=True):
    status: _AccessStatus


class Reviews:
    """Decides about requests by reviews.

    Args:
        client: The API server. It is used on the event loop of the caller alone, and closed by
            :meth:`close`.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, client: ApiClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.fault: KubernetesApiError | None = None
        """Why the last review failed; None if it did not."""
        self._client = client
        self._users: _Verdicts[_User | None] = _Verdicts(_USER_SECONDS, _USER_SECONDS, clock)
        self._accesses: _Verdicts[bool] = _Verdicts(_ALLOWED_SECONDS, _DENIED_SECONDS, clock)

    async def allows(self, token: str, path: str, verb: str = "get") -> ReviewVerdict:
        """Decide about a request.

        Args:
            token: The bearer token; empty if there is none.
            path: The path without the query.
            verb: The HTTP method in lower case.
        """
        if not token:
            return _NO_TOKEN
        try:
            # A hash, so that tokens do not stay in memory.
            digest = sha256(token.encode()).digest()
            user = await self._users.get(digest, lambda: self._review_token(token))
            if user is None:
                return _UNKNOWN
            spec = _AccessSpec(
                user.username, _PathAttributes(path, verb), user.uid, user.groups, user.extra
            )
            key = msgspec.json.encode(spec)
            is_allowed = await self._accesses.get(key, lambda: self._review_access(spec))
        except KubernetesApiError:
            return _UNDECIDED
        if is_allowed:
            return _ALLOWED
        return ReviewVerdict(HTTPStatus.FORBIDDEN, f"{user.username} may not {verb} {path}")

    async def close(self) -> None:
        """Abandon reviews in progress and close the client."""
        await self._users.close()
        await self._accesses.close()
        await self._client.close()

    async def _review_token(self, token: str) -> _User | None:
        review = _TokenReview(_TokenSpec(token))
        reviewed = await self._review(TOKEN_REVIEWS, review, _ReviewedToken)
        return reviewed.status.user if reviewed.status.authenticated else None

    async def _review_access(self, spec: _AccessSpec) -> bool:
        reviewed = await self._review(ACCESS_REVIEWS, _AccessReview(spec), _ReviewedAccess)
        return reviewed.status.allowed

    async def _review(self, resource: Resource, review: msgspec.Struct, type_: type[_T]) -> _T:
        try:
            reviewed = await self._client.post(
                resource, review, type_, timeout_seconds=_CALL_SECONDS
            )
        except KubernetesApiError as error:
            if self.fault is None:
                _log.warning("access not reviewed", error=str(error))
            self.fault = error
            raise
        if self.fault is not None:
            self.fault = None
            _log.info("access reviewed again")
        return reviewed


class _Verdicts(Generic[_T]):
    """Cached verdicts by key; concurrent callers share one question.

    Truthy and falsy verdicts are kept apart, so that refused clients, which may invent any number
    of tokens, do not displace allowed ones. Failures are not cached.

    Args:
        yes_seconds: How long truthy verdicts are cached.
        no_seconds: How long falsy ones are.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, yes_seconds: float, no_seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = {True: yes_seconds, False: no_seconds}
        self._clock = clock
        # Expiry time and verdict, in the order of expiry.
        self._known: dict[bool, dict[Hashable, tuple[float, _T]]] = {True: {}, False: {}}
        self._asking: dict[Hashable, asyncio.Task[_T]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Return the verdict; call ``ask`` if it is not cached."""
        for known in self._known.values():
            if key in known:
                until, verdict = known[key]
                if self._clock() < until:
                    return verdict
                del known[key]
        task = self._asking.get(key)
        if task is None:
            task = asyncio.create_task(self._ask(key, ask), name="access-review")
            self._asking[key] = task
        # A client that disconnects must not end the review for the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop asking."""
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[_T]]) -> _T:
        try:
            verdict = await ask()
        finally:
            del self._asking[key]
        known = self._known[bool(verdict)]
        known[key] = self._clock() + self._seconds[bool(verdict)], verdict
        if len(known) > _MAX_VERDICTS:
            del known[next(iter(known))]
        return verdict
