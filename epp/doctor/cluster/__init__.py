"""What a Kubernetes cluster has of what the endpoint picker needs.

`epp.doctor.cluster.asking` needs the extra ``kubernetes``; it is imported where a cluster is given.
"""

from epp.doctor.cluster.view import Access, ClusterView, Kind, Need

__all__ = ["Access", "ClusterView", "Kind", "Need"]
