"""Paths that try to escape, writes that are interrupted, and the same bytes for the same value."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cyclegrpo.errors import DataError
from cyclegrpo.files import (
    atomic_path,
    digest,
    remove_leftovers,
    require_writable,
    resolve_below,
    sha256_file,
    table_writer,
    write_bytes,
    write_json,
    write_table,
)

# Paths


@pytest.mark.parametrize(
    ("relative", "message"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("/etc/hostname", "absolute"),
        ("C:/a.jpg", "absolute"),
        ("\\\\server\\a", "absolute"),
        ("../outside.jpg", "leaves its root"),
        ("a/../../b", "leaves its root"),
        ("a\\..\\b", "leaves its root"),
        ("a\\0001.jpg", "backslash"),
    ],
)
def test_paths_that_escape_are_refused(tmp_path: Path, relative: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        resolve_below(tmp_path, relative)


def test_links_out_of_the_root_need_leave(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "x.jpg").write_bytes(b"x")
    (root / "file.jpg").symlink_to(outside / "x.jpg")
    (root / "folder").symlink_to(outside)
    (root / "inside.jpg").symlink_to("file.jpg")
    with pytest.raises(DataError, match="leads out"):
        resolve_below(root, "file.jpg")
    assert resolve_below(root, "file.jpg", allow_links=True) == root / "file.jpg"
    for allow_links in (False, True):
        with pytest.raises(DataError, match="leads out"):
            resolve_below(root, "folder/x.jpg", allow_links=allow_links)
    (root / "loop").symlink_to("loop")
    assert resolve_below(root, "loop") == root / "loop"


def test_a_root_that_is_a_link_is_a_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert resolve_below(tmp_path / "link", "a/b.jpg") == tmp_path / "link" / "a/b.jpg"


# Writing


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.txt"
    write_bytes(target, b"old")
    target.chmod(0o444)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), atomic_path(target) as temporary:
            temporary.write_bytes(b"half")
            raise error
        assert names_in(target.parent) == ["a.txt"] and target.read_bytes() == b"old"
    write_bytes(target, b"new")
    assert target.read_bytes() == b"new"


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for names in (["a", "b"], ["c"]):
        with atomic_path(target) as temporary:
            temporary.mkdir()
            for name in names:
                (temporary / name).touch()
        assert names_in(target) == names
    assert names_in(tmp_path) == ["model"]


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_bytes(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_killed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    script = (
        "import os, sys; from cyclegrpo.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as t:\n t.touch(); os._exit(9)"
    )
    process = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert process.returncode == 9 and target.read_text() == "old"


def test_json_is_the_same_bytes_for_the_same_value(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": ["é"]})
    assert (tmp_path / "a.json").read_bytes() == '{\n  "a": [\n    "é"\n  ],\n  "b": 1\n}\n'.encode()
    with pytest.raises(ValueError):
        write_json(tmp_path / "nan.json", float("nan"))
    assert not (tmp_path / "nan.json").exists()


def test_a_table_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    table = pa.table({"id": range(2500), "text": ["x"] * 2500})
    for name in ("a.parquet", "b.parquet"):
        write_table(tmp_path / name, table, row_group_size=1000)
    assert sha256_file(tmp_path / "a.parquet") == sha256_file(tmp_path / "b.parquet")
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 3
    assert pq.read_table(tmp_path / "a.parquet").equals(table)


@pytest.mark.parametrize("num_rows", [0, 999, 1000, 2500])
def test_rows_are_written_as_they_come(tmp_path: Path, num_rows: int) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    rows = [{"id": number, "text": "x"} for number in range(num_rows)]
    for name, size in (("a.parquet", 7), ("b.parquet", 3000)):
        with table_writer(tmp_path / name, schema) as write:
            for start in range(0, num_rows, size):
                write(rows[start : start + size])
    assert sha256_file(tmp_path / "a.parquet") == sha256_file(tmp_path / "b.parquet")
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == rows
    metadata = pq.ParquetFile(tmp_path / "a.parquet").metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert sizes == {0: [0], 999: [999], 1000: [1000], 2500: [1000, 1000, 500]}[num_rows]


def test_a_table_whose_rows_are_cut_off_is_not_written(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        table_writer(tmp_path / "a.parquet", pa.schema([("id", pa.int64())])) as write,
    ):
        write([{"id": 1}])
        raise KeyboardInterrupt
    assert names_in(tmp_path) == []


def test_digest_is_canonical() -> None:
    expected = hashlib.sha256(b'[1,{"a":"\\u00e9"}]').hexdigest()
    assert digest(1, {"a": "é"}) == expected
    assert digest([1, 2]) != digest(1, 2)
    with pytest.raises(TypeError):
        digest(Path("a"))


def test_a_data_error_keeps_its_parts_on_the_way_from_a_worker() -> None:
    error = pickle.loads(pickle.dumps(DataError("no mask.", file="x.json", record=3)))
    assert (error.message, error.file, error.record, str(error)) == (
        "no mask.",
        "x.json",
        3,
        "x.json, record 3: no mask.",
    )


def test_json_files_hold_what_was_written(tmp_path: Path) -> None:
    value = {"x": [1, 2.5, None, True]}
    write_json(tmp_path / "deep" / "er.json", value)
    assert json.loads((tmp_path / "deep" / "er.json").read_text()) == value


def test_a_folder_takes_the_place_of_the_one_that_a_link_leads_to(tmp_path):
    (tmp_path / "disk" / "models").mkdir(parents=True)
    (tmp_path / "disk" / "models" / "old").touch()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "models")
    with atomic_path(link) as temporary:
        temporary.mkdir()
        (temporary / "new").touch()
    assert link.is_symlink() and [path.name for path in link.iterdir()] == ["new"]
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["models"]


def test_leftovers_of_one_path_are_removed_and_nothing_else(tmp_path):
    for name in (".a.01234567.tmp", ".a.b.01234567.tmp", ".a.tmp", "a"):
        (tmp_path / name).mkdir()
    (tmp_path / ".a.89abcdef.tmp").touch()
    remove_leftovers(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.b.01234567.tmp", ".a.tmp", "a"]


def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path):
    require_writable(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory|exists"):
        require_writable(tmp_path / "file" / "folder")
