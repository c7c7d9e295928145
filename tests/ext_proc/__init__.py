"""Tests of the ext_proc stream."""
