"""One line and an exit code for whatever ends a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cyclegrpo.console import INTERRUPTED, SPIN_COUNT, guarded


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("disguise", [None, ModuleNotFoundError("Could not import module 'AutoProcessor'."), OSError()])
def test_an_interrupt_is_told_as_one_even_where_a_library_turns_it_into_its_own_error(disguise, capsys):
    def function():
        try:
            interrupt()
        except KeyboardInterrupt:
            if disguise is None:
                raise
            raise disguise from None

    outer = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C
    try:
        assert guarded("train", function) == INTERRUPTED
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, outer)
    assert capsys.readouterr().err == "train: error: interrupted; run it again to continue.\n"


def test_a_fault_of_ours_passes_with_its_traceback():
    def function():
        raise ModuleNotFoundError("no module named 'x'")

    with pytest.raises(ModuleNotFoundError):
        guarded("train", function)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_waiting_threads_give_way_unless_the_user_says_how_they_wait(given, expected, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what `guarded` sets does not outlive the test either
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen = []
    guarded("train", lambda: seen.append(os.environ.get("GOMP_SPINCOUNT")))
    assert seen == [expected]


@pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP is torch's on Linux")
def test_the_threads_of_torch_hear_of_it():
    code = "from cyclegrpo.console import guarded; guarded('train', lambda: __import__('torch') and None)"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    told = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True
    )
    assert f"GOMP_SPINCOUNT = '{SPIN_COUNT}'" in told.stderr
