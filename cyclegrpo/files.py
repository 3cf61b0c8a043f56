"""Files: atomic writes, digests, and paths that cannot escape a root.

Every writer makes the folders it needs, writes to a temporary name in the same folder and renames, so that a reader
never meets half a file.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from cyclegrpo.errors import DataError, printable_path

if TYPE_CHECKING:
    import pyarrow as pa

StrPath = str | os.PathLike[str]


@contextmanager
def atomic_path(path: StrPath) -> Iterator[Path]:
    """A temporary path beside `path`, with its suffix, that takes the place of `path` when the block ends well.

    The caller creates a file or a folder there. An existing file is replaced in one step, also a read-only one; an
    existing folder is removed just before the rename. When the block raises (Ctrl-C included) the temporary is removed
    and `path` is as it was. Parents of `path` are made. Where `path` is a link to a folder, that folder is replaced,
    and the link stays.
    """
    target = Path(path)
    if target.is_symlink() and target.is_dir():
        target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.tmp{target.suffix}")
    try:
        yield temporary
        if temporary.is_dir() and target.is_dir():
            shutil.rmtree(target)
        os.replace(temporary, target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def remove_leftovers(path: StrPath) -> None:
    """Removes what a killed process left beside a `path` that it wrote by `atomic_path`.

    Only for a path that nothing else writes meanwhile.
    """
    target = Path(path)
    if target.is_symlink() and target.is_dir():
        target = target.resolve()
    for leftover in target.parent.glob(f".{glob.escape(target.stem)}.{'[0-9a-f]' * 8}.tmp{glob.escape(target.suffix)}"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def require_writable(folder: StrPath) -> None:
    """Makes the folder and writes a file there for a moment: OSError before hours of work, not after them."""
    trial = Path(folder) / f".{secrets.token_hex(4)}.tmp"
    trial.parent.mkdir(parents=True, exist_ok=True)
    trial.touch()
    trial.unlink()


def share_weights(folder: StrPath) -> None:
    """Lets everybody read a model's weights who may read its config: safetensors keeps what it writes from others."""
    mode = (Path(folder) / "config.json").stat().st_mode
    for file in Path(folder).glob("*.safetensors"):
        file.chmod(mode)


def write_bytes(path: StrPath, data: bytes) -> None:
    """Writes the bytes to `path`, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: StrPath, text: str) -> None:
    """Writes the text to `path` as UTF-8 with the line ends as given, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: StrPath, obj: Any) -> None:
    """Writes the object to `path` as JSON, atomically: sorted keys, indent 2, a newline at the end.

    NaN and infinity are no JSON and raise ValueError; write None where a number does not exist.
    """
    write_text(path, json.dumps(obj, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_table(path: StrPath, table: pa.Table, *, row_group_size: int = 1000) -> None:
    """Writes the table to `path` as parquet (zstd), atomically. The same table gives the same bytes.

    Args:
        row_group_size: rows per group; a reader of one row reads one group.
    """
    import pyarrow.parquet as pq

    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, row_group_size=row_group_size, compression="zstd")


@contextmanager
def table_writer(
    path: StrPath, schema: pa.Schema, *, row_group_size: int = 1000
) -> Iterator[Callable[[Iterable[Mapping[str, Any]]], None]]:
    """A function that takes rows, for a table at `path` that appears when the block ends well; zstd, as `write_table`.

    No more than one row group is held. The same rows give the same bytes, however many are given at a time.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    pending: list[Mapping[str, Any]] = []
    num_groups = 0

    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:

        def write_group(rows: list[Mapping[str, Any]]) -> None:
            nonlocal num_groups
            writer.write_table(pa.Table.from_pylist(rows, schema=schema), row_group_size)
            num_groups += 1

        def write(rows: Iterable[Mapping[str, Any]]) -> None:
            for row in rows:
                pending.append(row)
                if len(pending) == row_group_size:
                    write_group(pending)
                    pending.clear()

        yield write
        if pending or not num_groups:
            write_group(pending)


def sha256_file(path: StrPath) -> str:
    """The SHA-256 of the file's bytes, 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*objects: Any) -> str:
    """The SHA-256 of the objects as canonical JSON, 64 hex digits: the same for equal values, whatever the order of
    keys.

    Takes what JSON can hold (a pydantic model: its `model_dump(mode="json")`); anything else raises TypeError.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    >>> digest("a", "b") == digest("ab")
    False
    """
    text = json.dumps(objects, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def resolve_below(root: StrPath, relative: str, *, allow_links: bool = False) -> Path:
    """`root / relative`, if that lies below `root`; else DataError. It need not exist.

    Args:
        relative: a path with `/` between its parts, as data files hold it.
        allow_links: the last part may be a symlink that leads anywhere (the link stage places such links);
            the folder that holds it must still lie below the root.

    Refused: an empty path, an absolute one (also with a drive letter), `..`, a NUL, a link on the way that leads out.

    >>> resolve_below("data", "a/b.jpg").as_posix()
    'data/a/b.jpg'
    >>> resolve_below("data", "../b.jpg")
    Traceback (most recent call last):
    ...
    cyclegrpo.errors.DataError: ../b.jpg: the path leaves its root; expected a path below data without `..`.
    """
    shown_root = printable_path(root)
    if not relative or "\0" in relative:
        raise DataError(f"the path is empty or holds a NUL; expected a path below {shown_root}.", file=repr(relative))
    if PurePosixPath(relative).is_absolute() or PureWindowsPath(relative).drive or relative.startswith("\\"):
        raise DataError(f"the path is absolute; expected a path relative to {shown_root}.", file=relative)
    if ".." in PurePosixPath(relative).parts or ".." in PureWindowsPath(relative).parts:
        raise DataError(f"the path leaves its root; expected a path below {shown_root} without `..`.", file=relative)
    path = Path(root) / relative
    if "\\" in relative and not os.path.lexists(path):
        raise DataError("the path holds a backslash and does not exist; write `/` between folders.", file=relative)
    real_root = os.path.realpath(root)
    real = os.path.realpath(path.parent) if allow_links else os.path.realpath(path)
    if os.path.commonpath([real_root, real]) != real_root:
        message = f"a link leads out of {shown_root}, to {printable_path(real)}; expected a file below it."
        raise DataError(message, file=relative)
    return path
