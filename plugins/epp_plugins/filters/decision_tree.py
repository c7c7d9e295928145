"""``decision-tree-filter``: a tree of filters; the result of each decides which one runs next.

A node has exactly one of

``filter``
    name of any configured filter, also of another tree. It succeeds if an endpoint passes.
``priorityAtLeast``
    succeeds if the request has at least this priority; it removes no endpoint. 0 distinguishes
    critical requests from sheddable ones.
``drop: true``
    refuses the request: 429, ``rejected-saturated``.

and its successors: ``nextOnSuccess`` gets the endpoints that passed, ``nextOnFailure`` the
endpoints that the node itself was given; ``next`` stands for both. Without a successor the result
is the endpoints that passed. It is the tree of GIE #677, with any filters. A profile lists only the
tree, because the tree runs its filters.

Example::

    plugins:
      - type: has-capacity-filter
      - type: least-queue-filter
      - type: decision-tree-filter
        parameters:
          priorityAtLeast: 0
          nextOnSuccess: {filter: least-queue-filter}
          nextOnFailure:
            filter: has-capacity-filter
            nextOnSuccess: {filter: least-queue-filter}
            nextOnFailure: {drop: true}
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from epp.scheduling import CompositeFilter, CycleState, Endpoint, Filter, FilterRun, LLMRequest


class DecisionNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One node of the tree with its successors."""

    filter: str | None = None
    """Name of the filter to run."""
    priority_at_least: int | None = None
    """Lowest priority with which the node succeeds."""
    drop: bool = False
    """Refuse the request."""
    next: "DecisionNode | None" = None
    """Next node in both cases."""
    next_on_success: "DecisionNode | None" = None
    """Next node if an endpoint passed; it gets the endpoints that passed."""
    next_on_failure: "DecisionNode | None" = None
    """Next node if no endpoint passed; it gets the endpoints that this node was given."""

    def __post_init__(self) -> None:
        has = {
            "filter": self.filter is not None,
            "priorityAtLeast": self.priority_at_least is not None,
            "drop": self.drop,
        }
        if sum(has.values()) != 1:
            found = " and ".join(name for name, there in has.items() if there) or "none of them"
            raise ValueError(
                f"a node has one of filter, priorityAtLeast, drop: true; found {found}"
            )
        is_split = self.next_on_success is not None or self.next_on_failure is not None
        if self.next is not None and is_split:
            raise ValueError("next stands for both nextOnSuccess and nextOnFailure; leave one out")
        if self.drop and (is_split or self.next is not None):
            raise ValueError("drop ends the request: no node can follow it")
        if self.priority_at_least is not None and not is_split:
            raise ValueError("priorityAtLeast needs nextOnSuccess or nextOnFailure to tell apart")


class Params(DecisionNode, frozen=True):
    """Parameters of ``decision-tree-filter``: the root of the tree."""


Refer = Callable[[str, type[Filter]], Filter]
"""Returns the filter with a name."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A node with its filter resolved."""

    filter: Filter | None
    least_priority: int
    is_drop: bool
    on_success: "_Step | None"
    on_failure: "_Step | None"


class DecisionTreeFilter(CompositeFilter):
    """Runs filters along a path through a tree."""

    type: ClassVar[str] = "decision-tree-filter"

    def __init__(self, name: str, params: Params, refer: Refer) -> None:
        self.name = name
        inner: list[Filter] = []

        def noted(plugin: str, kind: type[Filter]) -> Filter:
            inner.append(found := refer(plugin, kind))
            return found

        self._root = _step_of(params, noted)
        self.recomputable = all(each.recomputable for each in inner)

    def filter_with(
        self,
        request: LLMRequest,
        endpoints: Sequence[Endpoint],
        state: CycleState,
        run: FilterRun,
    ) -> Sequence[Endpoint]:
        if not endpoints:
            return endpoints  # do not drop for an empty pool, which has a different error
        before: _Step | None = None
        step: _Step | None = self._root
        passed = endpoints
        while step is not None:
            if step.is_drop:
                run.drop(self, _reason(before, request))
            if step.filter is None:
                is_success = request.priority >= step.least_priority
            else:
                kept = run(step.filter, passed)
                is_success = bool(kept)
                if is_success or step.on_failure is None:
                    passed = kept
            before, step = step, step.on_success if is_success else step.on_failure
        return passed


def _reason(before: _Step | None, request: LLMRequest) -> str:
    """Describe why the tree came from the node ``before`` to a drop."""
    if before is None:
        return "the tree has nothing else"
    if before.filter is None:
        return f"its priority is {request.priority}"
    return f"after {before.filter.name!r} no other way is left"


def _step_of(node: DecisionNode, refer: Refer) -> _Step:
    def following(special: DecisionNode | None) -> _Step | None:
        chosen = special or node.next
        return None if chosen is None else _step_of(chosen, refer)

    return _Step(
        filter=None if node.filter is None else refer(node.filter, Filter),
        least_priority=node.priority_at_least or 0,
        is_drop=node.drop,
        on_success=following(node.next_on_success),
        on_failure=following(node.next_on_failure),
    )
