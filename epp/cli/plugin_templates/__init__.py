"""What ``epp plugins new`` writes: for each kind a working plugin and its test, under new names."""
