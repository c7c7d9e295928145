"""The objects that the endpoint picker reads from a Kubernetes cluster and writes to it.

It needs the extra ``kubernetes``; it is imported only if Kubernetes is in use.
"""
