"""Programs of Debian packages that the tests of this folder run."""

import asyncio
import shutil

PACKAGES = {
    "h2load": "nghttp2-client",
    "nghttp": "nghttp2-client",
    "chromium": "chromium",
    "curl": "curl",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",
    "systemd-analyze": "systemd",
}


def find(name: str) -> str:
    """Return the path of a program.

    Raises:
        AssertionError: It is not installed; these tests are run to be seen to pass, not skipped.
    """
    path = shutil.which(name)
    assert path, f"{name} is missing: apt-get install {PACKAGES[name]}"
    return path


async def output(name: str, *arguments: object) -> str:
    """Run a program and return what it writes; it has to succeed."""
    process = await asyncio.create_subprocess_exec(
        find(name),
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        written, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    text = written.decode("utf-8", "replace")
    assert process.returncode == 0, text
    return text
