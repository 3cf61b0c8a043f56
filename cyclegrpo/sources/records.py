"""What every reader of annotations yields: a record, or the reason why there is none.

A record is one image with the regions that an annotation names on it, and a text where the annotation has one.
Readers neither open images nor load models: a region stays in the spelling of its source until the `regions` stage
has decoded or encoded it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cyclegrpo.params import Kind
from cyclegrpo.regions.geometry import Box, Rle

Unit = Literal["record", "region", "crop", "image", "row"]


@dataclass(frozen=True, slots=True)
class Region:
    """A region in exactly one spelling.

    Attributes:
        tokens: one token group as the source writes it, not yet checked against a codebook.
        rle: the true mask, in the frame of the record's declared size.
        box: x0, y0, x1, y1 in pixels, half-open, in the frame of the record's declared size.
        label: the source's name for the region, if it has one.

    >>> Region()
    Traceback (most recent call last):
        ...
    ValueError: a region has one spelling, this one has 0; give one of tokens, rle, box
    """

    tokens: str | None = None
    rle: Rle | None = None
    box: Box | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        num_spellings = sum(spelling is not None for spelling in (self.tokens, self.rle, self.box))
        if num_spellings != 1:
            raise ValueError(f"a region has one spelling, this one has {num_spellings}; give one of tokens, rle, box")


@dataclass(frozen=True, slots=True)
class Record:
    """One image with its regions.

    Attributes:
        record_id: `<source name>/<id in the source>`, unique and stable.
        image: the image's path as the annotation writes it.
        regions: in the source's order; empty for `no_target` only.
        text: the expression (`expression`, `no_target`); None for `describe`.
        kind: `describe`: regions to be described; `expression`: a text and the regions that it means (their union);
            `no_target`: a text that means nothing in this image.
        size: (height, width) that the annotation declares, or None. It tells in which frame masks and boxes lie.
    """

    record_id: str
    image: str
    regions: tuple[Region, ...]
    text: str | None
    kind: Kind
    size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """Something that was left out, and why.

    Attributes:
        record_id: the record that it belongs to (for `image`: the image's name).
        reason: a short fixed word that reports count by, such as `image_missing`.
        message: one sentence with what was found.
        unit: what was left out: a record, one region of it, its crop, an image, or a row of the dataset.
    """

    record_id: str
    reason: str
    message: str = ""
    unit: Unit = "record"
