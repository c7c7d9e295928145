"""Tests of the director, and the real one that the ext_proc tests run on."""
