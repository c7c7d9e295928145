"""Compares what the endpoint picker needs with what a Kubernetes cluster offers.

`epp.doctor.cluster.asking` needs the extra ``kubernetes``; it is imported if a cluster is given.
"""

from epp.doctor.cluster.view import Access, ClusterView, Kind, Need

__all__ = ["Access", "ClusterView", "Kind", "Need"]
