"""Reading a JSON list item by item, so that a list of 872,485 records never lies in memory as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclegrpo.errors import DataError

CHUNK_CHARS = 1 << 20


def iter_json_list(path: Path, *, chunk_chars: int = CHUNK_CHARS) -> Iterator[Any]:
    """Yield the items of the JSON list in `path`, one after the other.

    Raises DataError, naming the file, where it is missing, not UTF-8, not a list, empty, cut short, or followed by
    something else. Items before the fault have been yielded by then.
    """
    decoder, num_items = json.JSONDecoder(), 0
    try:
        with path.open(encoding="utf-8-sig") as stream:
            buffer = stream.read(chunk_chars).lstrip()
            if not buffer.startswith("["):
                raise DataError(f"expected a JSON list, found {_shown(buffer)}", file=path)
            buffer, chars_wanted = buffer[1:], chunk_chars
            while True:
                buffer = buffer.lstrip(" \t\r\n,")
                item_end = _decode(decoder, buffer)
                if item_end is None and not buffer.startswith("]"):
                    more = stream.read(chars_wanted)
                    if not more:
                        place = f"after {num_items:,} items, at {_shown(buffer)}"
                        raise DataError(f"the JSON list is cut short or broken {place}", file=path)
                    buffer, chars_wanted = buffer + more, chars_wanted * 2
                    continue
                if item_end is None:
                    break
                item, end = item_end
                yield item
                num_items += 1
                buffer, chars_wanted = buffer[end:], chunk_chars
            rest = (buffer[1:] + stream.read(chunk_chars)).strip()
            if rest:
                raise DataError(f"the JSON list is followed by {_shown(rest)}", file=path)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(
            f"cannot be read: {reason}; expected a JSON list. Mend its path in the params.", path
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8 text: {error}", file=path) from error
    except RecursionError as error:
        raise DataError(f"item {num_items:,} holds lists in lists without end; mend it", file=path) from error


def _decode(decoder: json.JSONDecoder, buffer: str) -> tuple[Any, int] | None:
    """The first item of `buffer` and where it ends; None where the item is not complete yet.

    A number at the very end of the buffer may go on in the next chunk, so it counts as complete only with something
    after it.
    """
    try:
        item, end = decoder.raw_decode(buffer)
    except ValueError:
        return None
    return (item, end) if end < len(buffer) else None


def _shown(text: str) -> str:
    return repr(text[:40]) if text else "an empty file"
