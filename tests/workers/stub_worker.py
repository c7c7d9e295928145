"""A worker that only talks to its supervisor: `stub_worker.py FOLDER`.

It notes its orders in FOLDER: a file for each order, named after the worker. A file
``fails-INDEX`` there makes it end with that status at once, ``silent-INDEX`` makes it report
nothing after its first report, ``dies-at-reload-INDEX`` makes it end when it is to reload.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

place = json.loads(os.environ["EPP_WORKER"])
index, folder = place["index"], Path(sys.argv[1])
stream = socket.socket(fileno=place["control"])
is_stopping = False


def stop(*_: object) -> None:
    global is_stopping  # noqa: PLW0603 - of a script
    is_stopping = True


signal.signal(signal.SIGTERM, stop)
if (status := folder / f"fails-{index}").exists():
    sys.exit(int(status.read_text()))
unfinished = folder / f"unfinished-{index}"
unfinished.write_text(str(os.getpid()))
unfinished.rename(folder / f"pid-{index}")  # in one step: a test may read it at any time
reports = 0
unread = b""
while not is_stopping:
    if not reports or not (folder / f"silent-{index}").exists():
        is_ready = not (folder / f"unready-{index}").exists()
        report = {"serves": True, "ready": is_ready, "streams": 0}
        stream.sendall(json.dumps(report).encode() + b"\n")
        reports += 1
    if select.select([stream], [], [], 0.02)[0]:
        data = stream.recv(4096)
        if not data:
            (folder / f"orphan-{index}").touch()
            break
        unread += data
        while b"\n" in unread:
            line, _, unread = unread.partition(b"\n")
            order = json.loads(line)
            if order.get("lead"):
                (folder / f"leads-{index}").write_text(str(time.time()))
            if order.get("reload") and (folder / f"dies-at-reload-{index}").exists():
                os._exit(9)
            if order.get("reload"):
                stream.sendall(json.dumps({"reloaded": [f"fault of {index}"]}).encode() + b"\n")
