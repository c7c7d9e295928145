"""Writes what follows from the Helm chart and what the chart takes from elsewhere.

``python -m tools.chart docs`` copies files into the chart and writes the table of values in
docs/helm.md; ``python -m tools.chart kustomize`` renders deploy/kustomize, which needs helm.
"""
