"""Writes the files that are made from the Helm chart, and those that the chart copies.

``python -m tools.chart docs`` copies files into the chart and writes the table of values in
docs/helm.md; ``python -m tools.chart kustomize`` renders deploy/kustomize, which needs helm.
"""
