"""The cases, by the part of the reference's tests that they are from."""

from parity.cases.answers import ANSWERS
from parity.cases.director import DIRECTOR
from parity.cases.grpc import GRPC_CASES
from parity.cases.http import HTTP
from parity.cases.refusals import REFUSALS

CASES = (*HTTP, *REFUSALS, *ANSWERS, *GRPC_CASES, *DIRECTOR)

__all__ = ["CASES"]
