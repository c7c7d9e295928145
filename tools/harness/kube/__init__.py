"""A real Kubernetes API server for tests, and the objects that an endpoint picker reads."""
