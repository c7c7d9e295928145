"""The one kind of message that replicas exchange, in MessagePack.

A message is an array: fields may be added at its end, and older replicas ignore them. Any other
change needs another ``VERSION``; replicas of different versions ignore each other, so during such
an upgrade only replicas of the same version share state. The head is decoded first, so that
messages to others cost little.
"""

from typing import Final

import msgspec

VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 4 << 20
"""Longer messages are neither sent nor read."""


class Head(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of every message, of every version."""

    version: int
    sender: str
    """Name of the replica."""
    incarnation: int
    """Grows with each start of the replica: nanoseconds since 1970."""
    recipient: str
    """Name of the only replica to receive it; "" for all."""


class PluginState(msgspec.Struct, array_like=True, frozen=True):
    """State that a plugin shares."""

    plugin: str
    """Name of the instance."""
    type: str
    """Its type; instances of the same name but of different types share nothing."""
    is_contribution: bool
    """Whether ``data`` is a contribution; otherwise it is facts."""
    data: bytes


class PoolState(msgspec.Struct, array_like=True, frozen=True):
    """The state of one pool at a replica."""

    pool: str
    is_whole: bool
    """Whether ``in_flight`` names all endpoints with requests, not only those that changed."""
    in_flight: dict[int, int]
    """Requests in flight by :func:`~epp.replication.plugins.replica_key`, as total numbers."""
    plugins: list[PluginState] = []


class Message(msgspec.Struct, array_like=True, frozen=True):
    """A message; its first fields are those of :class:`Head`."""

    version: int
    sender: str
    incarnation: int
    recipient: str
    sequence: int
    """Counts the sender's messages to all; 0 for those to one."""
    age_seconds: float
    """Approximate age of the changes at the time of sending."""
    asks: bool = False
    """Whether the sender asks for the whole state, because it has just joined."""
    leaves: bool = False
    """Whether the sender is about to end."""
    pools: list[PoolState] = []


encode = msgspec.msgpack.Encoder().encode
read_head = msgspec.msgpack.Decoder(Head).decode
read_message = msgspec.msgpack.Decoder(Message).decode
