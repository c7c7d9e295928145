"""A copy of the sources, to build them elsewhere."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_sources(folder: Path) -> Path:
    """Copy what git does not ignore into a folder; every file gets a new time, now."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():  # not if it is deleted and not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder
