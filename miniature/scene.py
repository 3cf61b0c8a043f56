"""One synthetic scene: coloured shapes on a jittered 3 x 3 grid, and what is true of them.

Scenes are a pure function of their seed. Objects share attributes on purpose, so that a caption finds its object back
only when it names what sets that object apart. Every object has two visible parts, one of them in a darker tone. Used
by the `world` stage (which writes files in the sources' own formats) and by the stages that train the small tokenizer
and the small policy (which draw their scenes in memory).

Masks are bool (H, W); images uint8 RGB (H, W, 3). `row` and `column` count from the top left.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

SIDE_PX = 96
CELL_PX = SIDE_PX // 3
COLORS = {
    "red": (214, 48, 49),
    "green": (46, 170, 80),
    "blue": (52, 92, 220),
    "yellow": (241, 196, 15),
    "purple": (150, 70, 190),
    "orange": (240, 125, 20),
}
SHAPES = ("circle", "square", "triangle")
SIZES = {"small": 9, "large": 14}
"""Radius in pixels."""
MAX_JITTER_PX = 4
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "centre", "right")
VOCABULARY = {
    "size": tuple(SIZES),
    "color": tuple(COLORS),
    "shape": SHAPES,
    "row": ROWS,
    "column": COLUMNS,
}
DIVISIONS = (("left half", "right half"), ("top half", "bottom half"))
"""The two parts that an object can be divided into."""
DARK = 0.66
"""Brightness of the darker part."""
ALIKE_RATIO = 0.85
MIN_OBJECTS, MAX_OBJECTS = 3, 5


@dataclass(frozen=True)
class SceneObject:
    """One object: its attributes as words, its mask (H, W) bool in the scene's frame, the names of its two parts.

    Objects never overlap; `part_mask` gives a part's mask.
    """

    size: str
    color: str
    shape: str
    row: str
    column: str
    mask: np.ndarray
    parts: tuple[str, str]

    @property
    def words(self) -> frozenset[str]:
        """Every attribute word that is true of the object."""
        return frozenset((self.size, self.color, self.shape, self.row, self.column))

    def word(self, attribute: str) -> str:
        """The object's word for one attribute of `VOCABULARY`."""
        return str(getattr(self, attribute))


@dataclass(frozen=True)
class Scene:
    """A drawn scene: `image` uint8 RGB (H, W, 3) and its objects in reading order of their grid cells."""

    image: np.ndarray
    objects: tuple[SceneObject, ...]


def draw_scene(seed: int) -> Scene:
    """The scene of a seed: 3 to 5 objects; in most scenes (`ALIKE_RATIO`) two or three share colour and shape."""
    rng = np.random.default_rng([seed, 20260711])
    num_objects = int(rng.integers(MIN_OBJECTS, MAX_OBJECTS + 1))
    cells = np.sort(rng.choice(9, size=num_objects, replace=False))
    kinds = [_draw_kind(rng) for _ in range(num_objects)]
    if rng.random() < ALIKE_RATIO:
        alike = rng.choice(num_objects, size=int(rng.integers(2, 4)), replace=False)
        for index in alike[1:]:
            kinds[index] = (kinds[index][0], *kinds[alike[0]][1:])
    image = _draw_background(rng)
    objects = []
    for cell, (size, color, shape) in zip(cells, kinds, strict=True):
        row, column = divmod(int(cell), 3)
        mask = _draw_mask(shape, SIZES[size] + int(rng.integers(-1, 2)), row, column, rng)
        shade = np.clip(np.array(COLORS[color]) + rng.integers(-12, 13, size=3), 0, 255)
        image[mask] = shade
        parts = DIVISIONS[int(rng.integers(len(DIVISIONS)))]
        image[part_mask(mask, parts[int(rng.integers(2))])] *= DARK
        objects.append(SceneObject(size, color, shape, ROWS[row], COLUMNS[column], mask, parts))
    noise = rng.normal(0.0, 4.0, size=image.shape)
    return Scene(np.clip(image + noise, 0, 255).astype(np.uint8), tuple(objects))


def part_mask(mask: np.ndarray, part: str) -> np.ndarray:
    """One part of an object's mask, a half along an axis; same shape, bool.

    Raises ValueError for an unknown part and for an empty mask.
    """
    ys, xs = np.nonzero(mask)
    if len(ys) == 0:
        raise ValueError("the mask is empty; a part needs an object")
    yy, xx = np.indices(mask.shape)
    middle_x, middle_y = (xs.min() + xs.max() + 1) / 2, (ys.min() + ys.max() + 1) / 2
    match part:
        case "left half":
            return mask & (xx < middle_x)
        case "right half":
            return mask & (xx >= middle_x)
        case "top half":
            return mask & (yy < middle_y)
        case "bottom half":
            return mask & (yy >= middle_y)
    names = [name for parts in DIVISIONS for name in parts]
    raise ValueError(f"unknown part {part!r}; expected one of {', '.join(names)}")


def union_mask(objects: tuple[SceneObject, ...] | list[SceneObject]) -> np.ndarray:
    """The union of the objects' masks, bool (H, W). Raises ValueError for no objects."""
    if not objects:
        raise ValueError("a union needs at least one object")
    return np.logical_or.reduce([o.mask for o in objects])


def caption_of(words: dict[str, str]) -> str:
    """The caption that names the given attributes, in the miniature's one grammar.

    >>> caption_of({"size": "small", "color": "red", "row": "top"})
    'the small red object at the top'
    >>> caption_of({"shape": "circle", "row": "top", "column": "left"})
    'the circle at the top left'
    """
    noun = [words[a] for a in ("size", "color") if a in words] + [words.get("shape", "object")]
    place = [words[a] for a in ("row", "column") if a in words]
    return " ".join(["the", *noun, *(["at", "the", *place] if place else [])])


def _draw_kind(rng: np.random.Generator) -> tuple[str, str, str]:
    return str(rng.choice(list(SIZES))), str(rng.choice(list(COLORS))), str(rng.choice(SHAPES))


def _draw_background(rng: np.random.Generator) -> np.ndarray:
    """A soft grey gradient in a random direction, float (H, W, 3)."""
    start, end = rng.uniform(205, 245, size=2)
    angle = rng.uniform(0, 2 * np.pi)
    yy, xx = np.indices((SIDE_PX, SIDE_PX)) / (SIDE_PX - 1) - 0.5
    ramp = (np.cos(angle) * xx + np.sin(angle) * yy) / np.sqrt(2) + 0.5
    return np.repeat((start + (end - start) * ramp)[..., None], 3, axis=2)


def _draw_mask(shape: str, radius: int, row: int, column: int, rng: np.random.Generator) -> np.ndarray:
    slack = min(MAX_JITTER_PX, max(0, CELL_PX // 2 - radius - 1))
    jitter = rng.integers(-slack, slack + 1, size=2)
    cx, cy = np.array([column, row]) * CELL_PX + CELL_PX // 2 + jitter
    canvas = np.zeros((SIDE_PX, SIDE_PX), np.uint8)
    if shape == "circle":
        cv2.circle(canvas, (int(cx), int(cy)), radius, 1, -1)
    elif shape == "square":
        half = round(radius * 0.88)
        cv2.rectangle(canvas, (int(cx - half), int(cy - half)), (int(cx + half), int(cy + half)), 1, -1)
    else:
        corners = np.array([[cx, cy - radius], [cx - radius, cy + radius * 0.8], [cx + radius, cy + radius * 0.8]])
        cv2.fillPoly(canvas, [np.round(corners).astype(np.int32)], 1)
    return canvas.astype(bool)
