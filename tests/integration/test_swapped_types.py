"""Plugin types of the reference in a real process: ``epp serve`` with a sample, over gRPC."""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf import json_format

from epp.ext_proc import METHOD
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import DESTINATION, FULL_DUPLEX, http_headers

pytestmark = pytest.mark.integration

SAMPLE = Path(__file__).parents[2] / "deploy" / "config" / "multimodal.yaml"
COST = "x-gateway-inference-request-cost"
USAGE = b'{"usage": {"prompt_tokens": 3, "completion_tokens": 10}}'


class Process:
    """A running endpoint picker."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.endpoints_file = folder / "endpoints.yaml"
        self.ports = ports
        self._channel = grpc.insecure_channel(f"127.0.0.1:{ports['grpc']}")

    def talk(self, *messages: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        """Have a stream answered from beginning to end."""
        call = self._channel.stream_stream(
            METHOD,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        replies: Iterable[pb.ProcessingResponse] = call(iter(messages), timeout=10)
        return list(replies)

    def metrics(self) -> str:
        page = httpx.get(f"http://127.0.0.1:{self.ports['metrics']}/metrics", trust_env=False)
        return page.text


def write_endpoints(folder: Path, *names: str) -> None:
    entries = [
        {"name": name, "address": f"127.0.0.{number}", "port": 9}
        for number, name in enumerate(names, 1)
    ]
    partial = folder / "endpoints.partial"
    partial.write_text(json.dumps({"endpoints": entries}))
    partial.replace(folder / "endpoints.yaml")


@contextmanager
def serving(folder: Path) -> Iterator[Process]:
    ready, log = folder / "ready", folder / "log"
    command = [
        *(sys.executable, "-m", "epp", "serve", "--host", "127.0.0.1", "--secure-serving=false"),
        *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
        *("--config-file", str(SAMPLE), "--endpoints-file", str(folder / "endpoints.yaml")),
        *("--ready-file", str(ready)),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        yield Process(folder, json.loads(ready.read_text()))
    finally:
        process.terminate()
        process.wait(timeout=20)


def chat(*pictures: str) -> list[pb.ProcessingRequest]:
    """Return the messages of a chat with pictures, and of its response."""
    parts = [
        {"type": "image_url", "image_url": {"url": f"https://example.com/{each}.png"}}
        for each in pictures
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    post = {":method": "POST", ":path": "/v1/chat/completions"}
    first = pb.ProcessingRequest(request_headers=http_headers(post, False))
    first.protocol_config.request_body_mode, first.protocol_config.response_body_mode = FULL_DUPLEX
    head = {":status": "200", "content-type": "application/json"}
    return [
        first,
        pb.ProcessingRequest(
            request_body=pb.HttpBody(body=json.dumps(body).encode(), end_of_stream=True)
        ),
        pb.ProcessingRequest(response_headers=http_headers(head, False)),
        pb.ProcessingRequest(response_body=pb.HttpBody(body=USAGE, end_of_stream=True)),
    ]


def facts(reply: pb.ProcessingResponse) -> dict[str, Any]:
    metadata: dict[str, Any] = json_format.MessageToDict(reply.dynamic_metadata)["envoy.lb"]
    return metadata


def destination(replies: list[pb.ProcessingResponse]) -> str:
    return str(facts(replies[0])[DESTINATION])


def test_the_multimodal_sample_in_a_process_of_its_own(tmp_path: Path) -> None:
    write_endpoints(tmp_path, *"abcdefgh")
    with serving(tmp_path) as epp:
        replies = epp.talk(*chat("x"))
        first = destination(replies)
        # 3 + 4 * 10
        assert facts(replies[-1]) == {COST: 43.0}
        assert {destination(epp.talk(*chat("x"))) for _ in range(10)} == {first}
        page = epp.metrics()
        assert 'llm_d_epp_request_attribute_reports_total{outcome="reported"' in page
        hits = [line for line in page.splitlines() if "encoder_cache_hits_total{" in line]
        assert hits
        assert hits[0].endswith(" 10.0")
        assert entries(page) == 1
        # The endpoint leaves, and what it held is forgotten with it.
        gone = "abcdefgh"[int(first.partition(":")[0].rpartition(".")[2]) - 1]
        write_endpoints(tmp_path, *[name for name in "abcdefgh" if name != gone])
        while entries(epp.metrics()):
            time.sleep(0.02)


def entries(page: str) -> float:
    (line,) = (
        line for line in page.splitlines() if line.startswith("llm_d_epp_encoder_cache_entries{")
    )
    return float(line.rpartition(" ")[2])
