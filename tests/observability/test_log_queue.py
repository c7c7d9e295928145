"""The queue of log lines: written and dropped lines, without blocking."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from epp.observability.log_queue import FileLock, LogCollector, LogQueue

SECONDS = 10.0
PIPE_BYTES = 64 << 10


@dataclass(slots=True)
class Pipe:
    """A pipe, and what was read of it."""

    reading: int
    writing: int
    text: bytes = field(default=b"")

    def until(self, part: bytes) -> bytes:
        """Read until ``part`` was read; return all that was."""
        while part not in self.text:
            self.text += os.read(self.reading, 1 << 20)
        return self.text

    def fill(self) -> None:
        """Leave no room in it."""
        os.set_blocking(self.writing, False)
        with suppress(BlockingIOError):
            while os.write(self.writing, b"."):
                pass
        os.set_blocking(self.writing, True)

    def lines(self, last: bytes) -> list[bytes]:
        return self.until(last + b"\n").splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe(*os.pipe())
    yield made
    for descriptor in (made.reading, made.writing):
        with suppress(OSError):  # the test has closed it
            os.close(descriptor)


def notice(count: int) -> bytes:
    return b"dropped %d\n" % count


def make_queue(
    pipe: Pipe,
    *,
    max_bytes: int = 1 << 20,
    max_lines: int = 100_000,
    lock: FileLock | None = None,
) -> LogQueue:
    return LogQueue(pipe.writing, notice, max_bytes=max_bytes, max_lines=max_lines, lock=lock)


@pytest.fixture
def lock(tmp_path: Path) -> FileLock:
    """With a lock, every line is written by the thread."""
    # Never closed: a thread may release the lock after the end of the test.
    return FileLock(os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT))


def test_lines_are_written_in_the_order_in_which_they_were_put(pipe: Pipe) -> None:
    queue = make_queue(pipe)
    expected = [b"line %d" % number for number in range(10_000)]
    for line in expected:
        queue.put(line + b"\n")
    assert pipe.lines(expected[-1]) == expected
    assert queue.flush(SECONDS)
    assert queue.dropped_full == queue.dropped_failed == 0


def test_lines_are_written_at_once_while_the_pipe_has_room(pipe: Pipe) -> None:
    queue = make_queue(pipe)
    queue.put(b"one\n")
    assert os.read(pipe.reading, 100) == b"one\n"
    pipe.fill()
    queue.put(b"two\n")  # must not wait
    queue.put(b"three\n")
    assert pipe.until(b"three\n").lstrip(b".") == b"two\nthree\n"
    assert queue.flush(SECONDS)
    queue.put(b"four\n")
    assert os.read(pipe.reading, 100) == b"four\n"
    assert os.get_blocking(pipe.writing)


def test_lines_that_a_pipe_may_take_in_part_are_written_by_the_thread(pipe: Pipe) -> None:
    queue = make_queue(pipe)
    long, short = b"x" * 10_000, b"y" * 100
    for _ in range(50):
        queue.put(long + b"\n")
        queue.put(short + b"\n")
    queue.put(b"end\n")
    assert pipe.lines(b"end") == [long, short] * 50 + [b"end"]


def test_lines_for_a_file_and_with_a_lock_are_written_by_the_thread(
    pipe: Pipe, lock: FileLock, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("wb") as file:
        for queue in (LogQueue(file.fileno(), notice), make_queue(pipe, lock=lock)):
            queue.put(b"line\n")
            assert queue.flush(SECONDS)
            assert queue._thread is not None
    assert (tmp_path / "log").read_bytes() == pipe.until(b"line\n") == b"line\n"


def test_lines_for_nobody_need_no_thread() -> None:
    with Path(os.devnull).open("wb") as file:
        queue = LogQueue(file.fileno(), notice)
        queue.put(b"line\n")
        assert queue._thread is None


def test_a_reader_that_leaves_is_noticed(pipe: Pipe) -> None:
    queue = make_queue(pipe)
    queue.put(b"read\n")
    os.close(pipe.reading)
    for _ in range(2):
        queue.put(b"lost\n")
    assert queue.flush(SECONDS)
    assert queue.dropped_failed == 2


def test_what_has_no_room_is_dropped_counted_and_reported_when_the_pipe_moves(pipe: Pipe) -> None:
    queue = make_queue(pipe, max_bytes=10_000)
    pipe.fill()
    for number in range(12):
        queue.put(b"%999d\n" % number)
    assert queue.dropped_full == 2
    assert not queue.flush(0.0)  # it is stuck
    lines = pipe.lines(b"dropped 2")
    assert [int(line.strip(b".")) for line in lines[:-1]] == [*range(10)]
    assert queue.flush(SECONDS)
    queue.put(b"again\n")
    assert pipe.lines(b"again")[-1] == b"again"


def test_so_many_lines_wait_and_no_more(
    pipe: Pipe, lock: FileLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(pipe, max_lines=10, lock=lock)
    writing, may_go_on = threading.Event(), threading.Event()
    write = os.write

    def slow(descriptor: int, data: memoryview) -> int:
        writing.set()
        assert may_go_on.wait(SECONDS)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    queue.put(b"being written\n")
    assert writing.wait(SECONDS)
    for number in range(15):
        queue.put(b"line %d\n" % number)
    may_go_on.set()
    assert queue.dropped_full == 5
    *lines, notice = pipe.lines(b"dropped 5")
    assert lines == [b"being written", *(b"line %d" % number for number in range(10))]
    assert notice == b"dropped 5"


def test_a_line_that_never_has_room_is_reported_at_once(pipe: Pipe, lock: FileLock) -> None:
    queue = make_queue(pipe, max_bytes=10, lock=lock)
    queue.put(b"x" * 10 + b"\n")
    assert pipe.lines(b"dropped 1") == [b"dropped 1"]


def test_room_is_given_back_as_lines_are_written(pipe: Pipe, lock: FileLock) -> None:
    queue = make_queue(pipe, max_bytes=1000, lock=lock)
    for _ in range(10):
        queue.put(b"x" * 999 + b"\n")
        assert queue.flush(SECONDS)
    assert queue.dropped_full == 0


def test_nobody_to_read_loses_lines_and_nothing_else(pipe: Pipe) -> None:
    os.close(pipe.reading)
    queue = make_queue(pipe)
    for _ in range(3):
        queue.put(b"lost\n")
    assert queue.flush(SECONDS)
    assert queue.dropped_failed == 3
    queue.put(b"lost\n")
    assert queue.flush(SECONDS)
    assert queue.dropped_failed == 4


def test_a_descriptor_that_another_process_made_non_blocking_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    queue = make_queue(pipe)
    expected = [b"%999d" % number for number in range(300)]
    for line in expected:
        queue.put(line + b"\n")
    assert pipe.lines(expected[-1]) == expected
    assert queue.dropped_failed == 0


def test_a_line_after_one_that_was_written_in_part_begins_anew(pipe: Pipe) -> None:
    queue = make_queue(pipe)
    queue.put(b"x" * (2 * PIPE_BYTES) + b"\n")
    assert os.read(pipe.reading, 1) == b"x"
    os.close(pipe.reading)
    assert queue.flush(SECONDS)
    assert queue.dropped_failed == 1
    reading, writing = os.pipe()
    os.dup2(writing, pipe.writing)
    queue.put(b"whole\n")
    assert queue.flush(SECONDS)
    assert os.read(reading, 100) == b"\nwhole\n"
    os.close(reading)
    os.close(writing)


def test_lines_of_many_threads_are_whole_and_in_the_order_of_each(pipe: Pipe) -> None:
    queue = make_queue(pipe, max_bytes=10 << 20)
    begin = threading.Barrier(8)

    def put(thread: int) -> None:
        begin.wait()
        for number in range(1000):
            queue.put(b"%d %d\n" % (thread, number))

    threads = [threading.Thread(target=put, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    by_thread: dict[int, list[int]] = {thread: [] for thread in range(8)}
    while sum(map(len, by_thread.values())) < 8000:
        *lines, pipe.text = (pipe.text + os.read(pipe.reading, 1 << 20)).split(b"\n")
        for line in lines:
            number, place = map(int, line.split())
            by_thread[number].append(place)
    for thread in threads:
        thread.join()
    assert all(places == list(range(1000)) for places in by_thread.values())


def test_a_thread_that_cannot_be_started_is_started_with_a_later_line(
    pipe: Pipe, lock: FileLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(pipe, lock=lock)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        queue.put(b"one\n")
    queue.put(b"two\n")
    assert pipe.lines(b"two") == [b"one", b"two"]


def test_a_thread_that_has_died_is_replaced(
    pipe: Pipe, lock: FileLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(pipe, lock=lock)
    died = threading.Event()

    def write(_: int, __: object) -> int:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        patched.setattr(threading, "excepthook", lambda _: died.set())
        queue.put(b"lost\n")
        assert died.wait(SECONDS)
    queue.put(b"written\n")
    assert pipe.lines(b"written") == [b"written"]


def test_a_line_that_is_put_while_a_line_is_put_in_the_same_thread_is_written(pipe: Pipe) -> None:
    # As a finalizer does that the garbage collector calls at any time.
    queue = make_queue(pipe)
    with queue._lock:
        queue.put(b"line\n")
    assert pipe.lines(b"line") == [b"line"]


FORK = """
import os
from epp.observability.log_queue import LogQueue
queue = LogQueue(1, lambda count: b"")
queue.put(b"parent\\n")
if not os.fork():
    queue.put(b"child\\n")
    queue.flush(10)
    os._exit(0)
os.wait()
queue.flush(10)
"""


def test_a_line_that_the_writer_puts_as_it_tells_that_all_is_written_is_written(
    pipe: Pipe, lock: FileLock
) -> None:
    """A collection of garbage may begin anywhere, in the writer's thread, too."""
    queue = make_queue(pipe, lock=lock)
    finalizers = [lambda: queue.put(b"from a finalizer\n")]

    def collect(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "notify_all" and finalizers:
            finalizers.pop()()

    threading.setprofile(collect)
    try:
        queue.put(b"first\n")
    finally:
        threading.setprofile(None)
    assert queue.flush(SECONDS)
    assert pipe.lines(b"from a finalizer") == [b"first", b"from a finalizer"]


def test_a_forked_process_writes_its_own_lines_and_not_its_parents() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, check=True)
    assert sorted(done.stdout.splitlines()) == [b"child", b"parent"]


def test_dropped_lines_are_a_metric(pipe: Pipe) -> None:
    queue, other = make_queue(pipe), make_queue(pipe)
    queue.dropped_full, other.dropped_full, other.dropped_failed = 2, 3, 4
    registry = CollectorRegistry()
    registry.register(LogCollector(lambda: [queue, other]))
    page = generate_latest(registry).decode()
    assert 'llm_d_epp_log_lines_dropped_total{reason="queue-full"} 5.0' in page
    assert 'llm_d_epp_log_lines_dropped_total{reason="write-failed"} 4.0' in page
