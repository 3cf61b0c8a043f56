"""Results come in order and errors come home, in this process and in workers."""

from __future__ import annotations

import os

import pytest

from cyclegrpo.dataset import processes
from cyclegrpo.dataset.processes import map_ordered
from cyclegrpo.errors import DataError


def square_and_process(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def refuse_three(number: int) -> int:
    if number == 3:
        raise DataError("cannot be read", file="3.jpg")
    return number


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_order(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WORTH_PROCESSES_S", 0.0)
    results = list(map_ordered(square_and_process, range(6), num_workers=num_workers))
    assert [square for square, _ in results] == [0, 1, 4, 9, 16, 25]
    others = {process for _, process in results} - {os.getpid()}
    assert bool(others) == (num_workers == 2)


def test_short_work_stays_here() -> None:
    assert {process for _, process in map_ordered(square_and_process, range(6), num_workers=2)} == {os.getpid()}


def test_an_error_in_a_worker_names_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WORTH_PROCESSES_S", 0.0)
    with pytest.raises(DataError, match=r"3\.jpg: cannot be read"):
        list(map_ordered(refuse_three, range(6), num_workers=2))


@pytest.mark.parametrize("num_items", [0, 1])
def test_nothing_left_for_workers(num_items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WORTH_PROCESSES_S", 0.0)
    assert len(list(map_ordered(square_and_process, range(num_items), num_workers=2))) == num_items
