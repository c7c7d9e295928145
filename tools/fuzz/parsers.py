"""Fuzz target: every parser of bytes from clients and model servers.

The first byte chooses the meaning of the others: a request or a response, raw or built from the
parts that parsers look for, a picture, or headers that describe a video. The results are compared
with those of a reader of the whole document, and those of one piece with those of many.
"""

import random
from collections.abc import Callable, Iterator

from tools.fuzz.pictures import film, picture
from tools.fuzz.request_bodies import built_request, raw_request
from tools.fuzz.responses import built_response, raw_response
from tools.fuzz.tape import Tape

KINDS: tuple[Callable[[Tape], None], ...] = (
    raw_request,
    built_request,
    raw_response,
    built_response,
    built_request,
    built_response,
    picture,
    film,
)
WORDS = (
    *(b'"model"', b'"prompt"', b'"messages"', b'"input"', b'"usage":{', b'"prompt_tokens":1'),
    *(b'"completion_tokens"', b'"meta_info":{', b'"finish_reason":"stop"', b'"served"', b"data: "),
    *(b'"image_url"', b'"type"', b'"choices":[', b'"response":{', b"\n\n", b"\\u0065", b"null"),
    *(b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x00\x00\x00\x00\x05", b"\xff\xd8\xff", b"\xff\xc0"),
)
"""Dictionary of the fuzzer: words that it would hardly find by chance."""


def one_input(data: bytes) -> None:
    """Run one input; any exception is a finding."""
    tape = Tape(data)
    tape.choice(KINDS)(tape)


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """Return random inputs."""
    chooser = random.Random(seed)
    for _ in range(count):
        yield chooser.randbytes(chooser.choice((20, 60, 200, 600)))
