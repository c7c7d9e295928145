"""The build under test: pure Python or, with ``make test COMPILED=1``, the compiled one."""

import os
import subprocess
import sys
from importlib import import_module

import pytest
from compiled_modules import compiled_modules

from epp.compiled import IS_COMPILED
from tools import REPOSITORY

WANTED = os.environ.get("EPP_COMPILED") == "1"
SUFFIX = ".so" if WANTED else ".py"


def test_the_build_that_was_asked_for_is_the_one_that_runs() -> None:
    assert IS_COMPILED is WANTED


@pytest.mark.parametrize("name", compiled_modules())
def test_every_listed_module_runs_in_that_build(name: str) -> None:
    file = import_module(name).__file__
    assert file is not None
    assert file.endswith(SUFFIX)


@pytest.mark.parametrize("name", ["epp.request_control.plugins", "epp.scheduling.plugins"])
def test_contracts_are_interpreted_in_both(name: str) -> None:
    file = import_module(name).__file__
    assert file is not None
    assert file.endswith(".py")


def test_processes_of_the_tests_run_that_build_too() -> None:
    command = (sys.executable, "-c", "from epp.cli import main; main()", "--version")
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" (compiled)\n") is WANTED
