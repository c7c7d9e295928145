"""An API server with pods as large as those of a real cluster, which changes them on demand.

It answers only the requests of a reflector: a watch list, or a list in pages and a watch. Its
objects are encoded in advance, so it costs its process little.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

LABELS: Final = {"app": "vllm"}
CHANGED_AT: Final = "changed-at"
"""Label with the time of the last change in nanoseconds of the monotonic clock."""

Document = dict[str, Any]

_ENVIRONMENT: Final = [
    {"name": f"VLLM_SETTING_{number}", "value": "value of a setting, as charts write it"}
    for number in range(80)
]
_MANAGED_FIELDS: Final[Document] = {
    f'k:{{"name":"VLLM_SETTING_{number}"}}': {".": {}, "f:name": {}, "f:value": {}}
    for number in range(80)
}


def pod(number: int, version: int, *, ip: str = "", changed_at: int = 0) -> Document:
    """Return a ready pod of some 20 KB, with an address of its own unless one is given."""
    condition = {"lastProbeTime": None, "lastTransitionTime": "2026-11-24T00:00:00Z"}
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    ip = ip or f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"vllm-6d5f9c7b48-{number:05}",
            "namespace": "default",
            "uid": f"7f1e3d5c-0000-4000-8000-{number:012}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-24T00:00:00Z",
            "labels": {
                **LABELS,
                "app.kubernetes.io/name": "vllm",
                "llm-d.ai/model": "llama-3-70b",
                "llm-d.ai/role": "decode",
                "pod-template-hash": "6d5f9c7b48",
                CHANGED_AT: str(changed_at),
            },
            "annotations": {"prometheus.io/port": "8000", "prometheus.io/scrape": "true"},
            "managedFields": [
                {
                    "manager": manager,
                    "operation": "Update",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {"f:containers": {"f:env": _MANAGED_FIELDS}}},
                }
                for manager in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "nodeName": f"node-{number // 8}",
            "containers": [
                {"name": "server", "image": "vllm/vllm-openai", "env": _ENVIRONMENT},
                {"name": "proxy", "image": "envoyproxy/envoy", "args": ["--log-level", "info"] * 9},
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "hostIP": f"192.168.0.{number // 8 % 256}",
            "conditions": [condition | {"type": each, "status": "True"} for each in conditions],
        },
    }


def kubeconfig(url: str) -> str:
    """Return a configuration file for the API server at ``url``."""
    return (
        f"current-context: c\nclusters: [{{name: k, cluster: {{server: '{url}'}}}}]\n"
        "users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
    )


class PodApi:
    """The server; make one with :func:`pod_api`."""

    def __init__(self, pods: int, *, has_watch_list: bool, ips: Sequence[str]) -> None:
        self.url = ""
        self.bytes_per_pod = 0
        """Mean length of a pod."""
        self._has_watch_list = has_watch_list
        self._version = 1000
        self._ips = ips or [""] * pods
        self._pods = [
            json.dumps(pod(number, 1000, ip=ip)).encode() for number, ip in enumerate(self._ips)
        ]
        self.bytes_per_pod = sum(map(len, self._pods)) // pods
        self._watches: list[asyncio.StreamWriter] = []

    @property
    def watches(self) -> int:
        """Number of open watches."""
        return len(self._watches)

    def change(self, number: int) -> None:
        """Change a label of a pod; tell the watches."""
        assert self._watches  # the caller waits for them
        self._version += 1
        document = pod(number, self._version, ip=self._ips[number], changed_at=time.monotonic_ns())
        encoded = json.dumps(document).encode()
        for watch in self._watches:
            self._send(watch, b"MODIFIED", encoded)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                query = dict(parse_qsl(urlsplit(head.split(b" ", 2)[1].decode()).query))
                if "watch" not in query:
                    self._respond(writer, "200 OK", self._page(query))
                elif "sendInitialEvents" in query and not self._has_watch_list:
                    self._respond(writer, "422 Unprocessable Entity", b"{}")
                else:
                    self._open_watch(writer, has_initial="sendInitialEvents" in query)
        except (asyncio.IncompleteReadError, ConnectionError):
            if writer in self._watches:
                self._watches.remove(writer)
            writer.close()

    def _page(self, query: Mapping[str, str]) -> bytes:
        begin, limit = int(query.get("continue", 0)), int(query["limit"])
        metadata = {"resourceVersion": str(self._version)}
        if begin + limit < len(self._pods):
            metadata["continue"] = str(begin + limit)
        items = b",".join(self._pods[begin : begin + limit])
        return b'{"metadata":%s,"items":[%s]}' % (json.dumps(metadata).encode(), items)

    def _open_watch(self, writer: asyncio.StreamWriter, *, has_initial: bool) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        self._watches.append(writer)
        if has_initial:
            for each in self._pods:
                self._send(writer, b"ADDED", each)
            metadata = {
                "resourceVersion": str(self._version),
                "annotations": {"k8s.io/initial-events-end": "true"},
            }
            self._send(writer, b"BOOKMARK", json.dumps({"metadata": metadata}).encode())

    @staticmethod
    def _respond(writer: asyncio.StreamWriter, status: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    @staticmethod
    def _send(writer: asyncio.StreamWriter, kind: bytes, document: bytes) -> None:
        event = b'{"type":"%s","object":%s}\n' % (kind, document)
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))


@asynccontextmanager
async def pod_api(
    pods: int, *, has_watch_list: bool = True, ips: Sequence[str] = ()
) -> AsyncIterator[PodApi]:
    """Run an API server on 127.0.0.1.

    Args:
        pods: Number of its pods.
        has_watch_list: Whether it sends the initial state in a watch.
        ips: Addresses of the pods; empty for some that nobody has.
    """
    api = PodApi(pods, has_watch_list=has_watch_list, ips=ips)
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0)
    api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.close()
