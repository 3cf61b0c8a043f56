"""Small drawings for the result page as SVG text. Colours come from the page's CSS variables, so that both themes work.

Pictures of regions are vector outlines over the image: a path in the image's pixel frame, x to the right and y down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

OUTLINE_SCALE = 4  # outlines follow the pixel edges to a quarter of a pixel


@dataclass(frozen=True)
class Frame:
    """The drawing area of a chart in SVG units: size of the whole and the margins around the plotted part."""

    width: float
    height: float
    left: float = 44
    right: float = 16
    top: float = 14
    bottom: float = 34

    def x(self, share: float) -> float:
        """The horizontal position of a share in [0, 1] of the plotted width."""
        return self.left + share * (self.width - self.left - self.right)

    def y(self, share: float) -> float:
        """The vertical position of a share in [0, 1] of the plotted height, 0 at the bottom."""
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """The centred mean over `window` values, over fewer at the two ends; as many values as came in.

    >>> moving_average([0.0, 3.0, 3.0, 0.0], 3)
    [1.5, 2.0, 2.0, 1.5]
    """
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def smoothing_window(num_values: int) -> int:
    """An odd window of about a sixth of the values: enough to see a trend through the noise of a batch.

    >>> smoothing_window(36), smoothing_window(3), smoothing_window(1)
    (7, 1, 1)
    """
    return max(1, num_values // 6 // 2 * 2 + 1)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that lie in [low, high], ascending; one number when both are equal.

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> nice_ticks(1, 36)
    [10.0, 20.0, 30.0]
    """
    if high <= low:
        return [float(low)]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def curve_svg(steps: Sequence[float], values: Sequence[float], *, label: str, height: float = 300) -> str:
    """A chart of a score in [0, 1] over training steps: every step as a dot, the moving average as a line."""
    frame = Frame(760, height)
    low, high = min(steps), max(max(steps), min(steps) + 1)
    top = max(1.0, max(values))
    xs = [frame.x((s - low) / (high - low)) for s in steps]
    parts = [_grid(frame, low, high, top)]
    smooth = moving_average(values, smoothing_window(len(values)))
    line = _points(xs, [frame.y(v / top) for v in smooth])
    parts.append(
        f'<polygon class="area" points="{frame.x(0):.1f},{frame.y(0):.1f} {line} {xs[-1]:.1f},{frame.y(0):.1f}"/>'
    )
    parts += [
        f'<circle class="dot" cx="{x:.1f}" cy="{frame.y(v / top):.1f}" r="2.6">'
        f"<title>step {s:g}: {v:.3f}</title></circle>"
        for x, s, v in zip(xs, steps, values, strict=True)
    ]
    parts.append(f'<polyline class="line" points="{line}"/>')
    parts.append(f'<text class="tick" x="{frame.x(1):.1f}" y="{height - 4:.1f}" text-anchor="end">step</text>')
    return _svg(frame.width, height, "".join(parts), label, "chart")


def sparkline_svg(values: Sequence[float], *, label: str) -> str:
    """A small line of any finite values, scaled to their own range; a flat line in the middle when they are equal."""
    frame = Frame(220, 54, left=3, right=3, top=5, bottom=5)
    low, high = min(values), max(values)
    shares = [(v - low) / (high - low) if high > low else 0.5 for v in values]
    xs = [frame.x(i / max(1, len(values) - 1)) for i in range(len(values))]
    raw = f'<polyline class="faint" points="{_points(xs, [frame.y(s) for s in shares])}"/>'
    smooth = moving_average(shares, smoothing_window(len(shares)))
    line = f'<polyline class="line thin" points="{_points(xs, [frame.y(s) for s in smooth])}"/>'
    return _svg(frame.width, frame.height, raw + line, label, "spark")


def change_svg(before: float, after: float, *, label: str) -> str:
    """Two dots on a line from 0 to 1, before and after, with the way between them; values outside are clamped."""
    frame = Frame(160, 18, left=7, right=7, top=9, bottom=9)
    x0, x1 = (frame.x(min(1.0, max(0.0, v))) for v in (before, after))
    parts = (
        f'<line class="axis" x1="{frame.x(0):.1f}" x2="{frame.x(1):.1f}" y1="9" y2="9"/>'
        f'<line class="way" x1="{x0:.1f}" x2="{x1:.1f}" y1="9" y2="9"/>'
        f'<circle class="before" cx="{x0:.1f}" cy="9" r="4.5"/><circle class="after" cx="{x1:.1f}" cy="9" r="4.5"/>'
    )
    return _svg(frame.width, 18, parts, label, "change")


def mask_to_svg_path(mask: np.ndarray) -> str:
    """The outline of a mask as SVG path data in its own pixel frame, along the pixels' edges; "" for an empty mask.

    Args:
        mask: bool (H, W). Holes are closed sub-paths of their own (fill them with `fill-rule: evenodd`).
    """
    big = np.repeat(np.repeat(mask.astype(np.uint8), OUTLINE_SCALE, axis=0), OUTLINE_SCALE, axis=1)
    big = np.pad(big, 1)
    contours, _ = cv2.findContours(big, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    paths = []
    for contour in contours:
        points = (contour.reshape(-1, 2) - 1 + 0.5) / OUTLINE_SCALE
        paths.append("M" + "L".join(f"{x:g} {y:g}" for x, y in points) + "Z")
    return "".join(paths)


def boxes_to_svg_path(boxes_1000: Sequence[Sequence[float]], height: int, width: int) -> str:
    """The outlines of boxes (x0, y0, x1, y1 in 0..1000) as SVG path data in the pixel frame of an image.

    >>> boxes_to_svg_path([(0, 0, 500, 1000)], height=10, width=20)
    'M0 0L10 0L10 10L0 10Z'
    """
    paths = []
    for x0, y0, x1, y1 in boxes_1000:
        x0, x1, y0, y1 = x0 * width / 1000, x1 * width / 1000, y0 * height / 1000, y1 * height / 1000
        paths.append(f"M{x0:g} {y0:g}L{x1:g} {y0:g}L{x1:g} {y1:g}L{x0:g} {y1:g}Z")
    return "".join(paths)


def _grid(frame: Frame, low: float, high: float, top: float) -> str:
    parts = []
    for tick in nice_ticks(0.0, top):
        y = frame.y(tick / top)
        parts.append(f'<line class="grid" x1="{frame.x(0):.1f}" x2="{frame.x(1):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{frame.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in nice_ticks(low, high):
        x = frame.x((tick - low) / (high - low))
        parts.append(f'<text class="tick" x="{x:.1f}" y="{frame.height - 18:.1f}" text-anchor="middle">{tick:g}</text>')
    return "".join(parts)


def _points(xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))


def _svg(width: float, height: float, body: str, label: str, css_class: str) -> str:
    escaped = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return (
        f'<svg class="{css_class}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escaped}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )
