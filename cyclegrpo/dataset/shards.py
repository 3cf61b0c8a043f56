"""Work that survives a kill: a stage's images in shards, each finished shard kept in the work folder until it is out
of date.

A shard is stored at `<work_dir>/shards/<stage>/<digest>-<digest>.json`. The first digest covers the stage's settings
and the package's code, the second the shard's items, so a stored shard is used again exactly when it would come out the
same. A run in which nothing changed, or one after a kill, computes only what is missing. Shards that a completed run
did not use are removed; a run on some of the records only leaves those of the same settings and code. No more than one
shard's rows are held at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cyclegrpo.dataset.processes import map_ordered
from cyclegrpo.dataset.progress import track
from cyclegrpo.errors import DataError
from cyclegrpo.files import digest, sha256_file, write_text
from cyclegrpo.sources.records import Skip

SHARD_IMAGES = 32
"""Images per shard: a kill loses at most so much work."""

_CODE = (
    "files.py",
    "images.py",
    "dataset/*.py",
    "regions/*.py",
    "tokenizer/config.py",
    "tokenizer/features.py",
    "tokenizer/mask_prompts.py",
    "tokenizer/model.py",
    "tokenizer/quantizer.py",
)

Item = Mapping[str, Any]


@dataclass(slots=True)
class ShardResult:
    """What became of a shard's items: table rows (plain JSON values) and skips, both in the order of the items."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)


Compute = Callable[[Sequence[Item]], ShardResult]


@dataclass(frozen=True)
class ShardStore:
    """The finished shards of one stage.

    Attributes:
        folder: where they lie.
        settings: everything besides the items that the result depends on, as JSON can hold it.
        still_valid: whether a stored shard's side effects (files that it wrote) are still there.
        keep_others: leave the shards of the same settings that a run does not use, as those of a larger run.
    """

    folder: Path
    settings: Any
    still_valid: Callable[[ShardResult], bool] = lambda result: True
    keep_others: bool = False

    def run(self, items: Sequence[Item], compute: Compute, *, num_workers: int = 0) -> Iterator[ShardResult]:
        """Deal with all items, in shards of SHARD_IMAGES; then an iterator over the results in the order of the items.

        Args:
            items: one per image, as JSON can hold it.
            compute: what to do with a shard's items; the same result for the same items, whatever the other shards
                are.
            num_workers: as in `processes.map_ordered`.
        """
        shards = [items[start : start + SHARD_IMAGES] for start in range(0, len(items), SHARD_IMAGES)]
        prefix = digest(self.settings, code_digest())[:16]
        paths = [self.folder / f"{prefix}-{digest(list(shard))[:32]}.json" for shard in shards]
        missing = [index for index, path in enumerate(paths) if not self._is_valid(path)]
        computed = map_ordered(compute, [shards[index] for index in missing], num_workers=num_workers)
        for index, result in zip(missing, track(computed, len(missing), self.folder.name), strict=True):
            write_text(paths[index], json.dumps(asdict(result)))
        self._remove_others(paths, prefix)
        return map(self._read, paths)

    def _read(self, path: Path) -> ShardResult:
        result = self._load(path)
        if result is None:
            raise DataError("was there a moment ago and is damaged now; start the stage again.", file=path)
        return result

    def _is_valid(self, path: Path) -> bool:
        result = self._load(path)
        return result is not None and self.still_valid(result)

    def _load(self, path: Path) -> ShardResult | None:
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return ShardResult(content["rows"], [Skip(**skip) for skip in content["skips"]])
        except (ValueError, KeyError, TypeError):  # empty or cut short, as after a power failure: computed anew
            return None

    def _remove_others(self, paths: Sequence[Path], prefix: str) -> None:
        for path in set(self.folder.glob("*.json")) - set(paths):
            if not (self.keep_others and path.name.startswith(prefix)):
                path.unlink()


@cache
def code_digest(*others: str) -> str:
    """Digest of the package's source files that a shard's content depends on: other code may give other data.

    Args:
        others: patterns of further files, below the package, that what is kept depends on.
    """
    package = Path(__file__).parent.parent
    files = sorted({path for pattern in (*_CODE, *others) for path in package.glob(pattern)})
    return digest([[path.relative_to(package).as_posix(), sha256_file(path)] for path in files])
