"""The contract of carriers, which carry messages between replicas."""

from abc import ABC, abstractmethod
from typing import Protocol


class Inbox(Protocol):
    """Receives the events of a carrier; called on the event loop."""

    def received(self, message: bytes) -> None:
        """Process a message, which may be any bytes."""

    def joined(self) -> None:
        """Other replicas have become reachable; they may not know this one yet."""

    def left(self, replica: str) -> None:
        """A replica has ended; the call is optional, because its lease would expire anyway."""


class Carrier(ABC):
    """Carries messages to all other replicas; some may be lost, and a replica may get its own."""

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether messages can be sent."""

    @abstractmethod
    def send(self, message: bytes, recipient: str = "") -> bool:
        """Queue a message, without waiting; return whether it was queued.

        Args:
            message: The message.
            recipient: The only replica that gets it; "" for all.
        """

    @abstractmethod
    async def run(self, inbox: Inbox) -> None:
        """Connect, and reconnect after failures, until cancelled.

        When cancelled, it sends the queued messages if it need not wait for others to do so.
        """
