"""The reference's worked cases over the wire: gRPC client, real EPP, scraped servers.

The servers are pages that the test writes; nothing is sent to them but scrapes. Each case is what
Envoy would see: the destination, the headers set and removed.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from epp.app import App
from epp.ext_proc import METHOD
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.gateway import until

from .scraped import Server, scraping

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
FIXTURE = HEAD + (
    "plugins: [{type: queue-scorer}, {type: kv-cache-utilization-scorer},"
    " {type: prefix-cache-scorer}, {type: lora-affinity-scorer}]\n"
)
DESTINATION = "x-gateway-destination-endpoint"
LONG = "You answer questions about the city of Ulm, its minster and its sparrow. " * 40
"""2960 characters: 740 tokens, 12 blocks of 64."""


@dataclass
class Decision:
    """What Envoy is told of one request."""

    status: int
    """Of the response in the model server's place; 0 if the request is routed."""
    server: str
    """Name of the server it goes to; the raw destination if that is no server's."""
    headers: Mapping[str, str]
    """Set besides the destination."""
    removed: Sequence[str]


@dataclass
class Epp:
    """A running EPP and its servers by name."""

    app: App
    servers: Mapping[str, Server]
    channel: grpc.aio.Channel

    def name_of(self, address: str) -> str:
        """Return the name of the server at an address."""
        names = {f"127.0.0.1:{each.port}": name for name, each in self.servers.items()}
        return names.get(address, address)

    async def post(
        self,
        prompt: str = "Hello",
        *,
        model: str = "tiny",
        headers: Mapping[str, str] | None = None,
        chunks: int = 1,
    ) -> Decision:
        """Send a request whose reply ends at once."""
        body = json.dumps({"model": model, "prompt": prompt}).encode()
        call = self.channel.stream_stream(
            METHOD,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )()
        all_headers = {":path": "/v1/completions", ":method": "POST", **(headers or {})}
        await call.write(pb.ProcessingRequest(request_headers=http_headers(all_headers)))
        size = -(-len(body) // chunks)
        for start in range(0, len(body), size):
            piece = pb.HttpBody(
                body=body[start : start + size], end_of_stream=start + size >= len(body)
            )
            await call.write(pb.ProcessingRequest(request_body=piece))
        reply = await call.read()
        assert isinstance(reply, pb.ProcessingResponse)
        decision = self._decision(reply)
        if not decision.status:
            await call.write(
                pb.ProcessingRequest(response_headers=http_headers({":status": "200"}, end=True))
            )
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
        return decision

    def _decision(self, reply: pb.ProcessingResponse) -> Decision:
        if reply.HasField("immediate_response"):
            return Decision(reply.immediate_response.status.code, "", {}, [])
        mutation = reply.request_headers.response.header_mutation
        headers = {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}
        headers.pop("x-request-id")
        destination = headers.pop(DESTINATION)
        field = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION]
        assert field.string_value == destination
        return Decision(0, self.name_of(destination), headers, list(mutation.remove_headers))

    async def change(self, name: str, **fields: Any) -> None:
        """Change a server's page and wait until that has been scraped."""
        server = self.servers[name]
        for key, value in fields.items():
            setattr(server, key, value)
        (endpoint,) = (e for e in self.app.pool.store.snapshot if e.name == f"default/{name}")
        await until(
            lambda: (
                endpoint.metrics.waiting_requests == server.waiting
                and endpoint.metrics.kv_cache_usage == server.kv_cache_usage
                and ",".join(sorted(endpoint.metrics.active_adapters)) == server.active
            )
        )


def http_headers(headers: Mapping[str, str], *, end: bool = False) -> pb.HttpHeaders:
    pairs = [pb.HeaderValue(key=k, raw_value=v.encode()) for k, v in headers.items()]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=pairs), end_of_stream=end)


@asynccontextmanager
async def running(
    tmp_path: Path, config: str, servers: Mapping[str, Server], objects: tuple[Path, ...] = ()
) -> AsyncIterator[Epp]:
    """Run an EPP over ``servers``, and a client of it."""
    async with (
        scraping(tmp_path, config, servers, objects=objects) as (app, ports),
        grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel,
    ):
        yield Epp(app, servers, channel)


LORA = "sql-lora-1fdg2"
REWRITE = "x-llm-d-model-name-rewrite"


@pytest.mark.parametrize(
    ("servers", "rewrite", "wanted"),
    [
        # queue (max-q)/(max-min) .7/1/0, KV 1-u .8/.9/.8, LoRA equal: b.
        pytest.param(
            {"a": Server(3, 0.2), "b": Server(0, 0.1), "c": Server(10, 0.2)},
            "my-model-12345",
            "b",
            id="lowest queue and KV cache",
        ),
        # queue 1/1/0, KV .8/.9/.8, LoRA .8 (room)/1 (active)/.8: b.
        pytest.param(
            {
                "a": Server(0, 0.2, "bar,foo", 3),
                "b": Server(0, 0.1, f"foo,{LORA}", 3),
                "c": Server(10, 0.2, "bar,foo", 3),
            },
            LORA,
            "b",
            id="adapter active, low queue",
        ),
        # queue 1/1/1, KV .8/.6/.7, LoRA 0 (full)/1/.8: 1.8, 2.6, 2.5: b.
        pytest.param(
            {
                "a": Server(10, 0.2, "bar,foo", 2),
                "b": Server(10, 0.4, f"foo,{LORA}", 2),
                "c": Server(10, 0.3, "foo", 2),
            },
            LORA,
            "b",
            id="adapter active in spite of a fuller KV cache",
        ),
        # The same without the holder: 1.8, 2.5: where a slot is free.
        pytest.param(
            {"a": Server(10, 0.2, "bar,foo", 2), "c": Server(10, 0.3, "foo", 2)},
            LORA,
            "c",
            id="a free slot where nobody holds the adapter",
        ),
        # queue .4/1/0, KV .8/.15/.1, LoRA 1/.8/.8: 2.2, 1.95, .9: a, though all are loaded.
        pytest.param(
            {
                "a": Server(6, 0.2, f"bar,foo,{LORA}", 4),
                "b": Server(0, 0.85, "foo", 4),
                "c": Server(10, 0.9, "foo", 4),
            },
            LORA,
            "a",
            id="nothing is shed by default",
        ),
    ],
)
async def test_weights_combine_as_documented(
    tmp_path: Path, servers: dict[str, Server], rewrite: str, wanted: str
) -> None:
    async with running(tmp_path, FIXTURE, servers) as epp:
        decision = await epp.post(model="my-model", headers={REWRITE: rewrite}, chunks=2)
    assert (decision.status, decision.server) == (0, wanted)


async def test_smallest_queue_wins_and_changes_are_followed(tmp_path: Path) -> None:
    servers = {"a": Server(5), "b": Server(1), "c": Server(3)}
    config = HEAD + "plugins: [{type: queue-scorer}]\n"
    async with running(tmp_path, config, servers) as epp:
        assert (await epp.post()).server == "b"
        await epp.change("b", waiting=9)
        assert (await epp.post()).server == "c"


async def test_a_long_prompt_goes_back_to_its_holder_and_leaves_it_when_that_is_full(
    tmp_path: Path,
) -> None:
    servers = {name: Server() for name in "abcd"}
    async with running(tmp_path, FIXTURE, servers) as epp:
        holder = (await epp.post(LONG)).server
        again = [(await epp.post(f"{LONG} turn {turn}")).server for turn in range(8)]
        assert again == [holder] * 8
        # queue 0/1, KV 0/1, prefix 12/13 against 0, LoRA equal: 0.92 against 2.
        await epp.change(holder, waiting=20, kv_cache_usage=1.0)
        assert (await epp.post(f"{LONG} turn 9")).server != holder


PD = HEAD + (
    "plugins:\n"
    "- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}\n"
    "- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 200}}\n"
    "- type: prefill-filter\n- type: decode-filter\n- type: prefix-cache-scorer\n"
    "- type: queue-scorer\n"
    "schedulingProfiles:\n"
    "- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-scorer,"
    " weight: 2}, {pluginRef: queue-scorer}]}\n"
    "- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer,"
    " weight: 2}, {pluginRef: queue-scorer}]}\n"
)


def roles() -> dict[str, Server]:
    return {
        name: Server(labels={"llm-d.ai/role": name.rstrip("12")})
        for name in ("prefill1", "prefill2", "decode1", "decode2")
    }


async def test_an_uncached_prompt_goes_through_prefill_and_a_cached_or_short_one_does_not(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, PD, roles()) as epp:
        first = await epp.post(LONG)
        assert first.server.startswith("decode")
        (prefiller,) = first.headers.values()
        assert list(first.headers) == ["x-prefiller-host-port"]
        assert epp.name_of(prefiller).startswith("prefill")

        again = await epp.post(LONG)
        assert (again.server, again.headers, again.removed) == (first.server, {}, [])

        short = await epp.post("Hello")
        assert (short.headers, short.removed) == ({}, [])


async def test_a_prefiller_that_the_client_names_is_taken_off_or_replaced(tmp_path: Path) -> None:
    forged = {
        "x-prefiller-host-port": "169.254.169.254:80",
        "x-encoder-hosts-ports": "169.254.169.254:80",
    }
    async with running(tmp_path, PD, roles()) as epp:
        short = await epp.post("Hello", headers=forged)
        assert (short.headers, sorted(short.removed)) == ({}, sorted(forged))
        long = await epp.post(LONG, headers=forged)
        assert epp.name_of(long.headers["x-prefiller-host-port"]).startswith("prefill")
        assert long.removed == ["x-encoder-hosts-ports"]


async def test_ranks_are_told_apart_by_port(tmp_path: Path) -> None:
    config = HEAD + (
        "plugins: [{type: data-parallel-profile-handler, parameters: {primaryPort: 8123}},"
        " {type: queue-scorer}]\n"
    )
    servers = {"rank-0": Server(2), "rank-1": Server(0), "rank-2": Server(1)}
    forged = {"x-data-parallel-host-port": "169.254.169.254:80"}
    async with running(tmp_path, config, servers) as epp:
        decision = await epp.post(headers=forged)
        assert decision.server == "127.0.0.1:8123"
        assert decision.headers == {
            "x-data-parallel-host-port": f"127.0.0.1:{servers['rank-1'].port}"
        }
        await epp.change("rank-1", waiting=5)
        decision = await epp.post()
        rank = decision.headers["x-data-parallel-host-port"]
        assert rank == f"127.0.0.1:{servers['rank-2'].port}"


async def test_sheddable_requests_are_refused_only_when_the_pool_is_full(tmp_path: Path) -> None:
    objects = tmp_path / "objective.yaml"
    objects.write_text(
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: batch}\n"
        "spec: {priority: -1, poolRef: {name: default}}\n"
    )
    batch = {"x-llm-d-inference-objective": "batch"}
    config = HEAD + "plugins: [{type: queue-scorer}]\n"
    servers = {"a": Server(9), "b": Server(0)}
    async with running(tmp_path, config, servers, objects=(objects,)) as epp:
        # The mean of 9/5 and 0/5 is 0.9; with 5/5 it is 1.4.
        assert (await epp.post(headers=batch)).server == "b"
        await epp.change("b", waiting=5)
        assert (await epp.post(headers=batch)).status == 429
        assert (await epp.post()).server == "b"


async def test_fallbacks_follow_the_best_in_one_list(tmp_path: Path) -> None:
    config = HEAD + (
        "plugins: [{type: queue-scorer}, {type: max-score-picker, parameters:"
        " {maxNumOfEndpoints: 2}}]\n"
    )
    servers = {"a": Server(2), "b": Server(0), "c": Server(1)}
    async with running(tmp_path, config, servers) as epp:
        decision = await epp.post()
    assert [epp.name_of(each) for each in decision.server.split(",")] == ["b", "c"]
