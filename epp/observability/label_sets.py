"""Limit the label sets with values from clients to what fits on the metrics page.

A table claims space from the :class:`.PageBudget` before it creates the children of a label set. If
there is none, names unknown to the operator are folded into ``other``; if that set does not fit
either, all names are, and this last set always exists. A set that was idle for ten minutes may be
removed in favour of others, and its series end. Its counts are not added to ``other``: ``rate()``
has already seen them in the removed series and would count them twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, TypeVar

from epp.observability.known_names import MAX_NAME_CHARS, OTHER, Standing
from epp.observability.page_budget import IDLE_SECONDS, PageBudget, SeriesClaim

Labels = tuple[str, ...]
Judge = Callable[[Labels], tuple[Standing, Labels]]
"""Returns the standing of labels, and the labels with names unknown to the operator folded."""


class LabelSet(ABC):
    """The bound children of one label set.

    Attributes:
        labels: Its values on the page.
        claim: The space that it uses there.
    """

    __slots__ = ("claim", "labels")

    def __init__(self, labels: Labels, claim: SeriesClaim) -> None:
        self.labels = labels
        self.claim = claim

    @property
    @abstractmethod
    def activity(self) -> float:
        """A number that grows with each observation."""

    @property
    def is_busy(self) -> bool:
        """Whether more observations on its children are expected."""
        return False

    @abstractmethod
    def remove(self) -> None:
        """Remove its children from the page."""

    @abstractmethod
    def retry(self) -> None:
        """Release children borrowed from other sets, so that space for its own is claimed again."""


S = TypeVar("S", bound=LabelSet)


class LabelSets(Generic[S]):
    """The label sets of one group of families; a ``Claimant``.

    Args:
        budget: The budget of the page.
        judge: Returns the standing of labels.
        last: Returns labels with every name from clients folded.
        make: Creates the children of a set.
        cost: Returns the length of their lines.
        is_detail: Whether they are details (:mod:`.page_budget`).
    """

    def __init__(
        self,
        budget: PageBudget,
        *,
        judge: Judge,
        last: Callable[[Labels], Labels],
        make: Callable[[Labels, SeriesClaim], S],
        cost: Callable[[Labels], int],
        is_detail: bool = False,
    ) -> None:
        self._budget = budget
        self._judge = judge
        self._last = last
        self._make = make
        self._cost = cost
        self._is_detail = is_detail
        self._sets: dict[Labels, S] = {}
        budget.add(self)

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._sets.values()))

    def __len__(self) -> int:
        return len(self._sets)

    def get(self, labels: Labels) -> S | None:
        """Return the set of exactly these labels, or None."""
        return self._sets.get(labels)

    def bind(self, labels: Labels) -> S:
        """Return the set of ``labels``, or the one into which they are folded."""
        found = self._sets.get(labels)
        if found is not None:
            return found
        if max(map(len, labels)) > MAX_NAME_CHARS:
            labels = tuple([OTHER if len(each) > MAX_NAME_CHARS else each for each in labels])
            return self.bind(labels)
        standing, folded = self._judge(labels)
        last = self._last(labels)
        if labels == last or not self._budget.is_full(standing, is_detail=self._is_detail):
            claim = self._budget.open(standing)
            if self._budget.take(
                claim, self._cost(labels), is_detail=self._is_detail, always=labels == last
            ):
                bound = self._sets[labels] = self._make(labels, claim)
                return bound
        instead = last if folded == labels else folded
        return self._sets.get(instead) or self.bind(instead)

    def claim(
        self, owner: S, cost: Callable[[Labels], int], *, is_detail: bool = False
    ) -> S | None:
        """Claim space for further children of ``owner``.

        Args:
            owner: The set that needs them.
            cost: Returns the length of their lines.
            is_detail: Whether they are details.

        Returns:
            The set whose children to use instead; None if there is space.
        """
        labels, last = owner.labels, self._last(owner.labels)
        if labels == last or not self._budget.is_full(owner.claim.standing, is_detail=is_detail):
            size_bytes, always = cost(labels), labels == last
            if self._budget.take(owner.claim, size_bytes, is_detail=is_detail, always=always):
                return None
        _, folded = self._judge(labels)
        instead = last if folded == labels else folded
        return self._sets.get(instead) or self.bind(instead)

    def judge_again(self, owner: S) -> None:
        """Update the standing of ``owner``."""
        self._budget.move(owner.claim, self._judge(owner.labels)[0])

    def drop(self, labels: Labels) -> None:
        """Remove a set from the page, if present."""
        found = self._sets.pop(labels, None)
        if found is not None:
            found.remove()
            self._budget.close(found.claim)

    def review(self, now: float) -> Iterator[tuple[SeriesClaim, Callable[[], None]] | None]:
        """Update the claims; see ``Claimant``."""
        for each in list(self._sets.values()):
            claim, activity = each.claim, each.activity
            self.judge_again(each)
            each.retry()
            if activity != claim.activity or each.is_busy:
                claim.activity = activity
                claim.active_at = now
                yield None
            # A set that others fold into is in use by those.
            elif now - claim.active_at >= IDLE_SECONDS and OTHER not in each.labels:
                yield claim, partial(self._drop_idle, each)
            else:
                yield None

    def _drop_idle(self, found: S) -> None:
        """Remove a set from the page unless it was used or replaced since its review."""
        is_idle = found.activity == found.claim.activity and not found.is_busy
        if is_idle and self._sets.get(found.labels) is found:
            self.drop(found.labels)
