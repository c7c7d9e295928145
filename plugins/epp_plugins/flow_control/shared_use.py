"""Shares the use of tenants among several endpoint pickers, for fairness policies.

Each endpoint picker sends the others the use of its own requests, by fairness id. It sends totals,
so lost messages do no harm. The tokens received decay at the same rate everywhere, so a part
remains correct until a tenant uses more.

When an endpoint picker has gone, its requests in flight no longer count, but the tokens that its
tenants received do. Each account has an epoch: if the endpoint picker returns with the same epoch,
it was only disconnected, and the known tokens are not added again.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from epp_plugins.flow_control.programs import left_after

MAX_REPORTED: Final = 2000
"""Maximum tenants that an endpoint picker reports: the most recently active ones."""
MAX_NAME_BYTES: Final = 256
"""Tenants with a longer fairness id are not reported."""
_MAX_GONE: Final = 64
"""Maximum parts kept of endpoint pickers that have gone."""
_WHOLE_TOKEN: Final = 1.0
"""Smaller differences are due to rounding."""
_REPORT_SECONDS: Final = 1.0
"""Age after which a part is encoded again if only the decay has changed it."""


class Use(NamedTuple):
    """Use of a tenant, or the difference of two uses."""

    requests: int = 0
    """Requests in flight."""
    tokens: int = 0
    """Estimated tokens in flight."""
    charged: int = 0
    """Estimated cost of the requests in flight, which is part of ``received``."""
    received: int = 0
    """Tokens received, decayed."""


Change = tuple[str, Use]
"""A fairness id and how its use changes."""

_NOTHING: Final = Use()


class _Message(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    uses: dict[str, Use]


@dataclass(slots=True, eq=False)
class _Account:
    """Use of one tenant at this endpoint picker."""

    requests: int = 0
    tokens: float = 0.0
    charged: float = 0.0
    received: float = 0.0
    as_of: float = 0.0

    def charge(self, tokens: float, now: float, decay: float) -> None:
        self.received = max(0.0, self.received * left_after(now - self.as_of, decay) + tokens)
        self.as_of = now


@dataclass(slots=True, eq=False)
class _Part:
    """The last report of another endpoint picker."""

    epoch: int
    uses: Mapping[str, Use]
    at: float
    is_gone: bool = False


_decode = msgspec.msgpack.Decoder(_Message).decode
_encode = msgspec.msgpack.Encoder().encode


class SharedUse:
    """The account of this endpoint picker's requests, and the parts of the others.

    Args:
        decay: Halvings per second of the tokens received.
        epoch: Different for each account, such as the time in nanoseconds.
    """

    def __init__(self, decay: float, epoch: int) -> None:
        self._decay = decay
        self._epoch = epoch
        self._own: OrderedDict[str, _Account] = OrderedDict()
        """Accounts by fairness id, from the least to the most recently active."""
        self._parts: dict[str, _Part] = {}
        self._report = b""
        self._reported_at = 0.0
        self._has_news = True

    # --- own requests -----------------------------------------------------------------------------

    def begin(self, fairness_id: str, tokens: float, charged: float, now: float) -> None:
        """Count a request that is sent.

        Args:
            fairness_id: Its tenant.
            tokens: Tokens as which it counts while it is in flight.
            charged: Its estimated cost in tokens.
            now: Seconds of the clock.
        """
        account = self._account(fairness_id)
        account.requests += 1
        account.tokens += tokens
        account.charged += charged
        account.charge(charged, now, self._decay)

    def end(
        self, fairness_id: str, tokens: float, charged: float, correction: float, now: float
    ) -> None:
        """Count a request that has ended.

        Args:
            fairness_id: Its tenant.
            tokens: As for :meth:`begin`.
            charged: As for :meth:`begin`.
            correction: Tokens that the tenant received beyond ``charged``; may be negative.
            now: Seconds of the clock.
        """
        account = self._account(fairness_id)
        account.requests = max(0, account.requests - 1)
        account.tokens = account.tokens - tokens if account.requests else 0.0
        account.charged = account.charged - charged if account.requests else 0.0
        account.charge(correction, now, self._decay)

    def receive_tokens(self, fairness_id: str, tokens: float, now: float) -> None:
        """Count tokens that a tenant has received from requests not counted by :meth:`begin`."""
        self._account(fairness_id).charge(tokens, now, self._decay)

    def _account(self, fairness_id: str) -> _Account:
        self._has_news = True
        account = self._own.get(fairness_id)
        if account is None:
            account = self._own[fairness_id] = _Account()
            if len(self._own) > MAX_REPORTED:
                self._own.popitem(last=False)
        else:
            self._own.move_to_end(fairness_id)
        return account

    def encoded(self, now: float) -> bytes:
        """Return the report on this endpoint picker's tenants for the others."""
        if self._has_news or now - self._reported_at >= _REPORT_SECONDS:
            self._has_news, self._reported_at = False, now
            self._report = _encode(_Message(self._epoch, dict(self._uses(now))))
        return self._report

    def _uses(self, now: float) -> Iterator[tuple[str, Use]]:
        for name, each in tuple(self._own.items()):
            received = each.received * left_after(now - each.as_of, self._decay)
            if not each.requests and received < _WHOLE_TOKEN:
                del self._own[name]
            elif len(name.encode()) <= MAX_NAME_BYTES:
                numbers = (each.tokens, each.charged, received)
                yield name, Use(each.requests, *(max(0, round(number)) for number in numbers))

    # --- other endpoint pickers -------------------------------------------------------------------

    def receive(self, picker: str, encoded: bytes, now: float) -> list[Change]:
        """Return the changes of each tenant's use from another endpoint picker's report.

        Raises:
            ValueError: The report cannot be decoded.
        """
        message = _decode(encoded)
        uses = {
            name: Use(*(max(0, number) for number in use))
            for name, use in tuple(message.uses.items())[:MAX_REPORTED]
            if len(name.encode()) <= MAX_NAME_BYTES
        }
        before = self._parts.pop(picker, None)
        self._parts[picker] = _Part(message.epoch, uses, now)
        return list(self._changes(before, uses, message.epoch, now))

    def left(self, picker: str) -> list[Change]:
        """Return the changes of each tenant's use when an endpoint picker has gone."""
        part = self._parts.get(picker)
        if part is None or part.is_gone:
            return []
        part.is_gone = True
        gone = [name for name, each in self._parts.items() if each.is_gone]
        for name in gone[:-_MAX_GONE]:
            del self._parts[name]
        return [
            (name, Use(-use.requests, -use.tokens, -use.charged))
            for name, use in part.uses.items()
            if use.requests or use.tokens or use.charged
        ]

    def _changes(
        self, before: _Part | None, uses: Mapping[str, Use], epoch: int, now: float
    ) -> Iterator[Change]:
        known = _Part(epoch, {}, now) if before is None else before
        counts = known.uses if not known.is_gone else {}
        tokens_known = known.uses if known.epoch == epoch else {}
        left = left_after(now - known.at, self._decay)
        for name in {**counts, **uses}:
            old, new = counts.get(name, _NOTHING), uses.get(name, _NOTHING)
            received = new.received - tokens_known.get(name, _NOTHING).received * left
            if name not in uses and len(uses) == MAX_REPORTED:
                received = 0.0  # missing because the report is full, not because it received less
            if abs(received) <= _WHOLE_TOKEN:
                received = 0.0
            change = Use(
                new.requests - old.requests,
                new.tokens - old.tokens,
                new.charged - old.charged,
                round(received),
            )
            if change != _NOTHING:
                yield name, change
