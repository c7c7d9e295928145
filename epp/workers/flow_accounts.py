"""Plugins' counts of requests in flight, at the worker that owns the queues.

A saturation detector may read the counts of a plugin (requests or tokens in flight) in place of the
shared rows. Replicas exchange these counts 50 times a second, which is too late for the next
request. So a worker sends its part with each report, and the owner itself counts a request from its
grant to that report.

A policy, such as one that divides tokens among tenants, counts what each request uses. At the owner
it is notified of the requests of all workers, from the grant to the end. The results of data
producers stay at the worker of the request, so the policy estimates from the length of the body
until the response has reported its tokens.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import structlog

from epp.flow_control import (
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.parsing.plugins import Usage
from epp.replication.plugins import CrossReplicaContributor
from epp.request_control.forced_endpoint import forced_result
from epp.request_control.plugins import RESPONSE_USAGE, EndCause, PreRequest, ResponseComplete
from epp.scheduling import CycleState, Endpoint, Guard, GuardRails, LLMRequest, Plugin, call_each

_log = structlog.get_logger(__name__)
_GRANTS: Final = "requests granted to other workers"
"""The source of these requests in the loads of endpoints."""
_POLICIES: Final = (FairnessPolicy, OrderingPolicy, SaturationDetector, UsageLimitPolicy)


class Grant:
    """A granted request, counted at an endpoint that need not be the one it is sent to.

    Args:
        request: The request.
        endpoint: The endpoint.
    """

    __slots__ = ("counting", "counting_policies", "endpoint", "request", "state")

    def __init__(self, request: LLMRequest, endpoint: Endpoint) -> None:
        self.request = request
        self.endpoint = endpoint
        self.state = CycleState()
        self.counting: Collection[Guard[ResponseComplete]] = ()
        """Plugins that have counted it. They are called when it no longer counts, although a
        reload may have replaced them meanwhile."""
        self.counting_policies: Collection[Guard[ResponseComplete]] = ()
        """Likewise policies, which are called when it ends."""


class FlowAccounts:
    """The contributing plugins, with the parts of this worker and of the others."""

    def __init__(self) -> None:
        self._contributors: Mapping[str, CrossReplicaContributor] = {}
        self._pre_request: Collection[Guard[PreRequest]] = ()
        self._complete: Collection[Guard[ResponseComplete]] = ()
        self._counting_pre_request: Collection[Guard[PreRequest]] = ()
        self._counting_complete: Collection[Guard[ResponseComplete]] = ()
        self._sent: dict[str, bytes] = {}
        self._granted: dict[Endpoint, int] = {}

    def use(self, plugins: Iterable[Plugin], guards: GuardRails) -> None:
        """Replace the plugins by those of a configuration."""
        known = tuple(plugins)
        contributing = [
            each
            for each in known
            if isinstance(each, CrossReplicaContributor)
            and each.contributes
            and not each.is_of_queues
        ]
        self._contributors = {each.name: each for each in contributing}
        self._pre_request = guards.guards("PreRequest", PreRequest, contributing)
        self._complete = guards.guards("ResponseComplete", ResponseComplete, contributing)
        counting = [each for each in known if isinstance(each, _POLICIES)]
        self._counting_pre_request = guards.guards("PreRequest", PreRequest, counting)
        self._counting_complete = guards.guards("ResponseComplete", ResponseComplete, counting)
        self._sent.clear()

    @property
    def has_policies(self) -> bool:
        """Whether a policy counts what requests use."""
        return bool(self._counting_complete)

    # --- at the owner -----------------------------------------------------------------------------

    def begin(self, grant: Grant, now: float) -> None:
        """Count a request that another worker may send."""
        self._share(grant.endpoint, 1, now)
        grant.counting, grant.counting_policies = self._complete, self._counting_complete
        result = forced_result(grant.endpoint)
        for hooks in (self._pre_request, self._counting_pre_request):
            call_each(hooks, lambda hook: hook.pre_request(grant.request, result, grant.state))

    def settle(self, grant: Grant, now: float) -> None:
        """Stop counting a request: the report of its worker counts in its place."""
        self._share(grant.endpoint, -1, now)
        self._completed(grant.counting, grant, EndCause.REFUSED)

    def finish(self, grant: Grant, cause: EndCause, usage: Usage | None = None) -> None:
        """Notify policies of the end of a request.

        Args:
            grant: The request.
            cause: Why it ended.
            usage: The tokens of its response; None if unknown.
        """
        if usage is not None:
            grant.state.write(RESPONSE_USAGE, usage)
        self._completed(grant.counting_policies, grant, cause)

    def _completed(
        self, hooks: Collection[Guard[ResponseComplete]], grant: Grant, cause: EndCause
    ) -> None:
        call_each(
            hooks,
            lambda hook: hook.response_complete(grant.request, grant.endpoint, cause, grant.state),
        )

    def receive(self, worker: str, loads: Mapping[str, bytes]) -> None:
        """Apply the parts of another worker, by plugin name."""
        for name, part in loads.items():
            contributor = self._contributors.get(name)
            if contributor is None:
                continue  # a reload has just removed it
            try:
                contributor.receive(worker, part)
            except Exception:
                _log.exception("state of a worker not understood", worker=worker, plugin=name)

    def left(self, worker: str) -> None:
        """Forget the parts of a worker that has ended."""
        for name, contributor in self._contributors.items():
            try:
                contributor.replica_left(worker)
            except Exception:
                _log.exception("plugin failed to forget a worker", worker=worker, plugin=name)

    def _share(self, endpoint: Endpoint, change: int, now: float) -> None:
        granted = self._granted.get(endpoint, 0) + change
        if granted:
            self._granted[endpoint] = granted
        else:
            del self._granted[endpoint]
        endpoint.load.share(_GRANTS, granted, now)

    # --- at the others ----------------------------------------------------------------------------

    def forget_sent(self) -> None:
        """Send all parts again: the owner has changed."""
        self._sent.clear()

    def news(self) -> Mapping[str, bytes]:
        """Return this worker's parts that have changed since they were sent."""
        news = {}
        for name, contributor in self._contributors.items():
            try:
                part = contributor.contribution()
            except Exception:
                _log.exception("plugin failed to share its state", plugin=name)
                continue
            if self._sent.get(name) != part:
                self._sent[name] = news[name] = part
        return news
