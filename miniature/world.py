"""The synthetic world on disk, in the sources' own formats and folder shapes; a pure function of the params.

    V3Det/images/<category node>/<file>.jpg                  scenes whose regions the `annotate` stage spells as tokens
    coco/train2014/COCO_train2014_<12 digits>.jpg            scenes of the gRefCOCO files, splits train, val and testA
    grefcoco/instances.json, grefcoco/grefs(unc).json        their masks and expressions
    truth.json                                               which words are true of every annotated object
    manifest.json                                            written last: digest of the params, SHA-256 of every file

Run it with `python -m miniature.stages.world`. The whole world is drawn on every run (seconds) and compared with the
files there: a finished one is left untouched, an interrupted one is continued, a damaged file is written again, and
files of another world are removed. A folder that this stage did not start is never touched.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from cyclegrpo.errors import DataError
from cyclegrpo.files import digest, write_bytes, write_json, write_text
from miniature.coco import CATEGORY_IDS, GrefCoco
from miniature.params import MiniatureParams
from miniature.scene import COLORS, Scene, draw_scene

MANIFEST = "manifest.json"
DENSEWORLD = "denseworld/annotations.json"
MARKER = ".miniature-world"
MARKER_TEXT = "This folder was made by the world stage of the miniature, which replaces and removes files in it.\n"
GREF_SPLITS = ("train", "val", "testA")


@dataclass(frozen=True)
class WorldReport:
    """The world's images and files, how many files a run had to write, and how many others it removed."""

    num_images: int
    num_files: int
    num_files_written: int
    num_files_removed: int


def v3det_path(scene: Scene, scene_seed: int) -> str:
    """Path of a scene's image below the raw folder: `V3Det/images/<node>/<file>.jpg`.

    The node has the form of a WordNet synset and stands for the shape and colour of the scene's largest object.
    """
    main = max(scene.objects, key=lambda o: int(o.mask.sum()))
    shape, color = CATEGORY_IDS[main.shape], list(COLORS).index(main.color)
    return f"V3Det/images/n{10_000_000 + 1_000 * shape + color:08d}/{shape}_{color}_{scene_seed:011d}_c.jpg"


def draw_v3det(params: MiniatureParams) -> Iterator[tuple[str, Scene]]:
    """Path below the raw folder and scene of every V3Det-like image, in the order of their seeds."""
    for seed in params.scenes.v3det.seeds:
        scene = draw_scene(seed)
        yield v3det_path(scene, seed), scene


def draw_world(params: MiniatureParams) -> Iterator[tuple[str, bytes]]:
    """Path below the raw folder and content of every file of the world but the manifest, images first."""
    for path, scene in draw_v3det(params):
        yield path, _encode_jpeg(scene, params.world.jpeg_quality)
    gref = GrefCoco(params.world.expression_words, params.world.multi_target_ratio, params.world.seed)
    for split in GREF_SPLITS:
        for seed in params.scenes.range_of(split).seeds:
            scene = draw_scene(seed)
            file_name = gref.add(scene, seed, split)
            yield f"coco/train2014/{file_name}", _encode_jpeg(scene, params.world.jpeg_quality)
    yield "grefcoco/instances.json", _encode_json(gref.instances())
    yield "grefcoco/grefs(unc).json", _encode_json(gref.refs)
    yield "truth.json", _encode_json(gref.truth())


def run_world(params: MiniatureParams) -> WorldReport:
    """Bring the raw folder to exactly the world of the params and say what was done.

    Raises DataError where the folder holds something and was not started by this stage.
    """
    root = Path(params.world.raw_dir)
    _claim(root)
    sums: dict[str, str] = {}
    num_written = 0
    for relative, content in draw_world(params):
        sums[relative] = hashlib.sha256(content).hexdigest()
        if not _holds(root / relative, content):
            _mark_unfinished(root, [relative])
            write_bytes(root / relative, content)
            num_written += 1
    num_removed = _remove_others(root, {*sums, MANIFEST, MARKER, DENSEWORLD})
    manifest = {"digest": _digest(params), "files": sums}
    if _read_manifest(root) != manifest:
        write_json(root / MANIFEST, manifest)
    return WorldReport(sum(path.endswith(".jpg") for path in sums), len(sums), num_written, num_removed)


def check_world(params: MiniatureParams) -> None:
    """Raise DataError unless the raw folder holds the finished world of the params (told by its manifest)."""
    root = Path(params.world.raw_dir)
    manifest = _read_manifest(root)
    if manifest is None or manifest.get("digest") != _digest(params):
        found = "no finished world" if manifest is None else "the world of other params"
        raise DataError(f"{found}; run `python -m miniature.stages.world` first.", file=root / MANIFEST)


def _claim(root: Path) -> None:
    """Mark the folder as this stage's own, unless it holds files of somebody else (empty folders are DVC's)."""
    marker = root / MARKER
    if marker.exists():
        return
    if root.exists() and (not root.is_dir() or any(not path.is_dir() for path in root.rglob("*"))):
        raise DataError(
            "holds files that the world stage did not write; expected an empty or missing folder. "
            "Set world.raw_dir to another folder.",
            file=root,
        )
    write_text(marker, MARKER_TEXT)


def _mark_unfinished(root: Path, changes: Iterable[str]) -> None:
    """Before a change: from here on the manifest is not true, nor are tokens of V3Det images that change."""
    (root / MANIFEST).unlink(missing_ok=True)
    if any(change.startswith("V3Det/") for change in changes):
        (root / DENSEWORLD).unlink(missing_ok=True)


def _remove_others(root: Path, expected: set[str]) -> int:
    """Remove every file (also half-written ones) and empty folder below the root that is not expected; count files."""
    others = [path for path in root.rglob("*") if path.relative_to(root).as_posix() not in expected]
    files = [path for path in others if path.is_symlink() or not path.is_dir()]
    if files:
        _mark_unfinished(root, (path.relative_to(root).as_posix() for path in files))
    for path in files:
        path.unlink(missing_ok=True)
    for folder in sorted((path for path in others if path not in set(files)), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return len(files)


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def _read_manifest(root: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _digest(params: MiniatureParams) -> str:
    scenes = {split: params.scenes.range_of(split).model_dump() for split in ("v3det", *GREF_SPLITS)}
    return digest(params.world.model_dump(mode="json", exclude={"raw_dir"}), scenes)


def _encode_jpeg(scene: Scene, quality: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(scene.image).save(buffer, format="JPEG", quality=quality, subsampling="4:4:4")
    return buffer.getvalue()


def _encode_json(obj: Any) -> bytes:
    return (json.dumps(obj, separators=(",", ":"), sort_keys=True) + "\n").encode("ascii")
