"""DenseWorld files: where the regions of an answer are found, and what is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cyclegrpo.errors import DataError
from cyclegrpo.sources import Record, Skip
from cyclegrpo.sources.denseworld import find_regions, read_denseworld
from tests.sources.broken import broken

T1 = "<|mt_start|><|mt_0010|><|mt_0276|><|mt_end|>"
T2 = "<|mt_start|><|mt_0011|><|mt_0279|><|mt_end|>"
TORN = "<|mt_start|><|mt_0010|><|mt_0276|>"
THREE_CODES = "<|mt_start|><|mt_0001|><|mt_0300|><|mt_0301|><|mt_end|>"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (f"A {T1} near {T2} and {T1}.", [T1, T2, T1]),
        (f'x ```json\n[{{"mask_2d": "{T1}", "label": "p"}}, {{"mask_2d": "{T2}"}}]\n``` y', [T1, T2]),
        (f'x ```json\n[{{"mask_2d": "{T1}"}}, {{"label": "p"}}]\n``` y', [T1]),  # one item lacks it: back to the text
        (f'x ```json\n[{{"no_mask": 1}}]\n``` then {T2}', [T2]),
        (f"```json\n[broken\n``` {T1}", [T1]),
        (f'```json\n{{"mask_2d": "{T1}"}}\n```', [T1]),  # an object, not a list
        (THREE_CODES, [THREE_CODES]),  # the regions stage counts it
        (f"A {TORN} near {T2}.", [TORN, T2]),  # torn groups too: none vanishes
        (f"A {TORN}{T2}.", [TORN, T2]),
        ("A <|mt_0276|><|mt_end|>", ["<|mt_0276|><|mt_end|>"]),
        (f"```json\n{'[' * 100_000}\n``` {T1}", [T1]),  # lists in lists without end
        (f"```json\n[{'1' * 5_000}]\n``` {T1}", [T1]),  # a number of too many digits
        ("no masks in this answer", []),
        ("", []),
    ],
)
def test_regions_of_an_answer(answer: str, expected: list[str]) -> None:
    assert [region.tokens for region in find_regions(answer)] == expected


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def entry(image: Any, answer: str = T1) -> dict[str, Any]:
    return {"image": image, "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": answer}]}


def test_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [entry("a/1.jpg"), entry(["a/2.jpg", "a/3.jpg"]), entry("a/4.jpg", "nothing")])
    first, second, third = read_denseworld(path, name="dw")
    assert isinstance(first, Record) and isinstance(second, Record) and isinstance(third, Skip)
    assert (first.record_id, first.image, first.kind, first.text) == ("dw/0", "a/1.jpg", "describe", None)
    assert second.image == "a/2.jpg"
    assert (third.record_id, third.reason) == ("dw/2", "no_regions")


@pytest.mark.parametrize(
    "broken",
    [
        7,
        {},
        {"image": [], "conversations": []},
        {"image": "a.jpg"},
        {"image": "a.jpg", "conversations": [{"value": "?"}]},
        {"image": "a.jpg", "conversations": [{"value": "?"}, {"value": None}]},
        {"image": "a.jpg", "conversations": ["?", "!"]},
        {"image": "\ud83d.jpg", "conversations": [{"value": "?"}, {"value": T1}]},
    ],
)
def test_malformed_records_are_skipped_with_a_sentence(tmp_path: Path, broken: Any) -> None:
    skip, record = read_denseworld(write(tmp_path / "a.json", [broken, entry("a.jpg")]), name="dw")
    assert isinstance(skip, Skip) and skip.reason == "malformed_record" and skip.message
    assert isinstance(record, Record) and record.record_id == "dw/1"


def test_whatever_is_broken_gives_records_or_skips(tmp_path: Path) -> None:
    fenced = f'x ```json\n[{{"mask_2d": "{T1}", "label": "p"}}]\n```'
    for entries in broken([entry(["a.jpg"], fenced)]):
        for item in read_denseworld(write(tmp_path / "a.json", entries), name="dw"):
            assert (item.image if isinstance(item, Record) else item.message).encode()
    for items in broken([{"mask_2d": T1, "label": "p"}]):
        for region in find_regions(f"```json\n{json.dumps(items)}\n```"):
            assert region.tokens is not None
            assert (region.label or "none").encode()


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.json: cannot be read"):
        list(read_denseworld(tmp_path / "none.json", name="dw"))
