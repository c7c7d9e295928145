"""Producers named after the keys they write, which record their calls."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from epp.request_control import (
    PRODUCER_FAILURES,
    AsyncDataProducer,
    DataProducer,
    RoutedRequest,
)
from epp.scheduling import CycleState, Endpoint, LLMRequest, StateKey


def key(name: str) -> StateKey[str]:
    """Return the key that the producer of that name writes."""
    made: StateKey[str] = StateKey(f"test/{name}")
    return made


class Sync(DataProducer):
    """Writes its key at once, or raises."""

    type: ClassVar[str] = "sync"

    def __init__(
        self,
        name: str,
        *reads: str,
        optional: Sequence[str] = (),
        notes: list[str] | None = None,
        fails_in: str = "",
    ) -> None:
        self.name = name
        self.optional_reads: tuple[StateKey[Any], ...] = tuple(map(key, optional))  # type: ignore[misc] # per instance
        self.reads: tuple[StateKey[Any], ...] = tuple(map(key, reads))  # type: ignore[misc] # per instance
        self.writes: tuple[StateKey[Any], ...] = (key(name),)  # type: ignore[misc] # per instance
        self.notes = [] if notes is None else notes
        self.fails_in = fails_in

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        self._called("prepare")
        state.write(key(self.name), self.name)

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        self._called("attach")

    def _called(self, method: str) -> None:
        self.notes.append(f"{self.name} {method}")
        if self.fails_in == method:
            raise RuntimeError(f"a bug in {method}")


class Async(AsyncDataProducer):
    """Writes its key after some seconds, or does what the test sets."""

    type: ClassVar[str] = "async"

    def __init__(
        self,
        name: str,
        *reads: str,
        seconds: float = 0.1,
        limit: float = 0.4,
        notes: list[str] | None = None,
        applies: bool = True,
        fails_in: str = "",
        is_stubborn: bool = False,
    ) -> None:
        self.name = name
        self.reads: tuple[StateKey[Any], ...] = tuple(map(key, reads))  # type: ignore[misc] # per instance
        self.writes: tuple[StateKey[Any], ...] = (key(name),)  # type: ignore[misc] # per instance
        self.seconds = seconds
        self.timeout_seconds = limit
        self.notes = [] if notes is None else notes
        self.applies = applies
        self.fails_in = fails_in
        self.is_stubborn = is_stubborn

    def applies_to(self, request: LLMRequest, state: CycleState) -> bool:
        if self.fails_in == "applies_to":
            raise RuntimeError("a bug in applies_to")
        return self.applies

    async def prepare_async(self, request: LLMRequest, state: CycleState) -> None:
        self.notes.append(f"{self.name} asked at {asyncio.get_running_loop().time():g}")
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.notes.append(f"{self.name} cancelled")
            if self.is_stubborn:
                await asyncio.sleep(3600)
            raise
        if self.fails_in == "prepare_async":
            raise RuntimeError("a bug in prepare_async")
        if self.fails_in == "cancelled":
            raise asyncio.CancelledError
        if self.fails_in == "exit":
            sys.exit(3)
        self.notes.append(f"{self.name} answered at {asyncio.get_running_loop().time():g}")
        state.write(key(self.name), self.name)


def failures(routed: RoutedRequest) -> dict[str, str]:
    """Return the reasons of failed producers by name."""
    return {each.producer: each.reason for each in routed.state.read(PRODUCER_FAILURES) or ()}
