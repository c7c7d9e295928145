"""The audit log of an API server is read while it is written."""

import json
from pathlib import Path

from tools.harness.kube.audit import AuditLog, Right


def event(user: str, verb: str, decision: str = "allow") -> str:
    document = {
        "user": {"username": user},
        "verb": verb,
        "objectRef": {"resource": "pods", "subresource": "status"},
        "annotations": {"authorization.k8s.io/decision": decision},
    }
    return json.dumps(document) + "\n"


def test_a_line_that_is_not_whole_yet_is_left_for_later(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    (path,) = (Path(flag.partition("=")[2]) for flag in log.flags if "log-path" in flag)
    whole, rest = event("a", "get") + event("b", "list"), event("a", "patch", "forbid")
    for length in range(len(rest)):
        path.write_text(whole + rest[:length])
        assert log.used(["a"]) == {Right("", "pods/status", "get")}
        assert log.refused(["a"]) == set()
    path.write_text(whole + rest)
    assert log.used(["a"]) == {Right("", "pods/status", "get")}
    assert log.refused(["a"]) == {Right("", "pods/status", "patch")}
