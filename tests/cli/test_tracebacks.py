"""Tracebacks of commands: frames without the values of variables."""

import subprocess
import sys
from pathlib import Path

CODE = """
import sys, structlog, epp.cli

def breaks() -> None:
    secret_prompt = "the clients" + " words"
    try:
        1 / 0
    except ZeroDivisionError as error:
        structlog.get_logger().error("it failed", exc_info=error)

epp.cli.cli = breaks
epp.cli.main()
"""


def test_a_traceback_that_a_command_logs_has_no_locals(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CODE)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert "ZeroDivisionError" in ran.stdout
    assert "it failed" in ran.stdout
    assert "the clients words" not in ran.stdout
    assert "locals" not in ran.stdout
