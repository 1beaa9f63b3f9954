"""Ctrl-C ends a command soon, also while Python cannot run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import hashlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background
from fedspam.app import interrupt
from fedspam.app.interrupt import ending_soon
interrupt.UNWIND = {unwind}
try:
    with ending_soon():
        print("begun", flush=True)
        {work}
except KeyboardInterrupt:
    sys.exit(7)
"""
IN_PYTHON = "time.sleep(600)"
IN_C = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"  # like the compiler: no handler runs until it returns


SWALLOWED = """
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            time.sleep(600)"""


def wait_until_at_work(pid):
    """Until it sleeps, or has computed for longer than it needs to begin: by its own clock, on a busy machine too."""
    asleep, ticks = 0, []
    while asleep < 5 and (not ticks or ticks[-1] - ticks[0] < os.sysconf("SC_CLK_TCK")):  # a second of a processor
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        asleep = asleep + 1 if facts[0] == "S" else 0  # a process that waits for a processor does not sleep
        ticks.append(int(facts[11]) + int(facts[12]))
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("work", "code", "told"),
    [(IN_PYTHON, 7, ""), (IN_C, 130, "fedspam run --resume"), (SWALLOWED, 130, "fedspam run --resume")],
)
@pytest.mark.slow
def test_an_interrupt_ends_it(work, code, told):
    # an interrupt that Python sees has all the time to unwind; the others are ended soon
    program = [sys.executable, "-c", PROGRAM.format(work=work, unwind=300 if code == 7 else 0.5)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    wait_until_at_work(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=300)
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
