"""Readers of annotation formats: files -> records. `READERS` is the table of formats, `read_source` the one way
in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cyclegrpo.errors import DataError
from cyclegrpo.params import Source
from cyclegrpo.sources.denseworld import read_denseworld
from cyclegrpo.sources.grefcoco import read_grefcoco
from cyclegrpo.sources.records import Record, Region, Skip, Unit

__all__ = ["READERS", "Record", "Region", "Skip", "Unit", "read_source"]


def _open_denseworld(source: Source) -> Iterator[Record | Skip]:
    return read_denseworld(source.annotations, name=source.name)


def _open_grefcoco(source: Source) -> Iterator[Record | Skip]:
    assert source.instances is not None  # params.Source refuses grefcoco without it
    return read_grefcoco(source.annotations, source.instances, name=source.name, split=source.split, kinds=source.kinds)


READERS: dict[str, Callable[[Source], Iterator[Record | Skip]]] = {
    "denseworld": _open_denseworld,
    "grefcoco": _open_grefcoco,
}


def read_source(source: Source) -> Iterator[Record | Skip]:
    """Yield the records of one source of `base.sources`, at most `limit` of them (skipped ones count).

    Raises DataError where the annotations cannot be read or hold nothing at all of the wanted split and kinds.
    """
    num_records = 0
    for record in READERS[source.format](source):
        if source.limit is not None and num_records >= source.limit:
            return
        num_records += 1
        yield record
    if num_records == 0:
        wanted = ", ".join(source.kinds) + (f" records of split {source.split}" if source.split else " records")
        raise DataError(
            f"holds no {wanted}; expected at least one. Mend base.sources[{source.name}].", source.annotations
        )
