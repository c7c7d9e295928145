"""``decision-tree-filter``: filters nested as a tree, each result deciding which comes next.

A node has one of

``filter``
    name of any configured filter, another tree too. It succeeds if an endpoint passes.
``priorityAtLeast``
    succeeds if the request's priority is no less; it removes no endpoint. 0 tells critical requests
    from sheddable ones.
``drop: true``
    the request is given up: 429, ``rejected-saturated``.

and says where to go on: ``nextOnSuccess`` gets the endpoints that passed, ``nextOnFailure`` those
that the node itself was given, ``next`` stands for both. Without a next node the result is what
passed. It is the tree of GIE #677, with any filters in it. A profile names the tree alone, as the
tree runs the filters in it.

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


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One node of the tree, and what hangs on it."""

    filter: str | None = None
    """Name of the filter to run."""
    priority_at_least: int | None = None
    """Lowest priority that is a success."""
    drop: bool = False
    """Give the request up."""
    next: "Node | None" = None
    """Where to go on in any case."""
    next_on_success: "Node | None" = None
    """Where to go on with what passed."""
    next_on_failure: "Node | None" = None
    """Where to go on with what the node itself was given, if nothing passed."""

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


class Params(Node, frozen=True):
    """Parameters of ``decision-tree-filter``: the root of the tree."""


Refer = Callable[[str, type[Filter]], Filter]
"""Gives the filter of that name."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A node with its filter at hand."""

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
        self._root = _step_of(params, refer)

    def filter_with(
        self,
        request: LLMRequest,
        endpoints: Sequence[Endpoint],
        state: CycleState,
        run: FilterRun,
    ) -> Sequence[Endpoint]:
        if not endpoints:
            return endpoints  # an empty pool is no reason to drop: it has an error of its own
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
    """Say what led from the node ``before`` to a drop."""
    if before is None:
        return "the tree has nothing else"
    if before.filter is None:
        return f"its priority is {request.priority}"
    return f"after {before.filter.name!r} no other way is left"


def _step_of(node: Node, refer: Refer) -> _Step:
    def following(special: Node | None) -> _Step | None:
        chosen = special or node.next
        return None if chosen is None else _step_of(chosen, refer)

    return _Step(
        filter=None if node.filter is None else refer(node.filter, Filter),
        least_priority=node.priority_at_least or 0,
        is_drop=node.drop,
        on_success=following(node.next_on_success),
        on_failure=following(node.next_on_failure),
    )
