"""From answers to overlaps: what a locate answer means on its image, and how far that is from the true region.

Two scorers with one interface, one per region space with images. Answers are read with the repair rules of benchmark
evaluation (a group with one code still decodes); whether an answer could be parsed is judged without any repair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cyclegrpo.evaluation.heldout import HeldoutRegion
from cyclegrpo.evaluation.metrics import Located
from cyclegrpo.regions.boxes import parse_boxes
from cyclegrpo.regions.geometry import Rle, mask_iou, mask_to_box_1000, mask_to_rle, masks_union, rle_to_mask
from cyclegrpo.regions.overlap import box_overlap
from cyclegrpo.regions.tokens import Code, codes_to_array, parse_tokens

if TYPE_CHECKING:
    from cyclegrpo.tokenizer import MaskTokenizer


@dataclass(frozen=True)
class Answer:
    """One locate answer about an image, and the region that was meant."""

    image: str
    text: str
    target: HeldoutRegion


class Scorer(Protocol):
    """Scores answers in one region space."""

    def score(self, answers: Sequence[Answer]) -> list[Located]:
        """Overlap with the target and the answer's form, for every answer, in order."""

    def found(self, answer: Answer) -> object:
        """The located region as JSON for drawing: an RLE, boxes in 0..1000, or None when it is empty."""


class MaskScorer:
    """Scores mask tokens: every distinct code pair of an image is decoded once, at the size of the true masks, and kept
    as RLE.

    Args:
        tokenizer: decodes codes.
        features: the image features of every image by name, each of one image.
        sizes: (height, width) of every image by name.
    """

    def __init__(
        self,
        tokenizer: MaskTokenizer,
        features: Mapping[str, Any],
        sizes: Mapping[str, tuple[int, int]],
        *,
        codebook_size: int = 256,
    ) -> None:
        self._tokenizer = tokenizer
        self._features = features
        self._sizes = sizes
        self._codebook_size = codebook_size
        self._rles: dict[str, dict[Code, Rle]] = defaultdict(dict)

    def score(self, answers: Sequence[Answer]) -> list[Located]:
        """See `Scorer`; the overlap is the IoU of the union of all located masks with the target's mask."""
        self._decode_new(answers)
        return [self._score_one(answer) for answer in answers]

    def found(self, answer: Answer) -> object:
        """The union of the located masks as COCO RLE, or None when it has no pixel."""
        self._decode_new([answer])
        mask = self._union(answer)
        return mask_to_rle(mask) if mask.any() else None

    def _score_one(self, answer: Answer) -> Located:
        strict = parse_tokens(answer.text, codebook_size=self._codebook_size)
        mask = self._union(answer)
        parsed = bool(strict.codes) or strict.explicit_empty
        return Located(answer.text, mask_iou(mask, answer.target.mask), parsed=parsed)

    def _codes(self, text: str) -> list[Code]:
        return parse_tokens(text, codebook_size=self._codebook_size, repair=True).codes

    def _decode_new(self, answers: Sequence[Answer]) -> None:
        wanted: dict[str, dict[Code, None]] = defaultdict(dict)
        for answer in answers:
            for pair in self._codes(answer.text):
                if pair not in self._rles[answer.image]:
                    wanted[answer.image][pair] = None
        for image, pairs in wanted.items():
            codes = codes_to_array(list(pairs))
            masks = self._tokenizer.iterate_masks(self._features[image], codes, *self._sizes[image])
            self._rles[image].update(zip(pairs, map(mask_to_rle, masks), strict=True))

    def _union(self, answer: Answer) -> np.ndarray:
        masks = (rle_to_mask(self._rles[answer.image][pair]) for pair in self._codes(answer.text))
        return masks_union(masks, *self._sizes[answer.image])


class BoxScorer:
    """Scores boxes in 0..1000: IoU of the union area of the located boxes with the tight box of the true mask."""

    def __init__(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        self._sizes = sizes

    def score(self, answers: Sequence[Answer]) -> list[Located]:
        """See `Scorer`."""
        located = []
        for answer in answers:
            parsed = parse_boxes(answer.text)
            overlap = box_overlap(parsed.boxes, [mask_to_box_1000(answer.target.mask)])
            well_formed = bool(parsed.boxes) or parsed.explicit_empty
            located.append(Located(answer.text, overlap, parsed=well_formed))
        return located

    def found(self, answer: Answer) -> object:
        """The located boxes as lists of four numbers in 0..1000, or None when there is none."""
        return [list(box) for box in parse_boxes(answer.text).boxes] or None
