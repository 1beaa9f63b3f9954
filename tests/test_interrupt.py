"""Ctrl-C ends a command soon, also while Python cannot run."""

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import hashlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background
from fedspam.app import interrupt
from fedspam.app.interrupt import ending_soon
interrupt.UNWIND = 0.5
try:
    with ending_soon():
        print("begun", flush=True)
        {work}
except KeyboardInterrupt:
    sys.exit(7)
"""
IN_PYTHON = "time.sleep(60)"
IN_C = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"  # like the compiler: no handler runs until it returns


SWALLOWED = """
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(60)"""


@pytest.mark.parametrize(
    ("work", "code", "told"),
    [(IN_PYTHON, 7, ""), (IN_C, 130, "fedspam run --resume"), (SWALLOWED, 130, "fedspam run --resume")],
)
@pytest.mark.slow
def test_an_interrupt_ends_it(work, code, told):
    program = [sys.executable, "-c", PROGRAM.format(work=work)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.2)  # until it is at work
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == code
    assert told in errors


def test_handlers_of_others_stay():
    from fedspam.app.interrupt import ending_soon

    mine = lambda number, frame: None
    before = signal.signal(signal.SIGINT, mine)
    try:
        with ending_soon():
            assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
    with ending_soon():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is before
