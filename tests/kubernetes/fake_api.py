"""A fake Kubernetes API server on a real socket, with faults on demand.

It has what a client can tell apart: resource versions, lists in pages, watches with selectors,
bookmarks and ``sendInitialEvents``, compare-and-swap, status subresources, discovery. Nothing in it
happens by time except the end of a watch after ``timeoutSeconds``.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from epp.kubernetes.api import Resource

from .fake_state import Change, FakeState, Json, Key, Matches, RefusedError, selection

CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
PODS: Final = Resource("", "v1", "pods", "Pod")
NODES: Final = Resource("", "v1", "nodes", "Node")
"""Have no namespace."""
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS: Final = Resource("", "v1", "events", "Event")
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"
)
GADGETS: Final = Resource("example.com", "v1alpha1", "gadgets", "Gadget")
"""A custom resource with a status."""

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in {"true", "1"}


@dataclass(frozen=True)
class _Target:
    """What a path names."""

    resource: Resource
    namespace: str | None
    name: str | None
    subresource: str | None

    @property
    def key(self) -> Key:
        assert self.name is not None
        return self.namespace or "", self.name


@dataclass
class Faults:
    """What goes wrong until the test sets it right."""

    denied: set[tuple[str, str]] = field(default_factory=set)
    """Verbs and resources that the client's role lacks, such as ``gadgets/status``."""
    denied_groups: set[str] = field(default_factory=set)
    """API groups of which the client's role has nothing."""
    refusals: list[RefusedError] = field(default_factory=list)
    """Each is the response to one of the next requests."""
    watch_list: Literal["served", "refused", "ignored"] = "served"
    """What happens to ``sendInitialEvents``."""
    expired_as: Literal["event", "status"] = "event"
    """How a watch is told that its resource version is too old."""
    lists_wait_for: asyncio.Event | None = None
    """Lists are answered when it is set."""
    raw: bytes | None = None
    """The response to every request, head and body."""
    is_hung: bool = False
    """Whether nothing is sent any more, on any connection: a half-open connection, to a client."""
    tokens: set[str] | None = None
    """Accepted bearer tokens; None for any and none."""


@dataclass
class Accounts:
    """What reviews answer."""

    users: dict[str, Json] = field(default_factory=dict)
    """The users of valid tokens."""
    paths: set[tuple[str, str, str]] = field(default_factory=set)
    """Who may use which verb on which path that is no resource."""

    def token_status(self, spec: Json) -> Json:
        if spec["token"] not in self.users:
            return {"user": {}, "error": "[invalid bearer token]"}
        return {"authenticated": True, "user": self.users[spec["token"]]}

    def access_status(self, spec: Json) -> Json:
        asked = spec["nonResourceAttributes"]
        is_allowed = (spec["user"], asked["verb"], asked["path"]) in self.paths
        return {"allowed": is_allowed, "reason": ""}


class _Watch:
    """An open watch."""

    def __init__(self, matches: Matches, writer: asyncio.StreamWriter, faults: Faults) -> None:
        self.matches = matches
        self.faults = faults
        self.writer = writer
        self.ended = asyncio.Event()
        self.cuts_next_event = False

    def send(self, event: Json) -> None:
        if self.ended.is_set():
            return
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        # In two chunks, as a proxy may forward it.
        self._write(line[: len(line) // 2])
        if self.cuts_next_event:
            self.cut()
        else:
            self._write(line[len(line) // 2 :])

    def cut(self) -> None:
        """Close the connection before the response is complete."""
        self.ended.set()
        self.writer.close()

    def end(self) -> None:
        """End the response; the connection may be used again."""
        if not self.ended.is_set():
            self.ended.set()
            self._send(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        self._send(b"%x\r\n%s\r\n" % (len(data), data))

    def _send(self, data: bytes) -> None:
        if not self.faults.is_hung:
            self.writer.write(data)


class FakeApi:
    """The server; make one with :func:`fake_api`."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self.state = FakeState()
        self.faults = Faults()
        self.accounts = Accounts()
        self.requests: list[Request] = []
        self.url = ""
        self._served = set(resources)
        self._watches: dict[_Watch, Resource] = {}
        self._pages: dict[str, tuple[int, list[Json]]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self.state.listeners.append(self._notify_watches)

    # What a test does to the cluster, by a way that no fault concerns.

    def create(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "d",
        labels: dict[str, str] | None = None,
        **fields: object,
    ) -> Json:
        metadata = {"name": name, "labels": labels or {}}
        return self.state.create(resource, namespace, {"metadata": metadata} | fields)

    def update(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "d",
        labels: dict[str, str] | None = None,
        **fields: object,
    ) -> Json:
        before = self.state.get(resource, (namespace, name))
        if labels is not None:
            before = before | {"metadata": before["metadata"] | {"labels": labels}}
        return self.state.replace(resource, (namespace, name), before | fields)

    def delete(self, resource: Resource, name: str, *, namespace: str = "d") -> None:
        self.state.delete(resource, (namespace, name))

    def serve(self, resource: Resource) -> None:
        """Install a CRD."""
        self._served.add(resource)

    def withdraw(self, resource: Resource) -> None:
        """Remove a CRD."""
        self._served.discard(resource)

    # Faults that happen at once.

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    def cut_watches(self) -> None:
        """Close the connections of all watches."""
        for watch in tuple(self._watches):
            watch.cut()

    def cut_watches_in_next_event(self) -> None:
        """Close the connection of each watch in the middle of its next event."""
        for watch in self._watches:
            watch.cuts_next_event = True

    def end_watches(self) -> None:
        """End all watches as after ``timeoutSeconds``."""
        for watch in tuple(self._watches):
            watch.end()

    def fail_watches(self, refusal: RefusedError) -> None:
        """End all watches with an ERROR event."""
        for watch in tuple(self._watches):
            watch.send({"type": "ERROR", "object": refusal.status})
            watch.end()

    def send_bookmarks(self) -> None:
        """Send a bookmark on all watches."""
        for watch, resource in self._watches.items():
            watch.send(_bookmark(resource, self.state.revision))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds``; it is asked whenever a request comes or a watch opens or closes."""
        while not holds():
            self._news.clear()
            await self._news.wait()

    # The server.

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while not writer.is_closing():
                request = await _read_request(reader)
                self.requests.append(request)
                self._news.set()
                await self._serve(request, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has closed the connection
        except asyncio.CancelledError:
            pass  # the server closes
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def close(self) -> None:
        """Close all connections."""
        tasks = tuple(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            if self.faults.is_hung:
                await asyncio.Event().wait()
            if self.faults.raw is not None:
                writer.write(self.faults.raw)
                return
            self._screen(request)
            if request.path in {each.group_document.path() for each in self._served}:
                _respond(writer, 200, self._group_document(request.path))
                return
            target = self._target(request.path)
            self._authorize(_verb(request, target), target)
            if request.is_watch:
                await self._watch(request, target, reader, writer)
            elif request.method == "GET" and target.name is None:
                if self.faults.lists_wait_for is not None:
                    await self.faults.lists_wait_for.wait()
                _respond(writer, 200, self._list(request, target))
            else:
                _respond(writer, _success(request), self._one(request, target))
        except RefusedError as refusal:
            _respond(writer, refusal.code, refusal.status, retry_after=refusal.retry_after)

    def call(self, request: Request) -> tuple[int, Json]:
        """Answer a request for one object without a socket."""
        self.requests.append(request)
        try:
            self._screen(request)
            target = self._target(request.path)
            self._authorize(_verb(request, target), target)
            return _success(request), self._one(request, target)
        except RefusedError as refusal:
            return refusal.code, refusal.status

    def _screen(self, request: Request) -> None:
        self._authenticate(request)
        if self.faults.refusals:
            raise self.faults.refusals.pop(0)

    def _authenticate(self, request: Request) -> None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.faults.tokens is not None and token not in self.faults.tokens:
            raise RefusedError(401, "Unauthorized", "Unauthorized")

    def _authorize(self, verb: str, target: "_Target") -> None:
        resource = target.resource
        faults = self.faults
        rule = "/".join(filter(None, (resource.plural, target.subresource)))
        if (verb, rule) not in faults.denied and (resource.group not in faults.denied_groups):
            return
        scope = f'in the namespace "{target.namespace}"' if target.namespace else "cluster-wide"
        user = "system:serviceaccount:d:epp"
        raise RefusedError(
            403,
            "Forbidden",
            f'{resource.plural} is forbidden: User "{user}" cannot {verb} resource '
            f'"{rule}" in API group "{resource.group}" {scope}',
        )

    def _target(self, path: str) -> _Target:
        for resource in self._served:
            root = resource.group_document.path() + "/"
            if not path.startswith(root):
                continue
            words = [unquote(each) for each in path.removeprefix(root).split("/")]
            namespace = None
            if words[0] == "namespaces" and len(words) > 2:
                namespace, words = words[1], words[2:]
            if words[0] == resource.plural:
                name, subresource = [*words[1:], None, None][:2]
                if subresource is not None and resource not in self.state.has_status:
                    break
                return _Target(resource, namespace, name, subresource)
        raise RefusedError(404, "NotFound", "the server could not find the requested resource")

    def _group_document(self, path: str) -> Json:
        found = [each for each in self._served if each.group_document.path() == path]
        return {
            "kind": "APIResourceList",
            "groupVersion": found[0].api_version,
            "resources": [
                {"name": f"{each.plural}{part}", "kind": each.kind, "namespaced": each != NODES}
                for each in found
                for part in ("/status", "")
            ],
        }

    def _list(self, request: Request, target: _Target) -> Json:
        token = request.query.get("continue", "")
        if token:
            revision, objects = self._pages.pop(token, (0, []))
            if revision < self.state.compacted or not objects:
                raise RefusedError(410, "Expired", "The provided continue parameter is too old")
        else:
            revision, objects = (
                self.state.revision,
                self.state.select(target.resource, _matches(request, target)),
            )
        limit = int(request.query.get("limit", "0")) or len(objects)
        metadata = {"resourceVersion": str(revision)}
        if objects[limit:]:
            metadata["continue"] = f"page-{len(self.requests)}"
            self._pages[metadata["continue"]] = revision, objects[limit:]
        kind = f"{target.resource.kind}List"
        return {"kind": kind, "metadata": metadata, "items": objects[:limit]}

    def _one(self, request: Request, target: _Target) -> Json:
        """Answer a request for one object."""
        state, resource = self.state, target.resource
        if resource in {TOKEN_REVIEWS, ACCESS_REVIEWS}:
            return self._reviewed(resource, json.loads(request.body))
        if request.method == "POST":
            return state.create(resource, target.namespace or "", json.loads(request.body))
        if request.method == "GET":
            return state.get(resource, target.key)
        if request.method == "DELETE":
            return state.delete(resource, target.key)
        change = state.replace if request.method == "PUT" else state.patch
        is_status = target.subresource == "status"
        return change(resource, target.key, json.loads(request.body), status=is_status)

    def _reviewed(self, resource: Resource, body: Json) -> Json:
        accounts, spec = self.accounts, body["spec"]
        if resource == TOKEN_REVIEWS:
            return body | {"status": accounts.token_status(spec)}
        return body | {"status": accounts.access_status(spec)}

    async def _watch(
        self,
        request: Request,
        target: _Target,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        watch = _Watch(_matches(request, target), writer, self.faults)
        try:
            events = self._first_events(request, target, watch.matches)
        except RefusedError as refusal:
            if refusal.code not in {410, 504} or self.faults.expired_as == "status":
                raise
            events = [{"type": "ERROR", "object": refusal.status}]
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for event in events:
            watch.send(event)
        if events and events[-1]["type"] == "ERROR":
            watch.end()
        self._watches[watch] = target.resource
        self._news.set()
        ended = asyncio.create_task(watch.ended.wait())
        left = asyncio.create_task(reader.read(1))
        try:
            limit = float(request.query.get("timeoutSeconds", "3600"))
            await asyncio.wait({ended, left}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            watch.end()
        finally:
            ended.cancel()
            left.cancel()
            await asyncio.gather(ended, left, return_exceptions=True)
            del self._watches[watch]
            self._news.set()

    def _first_events(self, request: Request, target: _Target, matches: Matches) -> list[Json]:
        query, resource = request.query, target.resource
        with_initial = query.get("sendInitialEvents") == "true"
        if with_initial and self.faults.watch_list == "refused":
            raise RefusedError(
                422,
                "Invalid",
                'ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: '
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate is "
                "enabled",
            )
        if with_initial and query.get("resourceVersionMatch") != "NotOlderThan":
            raise RefusedError(
                422, "Invalid", "resourceVersionMatch: Forbidden: must be NotOlderThan"
            )
        version = query.get("resourceVersion", "")
        if version not in {"", "0"}:
            changes = self.state.since(resource, int(version))
            return [event for each in changes if (event := each.event(matches)) is not None]
        events = [
            {"type": "ADDED", "object": each} for each in self.state.select(resource, matches)
        ]
        if with_initial and self.faults.watch_list == "served":
            bookmark = _bookmark(resource, self.state.revision)
            bookmark["object"]["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
            events.append(bookmark)
        return events

    def _notify_watches(self, change: Change) -> None:
        for watch, resource in tuple(self._watches.items()):
            event = change.event(watch.matches) if resource == change.resource else None
            if event is not None:
                watch.send(event)


def _matches(request: Request, target: _Target) -> Matches:
    query = request.query
    return selection(
        target.namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
    )


def _verb(request: Request, target: _Target) -> str:
    if request.method != "GET":
        return _VERBS[request.method]
    if request.is_watch:
        return "watch"
    return "get" if target.name else "list"


def _success(request: Request) -> int:
    return 201 if request.method == "POST" else 200


def _bookmark(resource: Resource, revision: int) -> Json:
    return {
        "type": "BOOKMARK",
        "object": {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(revision), "creationTimestamp": None},
        },
    }


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    fields = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Request(method, parts.path, dict(parse_qsl(parts.query)), headers, body)


def _respond(
    writer: asyncio.StreamWriter, code: int, body: Json, *, retry_after: int | None = None
) -> None:
    content = json.dumps(body).encode()
    wait = b"" if retry_after is None else b"retry-after: %d\r\n" % retry_after
    writer.write(
        b"HTTP/1.1 %d Status\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s"
        % (code, wait, len(content), content)
    )


@asynccontextmanager
async def fake_api(
    resources: Iterable[Resource] = (CONFIG_MAPS, PODS, NODES, LEASES, EVENTS, GADGETS),
    *,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> AsyncIterator[FakeApi]:
    """Run a fake API server; gadgets have a status subresource, as custom resources can."""
    api = FakeApi(resources)
    api.state.has_status.add(GADGETS)
    server = await asyncio.start_server(api.serve_connection, "127.0.0.1", port, ssl=tls)
    api.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.close()
        await api.close()
        await server.wait_closed()
