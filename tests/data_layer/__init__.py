"""Tests of the data layer; a package, so that its helpers can be imported."""
