"""Fixtures of the tests of data sources."""

from collections.abc import Iterator

import pytest
from log_watch import Logs, watched_logs


@pytest.fixture
def logs() -> Iterator[Logs]:
    with watched_logs() as captured:
        yield captured
