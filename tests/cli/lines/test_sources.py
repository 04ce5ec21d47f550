"""Lines of a pipe: none is missed, and neither is the signal that ends them."""

import itertools
import os
import signal
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.cli.lines import Stop, lines_of

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and pipes of POSIX")


@contextmanager
def pipe():
    reading, writing = os.pipe()
    with open(reading) as file, open(writing, "wb", buffering=0) as end:
        yield file, end


@given(
    text=st.text(alphabet="aé漢 \r\n\t,", max_size=60),
    cuts=st.lists(st.integers(min_value=0, max_value=120), max_size=8),
)
@settings(deadline=None, max_examples=60)
def test_a_pipe_gives_the_lines_that_a_text_file_gives(tmp_path_factory, text, cuts):
    path, written = tmp_path_factory.getbasetemp() / "lines.txt", text.encode()
    path.write_bytes(written)
    with path.open(encoding="utf-8") as file:
        expected = [line for line in file if line.strip()]
    with pipe() as (file, end), Stop().listening() as stop:
        edges = sorted({0, len(written), *(min(cut, len(written)) for cut in cuts)})

        def write():
            for first, last in itertools.pairwise(edges):
                end.write(written[first:last])
            end.close()

        writer = threading.Thread(target=write)
        writer.start()
        assert list(lines_of(file, stop)) == expected
        writer.join()


def test_a_signal_ends_the_wait_even_where_python_has_not_heard_of_it_yet():
    # Another thread of the process gets the signal, so the system does not interrupt the wait of this one: as where
    # a signal comes between Python's last look and the wait.
    with pipe() as (file, end), Stop().listening() as stop:
        is_blocked, has_ended, was_missed = threading.Event(), threading.Event(), threading.Event()

        def send():
            is_blocked.wait(10)
            threading.Event().wait(0.2)  # the other thread waits for a line by now
            os.kill(os.getpid(), signal.SIGTERM)
            if not has_ended.wait(10):
                was_missed.set()
                end.write(b"the wait ends at last\n")

        sender = threading.Thread(target=send)
        sender.start()
        end.write(b"one\n")
        lines = lines_of(file, stop)
        assert next(lines) == "one\n"
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        is_blocked.set()
        try:
            rest = list(lines)
        finally:
            has_ended.set()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        sender.join()
        assert not was_missed.is_set()
        assert rest == []
        assert stop.is_asked


def test_lines_that_came_before_the_signal_are_not_begun():
    with pipe() as (file, end), Stop().listening() as stop:
        end.write(b"one\ntwo\n")
        lines = lines_of(file, stop)
        assert next(lines) == "one\n"
        signal.raise_signal(signal.SIGTERM)
        assert list(lines) == []


def test_handlers_and_the_wakeup_descriptor_are_put_back():
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}
    with Stop().listening():
        assert all(signal.getsignal(kind) is not handler for kind, handler in before.items())
    assert {kind: signal.getsignal(kind) for kind in before} == before
    assert signal.set_wakeup_fd(-1) == -1
