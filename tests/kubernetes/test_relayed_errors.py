"""An error that a relay passes on says and does what the call itself would have."""

import pytest

from epp.kubernetes.api import (
    ApiError,
    ConfigurationError,
    ConnectionFailedError,
    KubernetesApiError,
    UnreachableError,
)
from epp.kubernetes.api.relayed_errors import restored, written
from epp.kubernetes.api.resource import ApiCall

from .fake_api import GADGETS

LIST = ApiCall(verb="list", resource=GADGETS, namespace="d")
WATCH = ApiCall(verb="watch", resource=GADGETS, namespace="d")


@pytest.mark.parametrize(
    ("error", "type_"),
    [
        (ApiError(403, "Forbidden", "no", LIST), ApiError),
        (ApiError(410, "Expired", "", WATCH), ApiError),
        (UnreachableError("cannot connect to https://k:1: refused"), UnreachableError),
        (ConnectionFailedError("https://k:1 sent nothing for 30 s"), ConnectionFailedError),
        (ConfigurationError("no cluster"), ConnectionFailedError),
    ],
)
def test_an_error_arrives_as_what_it_is(
    error: KubernetesApiError, type_: type[KubernetesApiError]
) -> None:
    found = restored(written(error), WATCH)
    assert type(found) is type_
    assert str(found) == str(error)
    assert found.is_relayed
    assert not error.is_relayed
    if isinstance(error, ApiError) and isinstance(found, ApiError):
        assert (found.status, found.is_expired) == (error.status, error.is_expired)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error":"page failed"}'])
def test_a_response_that_is_no_error_of_a_relay_is_a_failed_connection(body: bytes) -> None:
    found = restored(body, WATCH)
    assert type(found) is ConnectionFailedError
    path = "/apis/example.com/v1alpha1/namespaces/d/gadgets"
    assert str(found).startswith(f"unexpected response of the relay to {path}: ")
    assert found.is_relayed
