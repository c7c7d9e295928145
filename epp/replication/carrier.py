"""What carries messages between replicas: the contract of the carriers."""

from abc import ABC, abstractmethod
from typing import Protocol


class Inbox(Protocol):
    """Takes what a carrier brings; on the event loop."""

    def received(self, message: bytes) -> None:
        """Take a message; it may be any bytes."""

    def joined(self) -> None:
        """Other replicas can be reached now, or again: those there know nothing of this one."""

    def left(self, replica: str) -> None:
        """A replica is known to have ended; optional, its lease would end as well."""


class Carrier(ABC):
    """Carries messages to all other replicas; some may be lost, and own ones may come back."""

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
        """Connect, and connect again after failures, until cancelled.

        When cancelled, it sends what is queued if that needs no waiting for others.
        """
