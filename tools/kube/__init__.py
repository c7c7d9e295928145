"""Makes what the tests of ``make test-kube`` need: servers, clients, custom resource definitions.

``python -m tools.kube`` prints the folders; the servers themselves are started by
``tools.harness.kube``.
"""
