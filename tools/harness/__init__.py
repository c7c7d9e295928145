"""Test harnesses for parts of the endpoint picker, shared by the tests and the programs."""
