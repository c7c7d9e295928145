"""Tests of the HTTP/2 state machine, bytes against bytes."""
