"""Tests of Kubernetes support; a package, so that its helpers can be imported."""
