"""Tests of the pages; a package, so that the parser can be imported."""
