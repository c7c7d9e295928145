"""An endpoint picker whose decisions are recorded."""

from typing import Any

import msgspec

from epp.admin import DecisionRecord, DecisionsPage, ExplainSettings, PoolDecisions
from epp.admin.decision_pages import PATH
from epp.scheduling import Endpoint
from tools.harness.request_control import Clock, Epp, make_pool

STARTED_AT = 1_700_000_000.0
"""Unix time at the time 0 of the clock."""


class Recorded:
    """A director on a clock that the test sets, and the pages of its decisions."""

    def __init__(
        self, endpoints: list[Endpoint] | None = None, *, pool: str = "", **given: Any
    ) -> None:
        settings = {name: given.pop(name) for name in list(given) if name.startswith("explain_")}
        self.clock = Clock()
        self.explanations = PoolDecisions(
            ExplainSettings(**settings),
            self.clock,
            doubted=given.pop("doubted", None),
            pool=pool,
            wall_clock=lambda: STARTED_AT + self.clock.now,
            file=given.pop("file", None),
        )
        self.epp = Epp(
            endpoints or make_pool(),
            clock=self.clock,
            recorder=self.explanations.recorder,
            **given,
        )

    def page(self, **query: str) -> DecisionsPage:
        """Return the page of decisions."""
        page = self.explanations.pages()[PATH]
        assert page.search is not None
        return msgspec.convert(msgspec.to_builtins(page.search(query)), DecisionsPage)

    def record(self, request_id: str = "r-1") -> DecisionRecord:
        """Return the record of a request, as it is read from its page."""
        page = self.explanations.pages()[PATH]
        assert page.item is not None
        return msgspec.json.decode(msgspec.json.encode(page.item(request_id)), type=DecisionRecord)
