"""The dataset card, README.md in the dataset directory: generated, so that it cannot disagree with the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cyclegrpo.dataset.schema import Row

_CARD = """\
---
configs:
{configs}
---
# Rows for CycleGRPO

Regions are spelled as {spelling}. Images are not part of the dataset: `image_lists/` names them, and `images` holds
links to them and the zoom-in crops.

| file | rows | regions | crops |
|---|---|---|---|
{files}

Columns: `images` (paths relative to this folder; the whole image, then the crops in the order of the zoom clauses),
`cap_problem` (prompt, one `<image>` per image), `seg_answer` (the regions, or `<answer>No target.</answer>`),
`source`; `cap_answer`, `seg_problem` and `masks` are unused and null. `target_rle`, where it is there, holds the true
mask of each region as COCO RLE in JSON.

One row, shortened:

```
images       {images}
cap_problem  {cap_problem!r}
seg_answer   {seg_answer!r}
source       {source!r}
```
"""

_SPELLING = {
    "mask": "mask tokens, `<|mt_start|><|mt_AAAA|><|mt_BBBB|><|mt_end|>`",
    "box": "boxes, `[x1, y1, x2, y2]` in thousandths of the image's sides",
}


def dataset_card(
    files: Sequence[tuple[str, Sequence[Row]]], counts: Mapping[str, int], space: str, dtype: str | None = None
) -> str:
    """The card's text.

    Args:
        files: (name, rows) of every parquet file, at least one.
        counts: what the build made in total.
        space: `mask` or `box`.
        dtype: what the mask tokenizer computed in, where it is known.
    """
    lines = []
    for name, rows in files:
        num_regions = sum(row.seg_answer.count("<|mt_end|>" if space == "mask" else "[") for row in rows)
        lines.append(f"| data/{name} | {len(rows)} | {num_regions} | {sum(len(row.images) - 1 for row in rows)} |")
    lines.append(f"| all | {sum(len(rows) for _, rows in files)} | {counts['regions']} | {counts['crops']} |")
    prefixes = sorted({name.split(".")[0].rstrip("0123456789_") for name, _ in files})
    configs = [f"  - config_name: {prefix}\n    data_files: data/{prefix}_[0-9]*.parquet" for prefix in prefixes]
    example = files[0][1][0]
    return _CARD.format(
        configs="\n".join(configs),
        spelling=_SPELLING[space] + (f", computed in {dtype}" if space == "mask" and dtype else ""),
        files="\n".join(lines),
        images=list(example.images),
        cap_problem=example.cap_problem,
        seg_answer=example.seg_answer,
        source=example.source,
    )
