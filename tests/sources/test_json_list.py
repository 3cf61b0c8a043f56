"""A JSON list read item by item equals the list read at once, whatever the size of the chunks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyclegrpo.errors import DataError
from cyclegrpo.sources.json_list import iter_json_list

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(items=st.lists(JSON, max_size=5), chunk_chars=st.integers(1, 9), indent=st.sampled_from([None, 2]))
def test_equals_reading_at_once(
    tmp_path_factory: pytest.TempPathFactory, items: list[object], chunk_chars: int, indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("json") / "list.json"
    path.write_text(json.dumps(items, indent=indent), encoding="utf-8")
    assert list(iter_json_list(path, chunk_chars=chunk_chars)) == items


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file"),
        (b'{"a": 1}', "expected a JSON list"),
        (b"[1, 2", "cut short or broken after 1 items, at '2'"),
        (b'[{"a": ]', "cut short or broken after 0 items"),
        (b"[1] [2]", "followed by"),
        (b'["\xff"]', "not UTF-8"),
        (b"[1, " + b"[" * 100_000, "item 1 holds lists in lists"),
        (b"[1, " + b"1" * 5_000 + b"]", "cut short or broken after 1 items"),
    ],
)
def test_broken_files_name_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(iter_json_list(path))
    assert str(path) in str(caught.value)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert list(iter_json_list(path)) == [1]
