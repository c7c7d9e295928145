"""Errors of the API server."""

import httpx


class KubeError(Exception):
    """Root of this package's errors."""


class ApiServerError(KubeError):
    """The API server does not start."""


class RefusedError(KubeError):
    """The API server refused a request."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        request = response.request
        try:
            reason = response.json()["message"]
        except (ValueError, KeyError):
            reason = response.text
        super().__init__(f"{request.method} {request.url}: {self.status}: {reason}")
