"""Our own attacks through request bodies."""

import json
from collections.abc import Iterator
from itertools import cycle

from tools.attacks.attack import Needs, Posts, Server, Setup
from tools.attacks.bodies import (
    compressed_post,
    dense_messages,
    documents,
    gzipped,
    nested,
    zstd,
)
from tools.attacks.listed_clients import fresh_chat, fresh_completion
from tools.attacks.sending import CHAT, COMPLETIONS, head, post

MIB = 1 << 20


class ManyFields(Posts):
    """1 MiB of small fields: unknown ones, biases, metadata, stop words."""

    name = "many-fields"
    rate = 4.0

    def requests(self) -> Iterator[bytes]:
        fields: dict[str, object] = {f"k{number}": number for number in range(70_000)}
        yield from map(
            post,
            documents(
                fields,
                {"logit_bias": fields},
                {"metadata": dict.fromkeys(fields, "v")},
                {"stop": ["s"] * 150_000},
            ),
        )


class DeepUnions(Posts):
    """Thousands of content parts of every kind, some nested, some half valid."""

    name = "deep-unions"
    rate = 4.0

    def requests(self) -> Iterator[bytes]:
        parts = [
            {"type": "text", "text": "x"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "video_url", "video_url": {"url": "http://a/b"}},
            {"type": "none", "content": [{"type": "image_url", "image_url": []}]},
        ]
        many = [part for part, _ in zip(cycle(parts), range(12_000), strict=False)]
        yield from map(
            post,
            documents(
                {"messages": [{"role": "user", "content": many}]},
                {"messages": [{"role": "user", "content": [part]} for part in many]},
                {"messages": [{"role": "tool", "content": parts[1], "tool_calls": many}] * 3},
            ),
        )
        deep = nested(300, '{"type":"text","content":[', "]}")
        yield post(b'{"model":"tiny","messages":[{"role":"user","content":[' + deep + b"]}]}")
        yield post(b'{"model":"tiny","messages":' + nested(200_000, "[", "]") + b"}")


class ManyChoices(Posts):
    """A billion choices, and thousands of prompts as texts and as tokens."""

    name = "many-choices"
    rate = 4.0

    def requests(self) -> Iterator[bytes]:
        common: dict[str, object] = {"model": "tiny", "max_tokens": 1}
        asked: tuple[dict[str, object], ...] = (
            {"prompt": "x", "n": 10**9, "best_of": 10**9, "logprobs": 10**9},
            {"prompt": ["x"] * 150_000, "n": 128},
            {"prompt": list(range(150_000))},
            {"prompt": [[number] for number in range(100_000)]},
            {"prompt": [[]] * 300_000},
        )
        for fields in asked:
            yield post(json.dumps(common | fields).encode(), COMPLETIONS)


class LongNumbers(Posts):
    """Numbers that are slow to read, such as integers with a million digits (quadratic time)."""

    name = "long-numbers"
    rate = 4.0

    def requests(self) -> Iterator[bytes]:
        for number in (b"9" * MIB, b"0." + b"1" * MIB, b"1e" + b"9" * MIB, b"-" + b"9" * 4_000):
            yield post(b'{"model":"tiny","prompt":"x","max_tokens":' + number + b"}", COMPLETIONS)
            yield post(b'{"model":"tiny","prompt":[' + number[: MIB // 2] + b"]}", COMPLETIONS)
        yield post(
            b'{"model":"tiny","prompt":[' + b"9" * 4_000 + (b"," + b"9" * 4_000) * 200 + b"]}"
        )


class ToolSchemas(Posts):
    """Thousands of tools, with schemas that are wide, deep, or refer to themselves.

    Also regular expressions and grammars.
    """

    name = "tool-schemas"
    rate = 4.0

    def requests(self) -> Iterator[bytes]:
        wide = {f"p{n}": {"type": "string", "pattern": "(a+)+$"} for n in range(12_000)}
        function = {"name": "f", "parameters": {"type": "object", "properties": wide}}
        itself = {"name": "g", "parameters": {"$ref": "#", "allOf": [{"$ref": "#"}] * 200}}
        yield from map(
            post,
            documents(
                {"tools": [{"type": "function", "function": function}]},
                {"tools": [{"type": "function", "function": itself}] * 150},
                {"guided_regex": "(a*)*" * 100_000, "guided_grammar": "x" * 300_000},
                {"tool_choice": {"type": "function", "function": {"name": "f" * 500_000}}},
            ),
        )
        schema = nested(400, '{"properties":{"a":', "}}", "{}")
        yield post(b'{"model":"tiny","messages":[],"tools":[{"function":' + schema + b"}]}")


class OddUnicode(Posts):
    """Lone surrogates, overlong UTF-8, a million combining marks, NUL, bidirectional marks."""

    name = "odd-unicode"
    rate = 4.0

    def requests(self) -> Iterator[bytes]:
        for text in (
            b"\\ud800" * 100_000,
            b"\xc0\xaf" * 100_000,
            "\u0301".encode() * 500_000,
            b"\\u0000" * 100_000,
            "\u202e\u2066\U0001f468\u200d".encode() * 50_000,
            b"\xff\xfe" + b"a\x00" * 100_000,
        ):
            yield post(b'{"model":"' + text[:600] + b'","prompt":"' + text + b'"}', COMPLETIONS)
            yield post(b'{"model":"tiny","' + text[:60_000] + b'":1,"prompt":"x"}', COMPLETIONS)
        yield post(b"\xef\xbb\xbf" + b'{"model":"tiny","prompt":"x"}', COMPLETIONS)


class EscapedPictures(Posts):
    """15 MiB of escapes or blanks in one picture, with a model name to rewrite.

    Every step read them again: 60 MiB blocked the loop for 1.7 s. They compress better than the
    limit on the compression ratio allows, so a skippable frame follows.
    """

    name = "escaped-pictures"
    rate = 2.0

    def requests(self) -> Iterator[bytes]:
        start = b'{"model":"tiny","messages":[{"role":"user","content":['
        start += b'{"type":"image_url","image_url":{"url":'
        data = b'"data:image/png;base64,'
        end = b'A"}}]}],"z":"\\ud83d"}'
        size = 15 * MIB
        padding = b"\x50\x2a\x4d\x18" + (size // 90).to_bytes(4, "little") + bytes(size // 90)
        headers = {"content-encoding": "zstd", "x-llm-d-model-name-rewrite": "other"}
        for body in (
            start + data + b"\\/" * (size // 2) + b'A"}}]}]}',
            start + data + b"\\n" * (size // 2) + end,
            start + b" " * size + data + end,
            start + data + b"A" * size + end,
            start + data + b"A" * size + b'A"}}]}]}',
        ):
            yield post(zstd(body) + padding, CHAT, headers)


class GzipMembers(Posts):
    """Thousands of empty members and frames, each of which may cost a call."""

    name = "gzip-members"
    rate = 4.0

    def requests(self) -> Iterator[bytes]:
        body = b'{"model":"tiny","max_tokens":1,"prompt":"x"}'
        skippable = b"\x50\x2a\x4d\x18\x00\x00\x00\x00"
        for coding, content in (
            ("gzip", gzipped(b"") * 50_000 + gzipped(body)),
            ("gzip", gzipped(body) + gzipped(b"") * 50_000),
            ("zstd", zstd(b"") * 100_000 + zstd(body)),
            ("zstd", skippable * 130_000 + zstd(body)),
            ("zstd", zstd(body)[:-1]),
            ("gzip, zstd, gzip", gzipped(zstd(gzipped(body)))),
        ):
            yield post(content, COMPLETIONS, {"content-encoding": coding})


class OtherApis(Posts):
    """Such bodies for the other APIs: messages, responses, embeddings, conversations, gRPC."""

    name = "other-apis"
    rate = 4.0

    def requests(self) -> Iterator[bytes]:
        dense = dense_messages(MIB)
        blocks = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 12_000
        anthropic = {"model": "tiny", "max_tokens": 1, "system": blocks, "messages": []}
        responses = {"model": "tiny", "input": [{"type": "message", "content": blocks}]}
        yield post(dense, "/v1/messages")
        yield post(json.dumps(anthropic).encode(), "/v1/messages")
        yield post(json.dumps(anthropic).encode(), "/v1/messages/count_tokens")
        yield post(json.dumps(responses).encode(), "/v1/responses")
        yield post(
            json.dumps({"model": "tiny", "input": ["x"] * 150_000}).encode(), "/v1/responses"
        )
        yield post(
            json.dumps({"model": "tiny", "input": [[1]] * 90_000}).encode(), "/v1/embeddings"
        )
        yield post(dense, "/v1/conversations")
        yield compressed_post(dense_messages(20 * MIB), path="/v1/messages")
        yield post(b"\x00" * MIB, "/vllm.grpc.engine.VllmEngine/Generate")


class FreshPrompts(Posts):
    """Prompts of 500 KB without a common prefix, to fill the prefix indexes."""

    name = "fresh-prompts"
    rate = 4.0

    def requests(self) -> Iterator[bytes]:
        for number in range(40):
            text = f"{number} {number * 7919} ".encode() * 50_000
            yield post(
                b'{"model":"tiny","max_tokens":1,"prompt":"%b"}' % text[:500_000], COMPLETIONS
            )
        for number in range(10):
            message = b'{"role":"user","content":"%d"}' % number
            many = b",".join([message] * 15_000)
            yield post(b'{"model":"tiny","max_tokens":1,"messages":[' + many + b"]}")


class HeaderStorm(Posts):
    """Ninety headers of 560 bytes, and the endpoint picker's own headers with invalid values.

    They name objectives, fairness ids, time limits, sessions and subsets of endpoints.
    """

    name = "header-storm"
    needs = Needs(setups=tuple(Setup))
    rate = 20.0

    def requests(self) -> Iterator[bytes]:
        body = b'{"model":"tiny","max_tokens":1,"prompt":"x","priority":-9223372036854775808}'
        storm = {f"x-h-{number}": "v" * 560 for number in range(90)}
        yield post(body, COMPLETIONS, storm)
        own = (
            "x-llm-d-inference-objective",
            "x-llm-d-inference-fairness-id",
            "x-llm-d-request-ttl-ms",
            "x-llm-d-slo-ttft-ms",
            "x-session-id",
            "x-session-token",
            "x-gateway-destination-endpoint-subset",
            "x-llm-d-video-resolution",
        )
        for value in ("9" * 4_000, "-1", "1e999", "\u0661\u0662", "a," * 2_000, "x" * 6_000):
            yield post(body, COMPLETIONS, dict.fromkeys(own, value))


class Priorities(Posts):
    """Requests with 2000 different priorities, set in every way that a request can."""

    name = "priorities"
    needs = Needs(setups=tuple(Setup))
    rate = 20.0

    def requests(self) -> Iterator[bytes]:
        for number in range(-1_000, 1_000):
            body = b'{"model":"tiny","max_tokens":1,"prompt":"x","priority":%d}' % number
            headers = {"x-llm-d-inference-objective": str(number), "x-priority": str(number)}
            yield post(body, COMPLETIONS, headers)


class GiantResponses(Posts):
    """A model server answers with a line of 64 MB, many events, or invalid usage."""

    name = "giant-responses"
    needs = Needs(servers=(Server.TALKATIVE,))
    rate = 2.0
    at_once = 4

    def requests(self) -> Iterator[bytes]:
        for _ in range(40):
            for kind in ("line", "events", "usage", "headers"):
                yield post(fresh_completion(), COMPLETIONS, {"x-response": kind})
                yield post(fresh_chat(), CHAT, {"x-response": kind})


class TinyChunks(Posts):
    """Bodies of 20 KB in chunks of one byte, then unexpected trailers."""

    name = "tiny-chunks"
    rate = 4.0
    at_once = 20

    def requests(self) -> Iterator[bytes]:
        body = b'{"model":"tiny","max_tokens":1,"prompt":"%b"}' % (b"x" * 20_000)
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        trailers = b"".join(b"x-t-%d: %b\r\n" % (n, b"v" * 400) for n in range(50))
        yield head(-1, COMPLETIONS, {"te": "trailers"}) + chunks + b"0\r\n\r\n"
        yield head(-1, COMPLETIONS, {"te": "trailers"}) + chunks + b"0\r\n" + trailers + b"\r\n"
