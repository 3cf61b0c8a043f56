"""One wide picture of a run for a README: the curve of the cycle score, and four held-out examples before and after.

python -m cyclegrpo.explorer.picture docs/result.png
"""

from __future__ import annotations

import argparse
import base64
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from cyclegrpo.errors import DataError
from cyclegrpo.explorer.charts import moving_average, smoothing_window
from cyclegrpo.explorer.report import RESULTS, Results, cycle_curve, load_results
from cyclegrpo.explorer.story import scenes
from cyclegrpo.files import write_bytes
from cyclegrpo.regions.geometry import box_1000_to_image, rle_to_mask

INK, SOFT, RULE, PAPER = "#1b1e23", "#5b626c", "#e3e3dc", "#ffffff"
BEFORE, AFTER = "#d0115c", "#008a7c"
NUM_EXAMPLES = 4
WIDTH_IN, HEIGHT_IN, DOTS_PER_INCH = 15.0, 5.6, 120
CAPTION_CHARS = 21


def write_picture(path: Path, found: Results) -> None:
    """Write the picture as PNG, 1,800 x 672 pixels; the same bytes for the same results and library versions."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS_PER_INCH, facecolor=PAPER)
    halves: Any = figure.subfigures(1, 2, width_ratios=(5.4, 9.6))  # an array of two, whatever its type says
    left, right = halves
    _draw_curve(left.subplots(gridspec_kw={"left": 0.11, "right": 0.95, "bottom": 0.12, "top": 0.8}), found)
    examples = found.examples["examples"][:NUM_EXAMPLES]
    spacing = {"left": 0.01, "right": 0.99, "bottom": 0.16, "top": 0.93, "wspace": 0.12, "hspace": 0.5}
    panels = right.subplots(2, NUM_EXAMPLES, gridspec_kw=spacing, squeeze=False)
    for column in range(NUM_EXAMPLES):
        for line, (role, color) in enumerate((("before", BEFORE), ("after", AFTER))):
            if column < len(examples):
                _draw_example(panels[line][column], examples[column], role, color)
            else:
                panels[line][column].set_axis_off()
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    write_bytes(path, stream.getvalue())


def _draw_curve(axes: Axes, found: Results) -> None:
    steps, scores = cycle_curve(found.curves)
    before, after = (found.metrics[role]["cycle_iou"] for role in ("before", "after"))
    if not steps:
        raise DataError("no step has a cycle score; the picture needs a run with captions.")
    axes.scatter(steps, scores, s=16, color=AFTER, alpha=0.35, linewidths=0)
    axes.plot(steps, moving_average(scores, smoothing_window(len(scores))), color=AFTER, linewidth=3)
    axes.set_ylim(0, 1)
    axes.set_xlabel("training step", color=SOFT)
    axes.grid(axis="y", color=RULE)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title("Describe a region, find it back", loc="left", color=INK, fontsize=17, fontweight="bold", y=1.12)
    words = f"cycle score in training; on {scenes(found.metrics)} {before:.2f} before, {after:.2f} after"
    axes.text(0, 1.05, words, transform=axes.transAxes, color=SOFT, fontsize=10)


def _draw_example(axes: Axes, example: Mapping[str, Any], role: str, color: str) -> None:
    picture = Image.open(io.BytesIO(base64.b64decode(example["picture"].split(",", 1)[1])))
    height, width = example["height"], example["width"]
    axes.imshow(np.asarray(picture), extent=(0, width, height, 0), interpolation="nearest")
    said = example[role]
    _outline(axes, example["target"], height, width, color=PAPER, linewidth=3.4)
    _outline(axes, said["found"], height, width, color=PAPER, linewidth=6)
    _outline(axes, said["found"], height, width, color=color, linewidth=4)
    _outline(axes, example["target"], height, width, color="#111111", linewidth=1.6, dashed=True)
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_color(RULE)
    result = f"IoU {said['iou']:.2f}" if said["found"] is not None else "nothing found"
    axes.set_title(f"{role}  \u00b7  {result}", color=color, fontsize=10.5, fontweight="bold", loc="left", pad=5)
    lines = textwrap.wrap(f"\u201c{said['caption']}\u201d", CAPTION_CHARS)[:3]
    axes.set_xlabel("\n".join(lines), color=INK, fontsize=10.5, loc="left", labelpad=5)


def _outline(
    axes: Axes, region: Any, height: int, width: int, *, color: str, linewidth: float, dashed: bool = False
) -> None:
    """Draw the outline of a region as examples.json holds it, in the image's pixel frame."""
    style: Any = (0, (2.2, 2.2)) if dashed else "solid"
    if region is None:
        return
    if isinstance(region, Mapping):
        xs, ys = np.arange(width) + 0.5, np.arange(height) + 0.5
        mask = rle_to_mask(region).astype(float)
        axes.contour(xs, ys, mask, levels=[0.5], colors=color, linewidths=linewidth, linestyles=[style])
        return
    for box in region:
        x0, y0, x1, y1 = box_1000_to_image(box, height, width)
        shape = Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=color, linewidth=linewidth, linestyle=style)
        axes.add_patch(shape)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the picture of the results in the current folder."""
    parser = argparse.ArgumentParser(description="Draw one picture of results/ for a README.")
    parser.add_argument("path", type=Path, help="the PNG file to write")
    write_picture(parser.parse_args(arguments).path, load_results(RESULTS))


if __name__ == "__main__":
    main()
