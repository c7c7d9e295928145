"""Tests of the scheduling framework."""
