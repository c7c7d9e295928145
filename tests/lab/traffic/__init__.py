"""Tests of the load generator; a package, so that its helpers can be imported."""
