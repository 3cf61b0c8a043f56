"""Measuring a tokenizer on any source with true masks: figures, a table of every mask, a picture of the worst."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from tqdm import tqdm

from cyclegrpo.errors import DataError
from cyclegrpo.files import atomic_path, write_json, write_text
from cyclegrpo.params import Params, SourceParams
from cyclegrpo.regions.geometry import mask_to_box
from cyclegrpo.tokenizer.examples import MaskExample, SourceExamples
from cyclegrpo.tokenizer.model import MaskTokenizer
from cyclegrpo.tokenizer.quality import MaskScore, score_masks, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_WORST = 12
NUM_NAMED = 20
"""Unusable images and masks that metrics.json names."""
COLUMNS = 4
NAME_LENGTH = 44
WANTED, FOUND = "#111111", "#d0115c"


@dataclass(frozen=True)
class QualityReport:
    """The figures that are printed; metrics.json has all of them."""

    num_images: int
    num_unusable: int
    num_masks: int
    iou_mean: float
    iou_median: float
    codes_used: str
    entropy_bits: str
    out: str


@dataclass
class _Worst:
    """The masks that came back worst, with what is needed to draw them; at most `NUM_WORST` are held."""

    heap: list[tuple[float, int, MaskScore, np.ndarray, np.ndarray]]
    num_seen: int = 0

    def add(self, scores: Sequence[MaskScore], example: MaskExample) -> None:
        for score, mask in zip(scores, example.masks, strict=True):
            self.num_seen += 1
            if len(self.heap) < NUM_WORST or -score.iou > self.heap[0][0]:
                item = (-score.iou, -self.num_seen, score, example.image, mask.copy())
                (heapq.heappush if len(self.heap) < NUM_WORST else heapq.heappushpop)(self.heap, item)

    def sorted(self) -> list[tuple[MaskScore, np.ndarray, np.ndarray]]:
        return [(score, image, mask) for _, _, score, image, mask in sorted(self.heap, key=lambda item: item[:2])[::-1]]


def run_evaluate_tokenizer(
    params: Params | SourceParams,
    tokenizer: MaskTokenizer,
    out: Path,
    *,
    names: Sequence[str] | None = None,
    limit: int | None = None,
) -> QualityReport:
    """Measure a tokenizer on the sources of the params (see `SourceExamples` for `names` and `limit`).

    Writes `metrics.json`, `masks.csv` (one line a mask) and `worst.png` to `out`. Raises DataError where no mask could
    be measured, and, after all is written, where more images or masks than `base.max_skip_ratio` cannot be used.
    """
    examples = SourceExamples(params, names=names, limit=limit)
    bar = tqdm(examples, total=len(examples), unit="image", disable=None, file=sys.stderr)
    report = evaluate_tokenizer(bar, tokenizer, out, source=examples)
    examples.require_usable(params.base.max_skip_ratio, f"The figures in {out} are of the others.")
    return report


def evaluate_tokenizer(
    examples: Iterable[MaskExample], tokenizer: MaskTokenizer, out: Path, *, source: SourceExamples | None = None
) -> QualityReport:
    """The same on any images with masks; what `source` skipped, read at the end, goes into the metrics.

    Raises DataError where there is no mask at all.
    """
    scores: list[MaskScore] = []
    worst = _Worst([])
    num_images = 0
    for example in examples:
        of_image = score_masks(tokenizer, example)
        worst.add(of_image, example)
        scores += of_image
        num_images += 1
    if not scores:
        raise DataError(f"no mask could be measured ({source.reasons if source else 'no images with masks'}).")
    metrics = summarise(scores, tokenizer.config.codebook_size)
    unusable = source.problems if source else []
    described: dict[str, Any] = {"num_images": num_images, "skipped": dict(source.skipped) if source else {}}
    described["unusable"] = unusable[:NUM_NAMED]
    described["compute_dtype"] = str(tokenizer.compute_dtype).removeprefix("torch.")
    write_text(out / "masks.csv", scores_to_table(scores).write_csv())
    write_json(out / "metrics.json", metrics | described)
    draw_worst(worst.sorted(), tokenizer, out / "worst.png")
    return QualityReport(
        num_images=num_images,
        num_unusable=len(unusable),
        num_masks=len(scores),
        iou_mean=metrics["all"]["mean"],
        iou_median=metrics["all"]["median"],
        codes_used=", ".join(f"{book['used']}" for book in metrics["codebooks"]),
        entropy_bits=", ".join(f"{book['entropy_bits']:.2f}" for book in metrics["codebooks"]),
        out=out.as_posix(),
    )


def scores_to_table(scores: Sequence[MaskScore]) -> pl.DataFrame:
    """One row per mask: image, number, kind, area_px, area_ratio, code0, code1, ..., iou, iou_first_code."""
    depth = len(scores[0].codes)
    columns: dict[str, list[Any]] = {
        "image": [score.name for score in scores],
        "number": [score.number for score in scores],
        "kind": [score.kind for score in scores],
        "area_px": [score.area_px for score in scores],
        "area_ratio": [round(score.area_ratio, 6) for score in scores],
        **{f"code{level}": [score.codes[level] for score in scores] for level in range(depth)},
        "iou": [round(score.iou, 4) for score in scores],
        "iou_first_code": [round(score.iou_first_code, 4) for score in scores],
    }
    return pl.DataFrame(columns)


def draw_worst(worst: Sequence[tuple[MaskScore, np.ndarray, np.ndarray]], tokenizer: MaskTokenizer, path: Path) -> None:
    """A picture of masks that come back badly: the true outline dashed, what the codes decode to in red.

    Args:
        worst: for each mask its score, its image (H, W, 3) and itself (H, W).
    """
    from matplotlib.figure import Figure

    num_lines = -(-len(worst) // COLUMNS)
    figure = Figure(figsize=(3.4 * COLUMNS, 3.9 * num_lines), dpi=100)
    panels = list(figure.subplots(num_lines, COLUMNS, squeeze=False).flat)
    figure.suptitle("The masks that come back worst: true outline dashed, decoded one red", fontsize=13)
    for panel in panels:
        panel.set_axis_off()
    for panel, (score, image, mask) in zip(panels, worst, strict=False):
        height, width = mask.shape
        features = tokenizer.embed_images([image])[0]
        again = tokenizer.decode_masks(features, [score.codes], height, width)[0]
        panel.imshow(image)
        _outline(panel, again, "white", "solid", 4)
        _outline(panel, again, FOUND, "solid", 2)
        _outline(panel, mask, "white", "solid", 3)
        _outline(panel, mask, WANTED, "dashed", 1.5)
        _look_at(panel, mask)
        codes = " ".join(map(str, score.codes)) + ("" if again.any() else ": nothing")
        title = f"IoU {score.iou:.2f}, {score.area_px} px, codes {codes}\n{_short_name(score.name)}"
        panel.set_title(title, fontsize=8, parse_math=False)
    figure.tight_layout(rect=(0, 0, 1, 0.97), h_pad=3)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, metadata={"Software": None})


def _short_name(name: str) -> str:
    r"""The end of a name, which tells more than its beginning, in letters that the font has.

    >>> _short_name("v3det/" + "x" * 60 + ".jpg")[:4], _short_name("\u8c93.jpg")
    ('...x', '\\u8c93.jpg')
    """
    plain = name.encode("latin-1", "backslashreplace").decode("latin-1")
    return plain if len(plain) <= NAME_LENGTH else "..." + plain[3 - NAME_LENGTH :]


def _outline(axes: Axes, mask: np.ndarray, color: str, style: str, width: float) -> None:
    """The mask's outline; a rim of background lets one that touches the border close."""
    if mask.any():
        rows, columns = (np.arange(-1, side + 1) for side in mask.shape)
        padded = np.pad(mask.astype(float), 1)
        axes.contour(columns, rows, padded, [0.5], colors=color, linestyles=style, linewidths=width)


def _look_at(axes: Axes, mask: np.ndarray) -> None:
    """Show the part of the image around a mask, as much again on every side, and more where it is tiny: up to a sixth
    of the image, but so that one pixel can still be seen.
    """
    x0, y0, x1, y1 = mask_to_box(mask) or (0, 0, *mask.shape[::-1])
    side = max(x1 - x0, y1 - y0)
    margin = max(side, min(min(mask.shape) // 6, 12 + 4 * side))
    axes.set_xlim(max(-1.5, x0 - margin), min(mask.shape[1] + 0.5, x1 + margin))
    axes.set_ylim(min(mask.shape[0] + 0.5, y1 + margin), max(-1.5, y0 - margin))
