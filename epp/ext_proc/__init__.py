"""Envoy external processing."""

from epp.ext_proc.interfaces import OneHandler, RequestHandler, RequestHandlers
from epp.ext_proc.pauses import LAST_CHUNK_SECONDS
from epp.ext_proc.pool_matching import MatchedPool, PoolMatcher
from epp.ext_proc.service import METHOD, ExtProcService
from epp.ext_proc.settings import ExtProcSettings
from epp.ext_proc.stream import ExtProcState, ExtProcStream

__all__ = [
    "LAST_CHUNK_SECONDS",
    "METHOD",
    "ExtProcService",
    "ExtProcSettings",
    "ExtProcState",
    "ExtProcStream",
    "MatchedPool",
    "OneHandler",
    "PoolMatcher",
    "RequestHandler",
    "RequestHandlers",
]
