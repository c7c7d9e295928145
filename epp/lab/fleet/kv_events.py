"""KV events: which blocks entered and left the prefix cache, in the formats of vLLM.

vLLM 0.32 encodes an event as a map; older versions, SGLang and llm-d's examples as an array with
the type first. Source: recordings of vLLM 0.32, and vLLM's `distributed/kv_events.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from epp.lab.fleet.config import KvEventFormat
from epp.lab.fleet.kv_cache import BYTES_PER_TOKEN
from epp.lab.fleet.sequence import Sequence as EngineSequence
from epp.lab.fleet.tokenizer import token_ids

_HASH_BYTES = 8
_MEDIUM = "GPU"


@dataclass(frozen=True, slots=True)
class KvEvent:
    """Consecutive blocks of a prompt that entered the cache, or left it."""

    hashes: tuple[int, ...]
    """Hash of each block and all blocks before it."""
    stored: bool
    parent: int | None = None
    """Hash of the block before the first one."""
    tokens: tuple[int, ...] = ()
    adapter: str | None = None


class KvEventSource:
    """Collects the events of a prefix cache; it is the cache's observer."""

    def __init__(self, block_size: int) -> None:
        self._block_bytes = block_size * BYTES_PER_TOKEN
        self._changes: list[tuple[bool, Sequence[Hashable], int, int]] = []
        self._sequences: dict[int, EngineSequence] = {}

    def attach(self, sequence: EngineSequence) -> None:
        """Register a sequence before the next `take`: the events contain its text."""
        self._sequences[id(sequence.keys)] = sequence

    def stored(self, keys: Sequence[Hashable], start: int, end: int) -> None:
        """Collect blocks that enter the cache."""
        self._changes.append((True, keys, start, end))

    def removed(self, keys: Sequence[Hashable], start: int, end: int) -> None:
        """Collect blocks that leave the cache."""
        self._changes.append((False, keys, start, end))

    def take(self) -> list[KvEvent]:
        """Return the events since the last call."""
        if not self._changes:
            return []
        events = [self._event(*change) for change in self._changes]
        self._changes.clear()
        ended = [key for key, each in self._sequences.items() if each.finish_reason is not None]
        for key in ended:
            del self._sequences[key]
        return events

    def _event(self, stored: bool, keys: Sequence[Hashable], start: int, end: int) -> KvEvent:
        hashes = tuple(_hash(key) for key in keys[start:end])
        if not stored:
            return KvEvent(hashes, stored)
        sequence = self._sequences[id(keys)]
        text = sequence.request.prompt + sequence.text().encode()
        blocks = text[start * self._block_bytes : end * self._block_bytes]
        parent = _hash(keys[start - 1]) if start else None
        adapter = sequence.request.adapter
        return KvEvent(hashes, stored, parent, tuple(token_ids(blocks)), adapter)


class KvEventEncoder:
    """Encodes batches of events."""

    def __init__(self, event_format: KvEventFormat, block_size: int, rank: int = 0) -> None:
        self._format = event_format
        self._block_size = block_size
        self._rank = rank
        self._lora_ids: dict[str, int] = {}

    def encode(self, events: Sequence[KvEvent], at: float) -> bytes:
        """Return the payload of a message: time in seconds since the epoch, events, rank."""
        of = self._map if self._format is KvEventFormat.MAP else self._array
        return msgspec.msgpack.encode([at, [of(event) for event in events], self._rank])

    def _map(self, event: KvEvent) -> dict[str, Any]:
        if not event.stored:
            return {
                "type": "BlockRemoved",
                "block_hashes": event.hashes,
                "medium": _MEDIUM,
                "group_idx": 0,
            }
        return {
            "type": "BlockStored",
            "block_hashes": event.hashes,
            "parent_block_hash": event.parent,
            "token_ids": event.tokens,
            "block_size": self._block_size,
            "lora_id": self._lora_id(event.adapter),
            "medium": _MEDIUM,
            "lora_name": event.adapter,
            "extra_keys": [None] * len(event.hashes),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _array(self, event: KvEvent) -> list[Any]:
        if not event.stored:
            return ["BlockRemoved", event.hashes, _MEDIUM]
        lora_id = self._lora_id(event.adapter)
        stored = [event.hashes, event.parent, event.tokens, self._block_size, lora_id]
        return ["BlockStored", *stored, _MEDIUM, event.adapter]

    def _lora_id(self, adapter: str | None) -> int | None:
        if adapter is None:
            return None
        return self._lora_ids.setdefault(adapter, len(self._lora_ids) + 1)


def _hash(key: Hashable) -> int:
    if not isinstance(key, bytes):
        raise TypeError("only prompts with text have KV events")
    return int.from_bytes(key[:_HASH_BYTES], "big")
