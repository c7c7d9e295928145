"""``multicluster-session-affinity-filter``: keeps a session on one cluster.

It is ``session-affinity-filter`` with the same parameters. An endpoint is a cluster here: a session
stays in one cluster, whose own EPP chooses the model server. If sessions must also stay on one
server, use different headers on the two levels, because the cluster's EPP reads the same request.
Metrics are labelled with this plugin's type; the Go EPP's with that of the plugin that it wraps.

Reads:  the same as ``session-affinity-filter``.
Example::

    plugins:
      - type: multicluster-session-affinity-filter
        parameters:
          strategy: encoded_endpoint_header
          encodedEndpointHeaderConfig: {header: x-cluster-token}
"""

from typing import ClassVar

from epp_plugins.filters.session_affinity import SessionAffinityFilter


class MulticlusterSessionAffinityFilter(SessionAffinityFilter):
    """Keeps the cluster that the request's session is bound to, if it is a candidate."""

    type: ClassVar[str] = "multicluster-session-affinity-filter"
