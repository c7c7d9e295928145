"""The inputs of the compiled wheel depend on the sources alone.

Its C is compared, which takes half a minute; that gcc makes equal extensions of it is left to gcc:
its input has no absolute path (docs/releases.md). The image's tests look for such paths.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from compiled_modules import names_by_folder
from source_copy import copy_sources

pytestmark = pytest.mark.timeout(600)

TRANSLATE = "import json, sys, hatch_build; hatch_build.written_in_c(json.loads(sys.argv[1]))"


def translated(folder: Path, hash_seed: str) -> dict[str, bytes]:
    """Translate a copy of the sources to C, and return the files by their paths."""
    copy = copy_sources(folder)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(copy)}
    command = (sys.executable, "-c", TRANSLATE, json.dumps(names_by_folder()))
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = copy / "build" / "mypyc" / "c"
    return {str(each.relative_to(made)): each.read_bytes() for each in made.rglob("*.[ch]")}


def test_the_c_of_a_build_in_another_folder_with_other_hashes_is_equal(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folders = (tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("elsewhere"))
    with ThreadPoolExecutor() as both:
        here, elsewhere = both.map(translated, folders, ("1", "2"))
    assert len(here) > len(list(names_by_folder()))
    assert here.keys() == elsewhere.keys()
    assert [name for name in here if here[name] != elsewhere[name]] == []
    for folder in folders:
        assert not [name for name, text in here.items() if str(folder).encode() in text]
