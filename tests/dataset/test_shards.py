"""Finished shards are used again exactly when they would come out the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cyclegrpo.dataset import shards
from cyclegrpo.dataset.shards import Item, ShardResult, ShardStore
from cyclegrpo.errors import DataError
from cyclegrpo.sources import Skip


class Doubler:
    """Doubles numbers, skips negative ones, and counts the shards that it was asked for."""

    def __init__(self, die_at: int | None = None) -> None:
        self.num_shards, self.die_at = 0, die_at

    def __call__(self, items: Sequence[Item]) -> ShardResult:
        if self.num_shards == self.die_at:
            raise KeyboardInterrupt
        self.num_shards += 1
        rows = [{"double": 2 * item["number"]} for item in items if item["number"] >= 0]
        return ShardResult(rows, [Skip(str(item["number"]), "negative") for item in items if item["number"] < 0])


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_IMAGES", 2)


def run(store: ShardStore, of: list[Item], compute: Doubler) -> ShardResult:
    """All shards' results as one."""
    whole = ShardResult()
    for result in store.run(of, compute):
        whole.rows += result.rows
        whole.skips += result.skips
    return whole


def items(*numbers: int) -> list[Item]:
    return [{"number": number} for number in numbers]


def test_rows_and_skips_in_order(tmp_path: Path) -> None:
    result = run(ShardStore(tmp_path / "s", {}), items(1, -2, 3, 4, -5), Doubler())
    assert [row["double"] for row in result.rows] == [2, 6, 8]
    assert [skip.record_id for skip in result.skips] == ["-2", "-5"]
    assert run(ShardStore(tmp_path / "s", {}), items(1, -2, 3, 4, -5), Doubler(die_at=0)) == result


def test_after_a_kill_only_the_rest_is_computed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(ShardStore(tmp_path / "s", {}), items(*range(8)), Doubler(die_at=3))
    assert len(list((tmp_path / "s").iterdir())) == 3
    doubler = Doubler()
    result = run(ShardStore(tmp_path / "s", {}), items(*range(8)), doubler)
    assert doubler.num_shards == 1
    assert [row["double"] for row in result.rows] == list(range(0, 16, 2))


@pytest.mark.parametrize(
    ("settings", "numbers", "num_computed"),
    [
        ({"q": 1}, range(6), 0),
        ({"q": 2}, range(6), 3),
        ({"q": 1}, range(8), 1),  # what was there before stays
        ({"q": 1}, range(4), 0),
        ({"q": 1}, [9, 1, 2, 3, 4, 5], 1),
    ],
)
def test_what_is_computed_again(
    tmp_path: Path, settings: dict[str, int], numbers: Sequence[int], num_computed: int
) -> None:
    run(ShardStore(tmp_path / "s", {"q": 1}), items(*range(6)), Doubler())
    doubler = Doubler()
    run(ShardStore(tmp_path / "s", settings), items(*numbers), doubler)
    assert doubler.num_shards == num_computed
    assert len(list((tmp_path / "s").iterdir())) == len(numbers) // 2  # shards out of date are removed


def test_a_run_on_some_of_the_items_keeps_the_shards_of_the_whole(tmp_path: Path) -> None:
    run(ShardStore(tmp_path / "s", {}), items(*range(6)), Doubler())
    run(ShardStore(tmp_path / "s", {}, keep_others=True), items(0, 1, 2), Doubler())
    doubler = Doubler()
    run(ShardStore(tmp_path / "s", {}), items(*range(6)), doubler)
    assert doubler.num_shards == 0


def test_a_run_on_some_of_the_items_removes_the_shards_of_other_settings(tmp_path: Path) -> None:
    run(ShardStore(tmp_path / "s", {"q": 1}), items(*range(6)), Doubler())
    run(ShardStore(tmp_path / "s", {"q": 2}, keep_others=True), items(0, 1), Doubler())
    assert len(list((tmp_path / "s").iterdir())) == 1


def test_a_shard_that_goes_while_it_is_read_is_told(tmp_path: Path) -> None:
    results = ShardStore(tmp_path / "s", {}).run(items(*range(4)), Doubler())
    next(results)
    for path in (tmp_path / "s").glob("*.json"):
        path.unlink()
    with pytest.raises(DataError, match="start the stage again"):
        next(results)


def test_other_code_computes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(ShardStore(tmp_path / "s", {}), items(1), Doubler())
    monkeypatch.setattr(shards, "code_digest", lambda: "other")
    doubler = Doubler()
    run(ShardStore(tmp_path / "s", {}), items(1), doubler)
    assert doubler.num_shards == 1


def test_a_shard_whose_files_are_gone_is_computed_again(tmp_path: Path) -> None:
    run(ShardStore(tmp_path / "s", {}), items(1, 2, 3), Doubler())
    doubler = Doubler()
    run(ShardStore(tmp_path / "s", {}, still_valid=lambda result: len(result.rows) == 2), items(1, 2, 3), doubler)
    assert doubler.num_shards == 1


@pytest.mark.parametrize("content", ["", '{"rows": [', "[]", '{"rows": []}', '{"rows": [], "skips": [3]}'])
def test_a_damaged_shard_is_computed_again(tmp_path: Path, content: str) -> None:
    store = ShardStore(tmp_path / "s", {})
    whole = run(store, items(1, 2, 3), Doubler())
    next((tmp_path / "s").glob("*.json")).write_text(content)
    doubler = Doubler()
    assert run(store, items(1, 2, 3), doubler) == whole and doubler.num_shards == 1


def test_no_items(tmp_path: Path) -> None:
    assert run(ShardStore(tmp_path / "s", {}), [], Doubler()) == ShardResult()
