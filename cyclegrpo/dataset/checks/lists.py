"""Findings in the image lists: they must name the linked images that rows show, no more and no fewer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from cyclegrpo.dataset.checks.findings import Finding


def check_lists(dataset_dir: Path, images: Sequence[str]) -> list[Finding]:
    """Compare `image_lists/*.txt` with the whole images that rows show. Without lists there is one warning.

    Args:
        images: distinct paths relative to `dataset_dir`, without crops.

    A listed name may be a path or a bare file name; an image is listed where its last two parts, or its file name,
    are.
    """
    paths = sorted((dataset_dir / "image_lists").glob("*.txt"))
    if not paths:
        return [
            Finding(
                "image_lists", None, None, "no_lists", "there are no image lists; expected one per source", "warning"
            )
        ]
    place_of: dict[tuple[str, ...], tuple[str, int, str]] = {}
    for path in paths:
        name = path.relative_to(dataset_dir).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            if line.strip():
                place_of[PurePosixPath(line.strip()).parts[-2:]] = (name, number, line.strip())
    findings, used = [], set()
    for image in images:
        parts = PurePosixPath(image).parts
        key = next((parts[-length:] for length in (2, 1) if parts[-length:] in place_of), None)
        if key is None:
            message = f"rows show {image}, which no list names; whoever links by the lists would miss it"
            findings.append(Finding("image_lists", None, None, "image_not_listed", message))
        else:
            used.add(key)
    for key, (name, number, line) in place_of.items():
        if key not in used:
            message = f"{line} is listed, but no row shows it"
            findings.append(Finding(name, number, None, "list_unused", message, "warning"))
    return findings
