"""Builds kube-apiserver and etcd, which the tests of ``make test-kube`` run.

``python -m tools.kube`` prints the folder with both programs; the servers themselves are started
by ``tools.harness.kube``.
"""
