"""Publishes the KV events of one rank of a server over ZeroMQ, as vLLM does, and replays them.

A message has three frames: topic, sequence number (8 bytes, big-endian), payload. A client of the
replay socket (ROUTER) sends an empty frame and a sequence number; it gets each buffered message
from there on as empty frame, number, payload, and at the end the number -1 and no payload.

pyzmq is optional: only a fleet with KV events imports this module.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import zmq

from epp.lab.fleet.errors import PortTakenError
from epp.lab.fleet.faults import ServerFaults
from epp.lab.fleet.faults.state import drawn
from epp.lab.fleet.kv_events import KvEvent, KvEventEncoder

BUFFERED = 10_000
"""Messages that can be replayed, as with vLLM's default."""
HIGH_WATER_MARK = 100_000
"""Messages queued for a slow subscriber, as with vLLM's default; further ones are lost."""
_OWN_SOCKETS = 64
_END = (-1).to_bytes(8, "big", signed=True)
_REPLAY_FRAMES = 3
_BIND_SECONDS = 2.0
_BIND_RETRY_SECONDS = 0.01

Message = tuple[int, bytes]
"""Sequence number and payload."""


class KvPublisher:
    """The publisher of one rank; it outlives restarts, but its messages do not."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._context = context
        self._host = ""
        self._ports = (0, 0)
        self._topic = ""
        self._events: zmq.Socket[bytes] | None = None
        self._replay: zmq.Socket[bytes] | None = None
        self._sequence = 0
        self._buffer: deque[Message] = deque(maxlen=BUFFERED)
        self._held: Message | None = None
        self._encoder: KvEventEncoder | None = None

    def source(self) -> dict[str, object]:
        """Return its entry in `/kv_event_sources`, without the rank."""
        return {
            "endpoint": self._endpoint(self._ports[0]),
            "replay_endpoint": self._endpoint(self._ports[1]),
            "topic": self._topic,
            "buffer_steps": BUFFERED,
            "hwm": HIGH_WATER_MARK,
        }

    async def open(
        self, host: str, ports: tuple[int, int], topic: str, encoder: KvEventEncoder
    ) -> None:
        """Listen, as a new process: sequence numbers begin with 0, and nothing is replayed.

        Args:
            host: Address.
            ports: Ports of the events and of the replay socket; 0 for those of the last time, or
                any free one.
            topic: First frame of each message.
            encoder: Encodes the payload.

        Raises:
            PortTakenError: A port is in use.
        """
        self.close()
        self._host, self._topic, self._encoder = host, topic, encoder
        self._events = self._context.socket(zmq.PUB)
        self._events.set(zmq.SNDHWM, HIGH_WATER_MARK)
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.set(zmq.SNDHWM, 0)
        wanted = [given or last for given, last in zip(ports, self._ports, strict=True)]
        self._ports = (
            await self._bind(self._events, wanted[0]),
            await self._bind(self._replay, wanted[1]),
        )
        loop = asyncio.get_running_loop()
        loop.add_reader(int(self._replay.get(zmq.FD)), self._serve_replays)

    def close(self) -> None:
        """Close both sockets, and forget all messages."""
        if self._replay is not None:
            asyncio.get_running_loop().remove_reader(int(self._replay.get(zmq.FD)))
            self._replay.close()
        if self._events is not None:
            self._events.close()
        self._events = self._replay = None
        self._sequence = 0
        self._buffer.clear()
        self._held = None

    def publish(self, events: list[KvEvent], faults: ServerFaults) -> None:
        """Send a message with these events, unless a fault delays or loses it."""
        if not events or self._encoder is None:
            return
        message = (self._sequence, self._encoder.encode(events, time.time()))
        self._sequence += 1
        self._buffer.append(message)
        held, self._held = self._held, None
        number = message[0]
        if held is None and drawn(faults.kv_events_swapped_share, f"swapped/{number}"):
            self._held = message
            return
        if not drawn(faults.kv_events_lost_share, f"lost/{number}"):
            self._send(message)
        if held is not None:
            self._send(held)

    def _send(self, message: Message) -> None:
        number, payload = message
        if self._events is not None:
            frames = (self._topic.encode(), number.to_bytes(8, "big"), payload)
            self._events.send_multipart(frames, zmq.NOBLOCK)

    def _serve_replays(self) -> None:
        # The descriptor is edge-triggered: requests that arrive meanwhile do not signal it again.
        while self._replay is not None and int(self._replay.get(zmq.EVENTS)) & zmq.POLLIN:
            frames = self._replay.recv_multipart(zmq.NOBLOCK)
            if len(frames) == _REPLAY_FRAMES and len(frames[2]) == len(_END):
                self._reply(self._replay, frames[0], int.from_bytes(frames[2], "big"))

    def _reply(self, replay: zmq.Socket[bytes], client: bytes, start: int) -> None:
        for number, payload in self._buffer:
            if number >= start:
                replay.send_multipart((client, b"", number.to_bytes(8, "big"), payload))
        replay.send_multipart((client, b"", _END, b""))

    def _endpoint(self, port: int) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"tcp://{host}:{port}"

    async def _bind(self, socket: zmq.Socket[bytes], port: int) -> int:
        """Bind a socket; return its port."""
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, int(":" in self._host))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _BIND_SECONDS
        while True:
            try:
                socket.bind(self._endpoint(port))
                bound = socket.get_string(zmq.LAST_ENDPOINT)
                return int(bound.rstrip("\0").rpartition(":")[2])
            except zmq.ZMQError as error:
                # ZeroMQ closes the socket of the former process in its own thread, a moment later.
                if error.errno != zmq.EADDRINUSE:
                    raise
                if loop.time() > deadline:
                    raise PortTakenError("KV events", self._host, port) from error
            await asyncio.sleep(_BIND_RETRY_SECONDS)


class KvPublishers:
    """The publishers of a fleet, and their common threads."""

    def __init__(self, count: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * count + _OWN_SOCKETS)
        self.publishers = tuple(KvPublisher(self._context) for _ in range(count))
        """One for each rank of each server."""

    def close(self) -> None:
        """Close all sockets and end the threads."""
        for publisher in self.publishers:
            publisher.close()
        self._context.term()
