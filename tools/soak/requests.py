"""Chunks of prebuilt requests in which only the stream ids are set."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import Struct

from epp.lab.envoy import Mode
from tools.soak import frames

_ID = Struct(">I").pack_into

STREAMS = 64
"""Requests in a chunk, all open at once."""
LARGE_BODY_BYTES = 300_000
ABORTED_SHARE = 0.09
"""Share of aborted requests: 180 000 of the two million of a soak."""
HALF_CLOSED_SHARE = 0.01


@dataclass(slots=True)
class Chunk:
    """Requests with interleaved frames, and their expected results."""

    data: bytearray = field(default_factory=bytearray)
    resets: bytearray = field(default_factory=bytearray)
    """RST_STREAM for each, which Envoy sends after the response."""
    answered: int = 0
    """Requests that end with a status."""
    aborted: int = 0
    content_bytes: int = 0
    """DATA sent, which counts against the connection's window."""
    _places: list[tuple[int, int]] = field(default_factory=list)
    _reset_places: list[tuple[int, int]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self.answered + self.aborted

    def number(self, first: int) -> None:
        """Set the stream ids, from ``first`` on."""
        data, resets = self.data, self.resets
        for at, offset in self._places:
            _ID(data, at, first + offset)
        for at, offset in self._reset_places:
            _ID(resets, at, first + offset)

    def add(self, frame: bytes, offset: int) -> None:
        """Append frames of the stream ``offset`` above the first."""
        at = 0
        while at < len(frame):
            self._places.append((len(self.data) + at + 5, offset))
            size = int.from_bytes(frame[at : at + 3], "big")
            if frame[at + 3] == frames.DATA:
                self.content_bytes += size
            at += 9 + size
        self.data += frame

    def add_reset(self, offset: int) -> None:
        """Append the reset that Envoy sends when the request has ended."""
        self._reset_places.append((len(self.resets) + 5, offset))
        self.resets += frames.reset(0, frames.INTERNAL_ERROR)


def make_chunk(
    chooser: random.Random, path: Callable[[Mode], str], prompts: Mapping[int, bytes]
) -> Chunk:
    """Return a mixture of requests: all modes, some aborted, a few large, a few empty."""
    chunk = Chunk()
    streams = []
    for index in range(STREAMS):
        mode = chooser.choice(tuple(Mode))
        luck = chooser.random()
        body = prompts[chooser.randrange(len(prompts))]
        if luck < 0.001:
            body = frames.completion("large " * (LARGE_BODY_BYTES // 6))
        steps = _steps(mode, path(mode), body, chooser)
        if luck > 1 - ABORTED_SHARE:  # before any message, between messages, or before the end
            steps = [*steps[: chooser.randrange(1, len(steps))], frames.reset(0)]
            chunk.aborted += 1
        else:
            chunk.answered += 1
            if luck > 1 - ABORTED_SHARE - HALF_CLOSED_SHARE:  # without a message
                steps = [frames.call(0, path(mode), end=True)]
            chunk.add_reset(2 * index)
        streams.append((2 * index, steps))
    # Streams open in the order of their ids; their further steps are in any order.
    for offset, steps in streams:
        chunk.add(steps.pop(0), offset)
    while streams:
        offset, steps = chooser.choice(streams)
        if steps:
            chunk.add(steps.pop(0), offset)
        else:
            streams.remove((offset, steps))
    return chunk


def make_lean_chunk(count: int, path: str, body: bytes) -> Chunk:
    """Return ``count`` requests in lean mode, all alike, each answered and then reset."""
    chunk = Chunk(answered=count)
    content = [frames.message(each) for each in frames.request_messages(Mode.LEAN, body)]
    for index in range(count):
        chunk.add(frames.call(0, path), 2 * index)
        for each in content[:-1]:
            chunk.add(frames.data(0, each), 2 * index)
        chunk.add(frames.data(0, content[-1], end=True), 2 * index)
        chunk.add_reset(2 * index)
    return chunk


def _steps(mode: Mode, path: str, body: bytes, chooser: random.Random) -> list[bytes]:
    """Return the frames of one request; some share frames or are split, at random."""
    messages = frames.request_messages(mode, body)
    messages += frames.response_messages(mode, chunks=4)
    content = [frames.message(each) for each in messages]
    shape = chooser.random()
    if shape < 0.1:
        content = [b"".join(content)]
    elif shape < 0.15:
        whole = b"".join(content)
        cut = chooser.randrange(1, len(whole))
        content = [whole[:cut], whole[cut:]]
    steps = [frames.call(0, path)]
    steps += [frames.data(0, each) for each in content[:-1]]
    steps.append(frames.data(0, content[-1], end=True))
    return steps
