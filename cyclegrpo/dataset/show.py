"""Drawing one row: the image with its regions, the crops side by side, and the texts below, as one picture.

Regions are what a reader of the row would see: true masks where the row has them, else the decoded tokens, or boxes.
A crop shows its own region, decoded from the tokens in its zoom clause, so that a wrong crop or a wrong token is seen
at a glance.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from cyclegrpo.dataset.prompts import parse_answer, parse_problem
from cyclegrpo.dataset.schema import Row, frame_of, list_files, read_rows
from cyclegrpo.dataset.tokenizers import OpenTokenizer, open_tokenizer
from cyclegrpo.errors import DataError
from cyclegrpo.files import atomic_path
from cyclegrpo.images import load_image_below
from cyclegrpo.params import Params
from cyclegrpo.regions.boxes import parse_boxes
from cyclegrpo.regions.geometry import box_1000_to_image, box_to_mask, rle_to_mask
from cyclegrpo.regions.tokens import codes_to_array, parse_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec

    from cyclegrpo.tokenizer import MaskTokenizer

COLORS = ("#e41a1c", "#377eb8", "#4daf4a", "#984ea3", "#ff7f00", "#a65628", "#f781bf", "#17becf")
"""Region k has color k, around again after eight."""

CROPS_PER_LINE = 4
TEXT_COLUMNS = 165


def draw_row(params: Params, number: int, path: Path, tokenizer: MaskTokenizer | None = None) -> None:
    """Write a picture of one row of the dataset in `base.dataset_dir`.

    Args:
        number: counted from 0 through all parquet files, in the order of their names.
        path: the picture, PNG or whatever its suffix says.
        tokenizer: one that is loaded already; None loads `base.tokenizer` if the row has to be decoded.

    Raises DataError where there is no such row, or one of its images cannot be read.
    """
    row = find_row(params.base.dataset_dir, number)
    figure = picture_row(row, params.base.dataset_dir, open_tokenizer(params.base, tokenizer))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=100, metadata={"Software": None} if path.suffix == ".png" else None)


def find_row(dataset_dir: Path, number: int) -> Row:
    """The row of that number, counted through all parquet files; DataError where there are fewer."""
    paths = list_files(dataset_dir)
    rows = (row for path in paths for row in read_rows(path))
    found = next(islice(rows, number, None), None)
    if found is None:
        num_rows = sum(len(read_rows(path)) for path in paths)
        raise DataError(f"has {num_rows} rows; expected more than {number}, which counts from 0.", dataset_dir / "data")
    return found


def picture_row(row: Row, dataset_dir: Path, open_tokenizer: OpenTokenizer) -> Figure:
    """The row as a figure: the whole image on the left, crops on the right, texts below."""
    from matplotlib.figure import Figure

    whole = load_image_below(dataset_dir, row.images[0], declared_size=frame_of(row.target_rle))
    crops = [load_image_below(dataset_dir, name) for name in row.images[1:]]
    regions = parse_answer(row.seg_answer) or ()
    masks = (
        [rle_to_mask(rle) for rle in row.target_rle]
        if row.target_rle
        else spelled_masks(regions, whole, open_tokenizer)
    )

    num_lines = max(1, -(-len(crops) // CROPS_PER_LINE))
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    grid = figure.add_gridspec(2, 2 if crops else 1, height_ratios=(4, 1.6))
    _draw(figure, grid[0, 0], whole, list(enumerate(masks)), f"{row.images[0]}\n{whole.width} x {whole.height}")
    if crops:
        inner = grid[0, 1].subgridspec(num_lines, min(len(crops), CROPS_PER_LINE))
        for position, (crop, (index, spelling)) in enumerate(zip(crops, _crop_regions(row, regions), strict=True)):
            crop_masks = spelled_masks([spelling], crop, open_tokenizer) if spelling else []
            place = inner[divmod(position, CROPS_PER_LINE)]
            title = f"crop of {index + 1}\n{crop.width} x {crop.height}"
            _draw(figure, place, crop, [(index, mask) for mask in crop_masks], title)
    texts = figure.add_subplot(grid[1, :])
    texts.axis("off")
    texts.text(0, 1, row_text(row, regions), va="top", family="monospace", fontsize=8, parse_math=False)
    return figure


def spelled_masks(regions: Sequence[str], image: Image.Image, open_tokenizer: OpenTokenizer) -> list[np.ndarray]:
    """Masks (H, W) of regions as text: tokens are decoded on the image, boxes are filled."""
    masks = []
    codes = [parse_tokens(region).codes[:1] for region in regions]
    if any(codes):
        tokenizer = open_tokenizer()
        pairs = codes_to_array([pair for found in codes for pair in found])
        masks = list(tokenizer.decode_masks(tokenizer.embed_images([image])[0], pairs, image.height, image.width))
    for region in regions:
        for box in parse_boxes(region).boxes:
            box_image = box_1000_to_image(box, image.height, image.width)
            masks.append(box_to_mask(box_image, image.height, image.width))
    return masks


def row_text(row: Row, regions: Sequence[str]) -> str:
    """The row's source and texts for reading: tokens shortened to <T1>, <T2>, ... and those of crops to <Z1>, ..."""
    problem = row.cap_problem
    for index, spelling in _crop_regions(row, regions):
        if spelling:
            problem = problem.replace(f"<image>, {spelling}", f"<image>, <Z{index + 1}>")
    answer = row.seg_answer
    for index, region in enumerate(regions):
        problem, answer = (text.replace(region, f"<T{index + 1}>") for text in (problem, answer))
    lines = [f"source       {row.source}", f"cap_problem  {problem}", f"seg_answer   {answer}"]
    wrapped = (textwrap.wrap(line.replace("\n", " "), TEXT_COLUMNS, subsequent_indent=" " * 13) for line in lines)
    return "\n".join(line for block in wrapped for line in block)


def _crop_regions(row: Row, regions: Sequence[str]) -> list[tuple[int, str | None]]:
    """For each crop, the index of its region and that region in the crop as text (None where the space has none)."""
    problem = parse_problem(row.cap_problem)
    zooms = () if problem is None else problem.zooms
    if len(zooms) != len(row.images) - 1:
        raise DataError(
            f"a row has {len(row.images) - 1} crops and {len(zooms)} zoom clauses; run check", row.images[0]
        )
    return [(regions.index(zoom.region) if zoom.region in regions else 0, zoom.crop) for zoom in zooms]


def _draw(
    figure: Figure, place: SubplotSpec, image: Image.Image, masks: Sequence[tuple[int, np.ndarray]], title: str
) -> None:
    """One image with tinted, outlined and numbered regions; (index, mask) pairs, in the frame of the image."""
    from matplotlib.colors import to_rgb

    pixels = np.asarray(image, dtype=np.float32) / 255
    axes = figure.add_subplot(place)
    for index, mask in masks:
        tint = np.array(to_rgb(COLORS[index % len(COLORS)]), dtype=np.float32)
        pixels = np.where(mask[..., None], 0.65 * pixels + 0.35 * tint, pixels)
    axes.imshow(pixels)
    for index, mask in masks:
        if not mask.any():
            continue
        color = COLORS[index % len(COLORS)]
        if not mask.all():  # there is no outline to draw
            axes.contour(mask, levels=[0.5], colors=[color], linewidths=1.5)
        rows, columns = np.nonzero(mask)
        # The pixel of the region that is nearest to its centre, which itself may lie in a hole.
        middle = np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2)
        axes.text(
            columns[middle],
            rows[middle],
            str(index + 1),
            color="white",
            fontsize=9,
            ha="center",
            va="center",
            bbox={"boxstyle": "round,pad=0.2", "facecolor": color, "edgecolor": "none"},
        )
    axes.set_title(title, fontsize=8, parse_math=False)
    axes.axis("off")
