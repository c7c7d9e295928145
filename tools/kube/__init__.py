"""Makes the files for the tests of ``make test-kube``: servers, clients, resource definitions.

``python -m tools.kube`` prints the folders; the servers themselves are started by
``tools.harness.kube``.
"""
