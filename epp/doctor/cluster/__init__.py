"""What the endpoint picker needs of a Kubernetes cluster, and what the cluster has.

`epp.doctor.cluster.asking` needs the extra ``kubernetes``; it is imported where a cluster is given.
"""

from epp.doctor.cluster.view import Access, ClusterView, Kind, Need

__all__ = ["Access", "ClusterView", "Kind", "Need"]
