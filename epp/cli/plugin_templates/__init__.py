"""Templates of ``epp plugins new``: a working plugin and its test for each kind."""
