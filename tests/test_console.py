"""One line and an exit code for whatever ends a command."""

from __future__ import annotations

import os
import signal

import pytest

from cyclegrpo.console import INTERRUPTED, guarded


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
