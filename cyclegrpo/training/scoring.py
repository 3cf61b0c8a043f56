"""How good an answer is: from text to regions to an overlap with the target.

Masks are decoded by the mask tokenizer. It sees every image once per step, and every distinct pair of codes on an image
is decoded once, however many answers hold it: the image encoder is the cost (one pass equals about 200 decodes on the
large config), so the exact overlap is affordable (`seconds` says what it takes).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image

from cyclegrpo.dataset.tokenizers import embed_each
from cyclegrpo.errors import DataError
from cyclegrpo.params import Reward
from cyclegrpo.regions.boxes import parse_boxes
from cyclegrpo.regions.geometry import Box, mask_to_box_1000, masks_union
from cyclegrpo.regions.overlap import box_overlap, mask_overlap, token_overlap
from cyclegrpo.regions.rle import Rle, rle_to_mask
from cyclegrpo.regions.tokens import Code, codes_to_array, parse_tokens
from cyclegrpo.training.draws import Draw


@dataclass(frozen=True)
class AnswerScore:
    """What is known of one answer.

    Attributes:
        overlap: with the draw's target, in [0, 1]; 1.0 where both are empty, 0.0 where one is.
        regions: the well-formed regions in the answer, in its order.
        parsed: whether the answer could be read: it names a region, or says that there is none.
    """

    overlap: float
    regions: Sequence[Any]
    parsed: bool


class Scorer(Protocol):
    """Scores answers about the images of one step.

    `seconds`: what took how long since the step began, by name.
    """

    seconds: dict[str, float]

    def start_step(self) -> None:
        """Forget the last step's images and set the clocks to zero."""

    def score(self, answers: Sequence[str], draws: Sequence[Draw], images: Sequence[Image.Image]) -> list[AnswerScore]:
        """One score per answer; `images[i]` is the whole image of `draws[i]`."""


class MaskScorer:
    """Overlap of mask-token answers with the target: pixel IoU of the unions, or the graded match of tokens."""

    def __init__(self, tokenizer: Any, reward: Reward) -> None:
        self.tokenizer = tokenizer
        self.reward = reward
        self.start_step()

    def start_step(self) -> None:
        """See `Scorer`."""
        self._features: dict[str, Any] = {}
        self._masks: dict[tuple[str, Code], np.ndarray] = {}
        self.seconds = {"encode_s": 0.0, "decode_s": 0.0}

    def score(self, answers: Sequence[str], draws: Sequence[Draw], images: Sequence[Image.Image]) -> list[AnswerScore]:
        """See `Scorer`."""
        codebook_size = self.tokenizer.config.codebook_size
        parsed = [parse_tokens(answer, codebook_size=codebook_size) for answer in answers]
        targets = [parse_tokens("".join(draw.targets), codebook_size=codebook_size).codes for draw in draws]
        if self.reward.overlap == "tokens":
            overlaps = [token_overlap(p.codes, t) for p, t in zip(parsed, targets, strict=True)]
        else:
            spelled = [() if draw.target_rle is not None else codes for draw, codes in zip(draws, targets, strict=True)]
            self._decode_all(draws, images, [[*p.codes, *t] for p, t in zip(parsed, spelled, strict=True)])
            overlaps = [
                mask_overlap(self._decoded(draw, p.codes), self._target(draw, codes, image))
                for p, draw, codes, image in zip(parsed, draws, targets, images, strict=True)
            ]
        return [
            AnswerScore(overlap, p.codes, bool(p.codes) or p.explicit_empty)
            for overlap, p in zip(overlaps, parsed, strict=True)
        ]

    def _decode_all(
        self, draws: Sequence[Draw], images: Sequence[Image.Image], codes: Sequence[Sequence[Code]]
    ) -> None:
        """Encode each image that is needed once and decode each new pair of codes on it once."""
        image_of = {draw.images[0]: image for draw, image in zip(draws, images, strict=True)}
        wanted: dict[str, dict[Code, None]] = {name: {} for name in image_of}
        for draw, pairs in zip(draws, codes, strict=True):
            wanted[draw.images[0]].update(dict.fromkeys(p for p in pairs if (draw.images[0], p) not in self._masks))
        new_images = [name for name, pairs in wanted.items() if pairs and name not in self._features]
        start = time.perf_counter()
        features = embed_each(self.tokenizer, [image_of[name] for name in new_images])
        self._features |= dict(zip(new_images, features, strict=True))
        self.seconds["encode_s"] += time.perf_counter() - start
        start = time.perf_counter()
        for name, new_pairs in wanted.items():
            if new_pairs:
                masks = self._decode(name, list(new_pairs), image_of[name])
                self._masks |= {(name, pair): mask for pair, mask in zip(new_pairs, masks, strict=True)}
        self.seconds["decode_s"] += time.perf_counter() - start

    def _decode(self, name: str, pairs: list[Code], image: Image.Image) -> np.ndarray:
        """Masks (N, H, W) bool, at the image's size or at the size of the logits (`reward.resolution`)."""
        codes = codes_to_array(pairs)
        if self.reward.resolution == "image":
            return np.asarray(self.tokenizer.decode_masks(self._features[name], codes, image.height, image.width))
        logits = self.tokenizer.decode(self._features[name], codes)
        return np.asarray((logits > self.tokenizer.config.mask_threshold).cpu())

    def _decoded(self, draw: Draw, codes: Sequence[Code]) -> list[np.ndarray]:
        return [self._masks[draw.images[0], pair] for pair in codes]

    def _target(self, draw: Draw, codes: Sequence[Code], image: Image.Image) -> list[np.ndarray]:
        """The true masks where the row has them, else the decoded target; at the resolution of the comparison."""
        if draw.target_rle is None:
            return self._decoded(draw, codes)
        masks = _true_masks(draw.target_rle, draw)
        if not masks or self.reward.resolution == "image":
            return masks
        return [mask_to_cells(masks_union(masks, image.height, image.width), self.tokenizer.config.image_size // 4)]


def mask_to_cells(mask: np.ndarray, side: int) -> np.ndarray:
    """A mask at the size of the decoder's logits, bool (side, side): the cells of which it covers enough.

    Args:
        mask: bool (H, W).

    Enough is more than half of what it covers of the cell that it covers best: more than half of a cell for any region
    that fills one, less for thin ones, so that no mask with a pixel vanishes.

    >>> line = np.zeros((8, 8), bool); line[1] = True
    >>> mask_to_cells(line, 2).tolist(), bool(mask_to_cells(~line, 1)[0, 0])
    ([[True, True], [False, False]], True)
    """
    # As floats: Pillow resizes bools to the nearest pixel, whatever filter it is told.
    covered = np.asarray(Image.fromarray(mask.astype(np.float32)).resize((side, side), Image.Resampling.BOX))
    return np.asarray(covered > covered.max() / 2)


class BoxScorer:
    """Overlap of box answers with the target: IoU of the areas, in the 0..1000 frame.

    The target is the half-open box of the true mask where the row has one, as in evaluation. The text of a row is made
    from the mask's last column and row, and rounded down, so that it ends before the region does.
    """

    def start_step(self) -> None:
        """See `Scorer`; nothing is kept between steps, and nothing takes time."""
        self.seconds: dict[str, float] = {}

    def score(self, answers: Sequence[str], draws: Sequence[Draw], images: Sequence[Image.Image]) -> list[AnswerScore]:
        """See `Scorer`; the images are not needed."""
        targets = {id(draw): _target_boxes(draw) for draw in {id(draw): draw for draw in draws}.values()}
        scores = []
        for answer, draw in zip(answers, draws, strict=True):
            found = parse_boxes(answer)
            parsed = bool(found.boxes) or found.explicit_empty
            scores.append(AnswerScore(box_overlap(found.boxes, targets[id(draw)]), found.boxes, parsed))
        return scores


def _target_boxes(draw: Draw) -> list[Box]:
    """The boxes of a draw's targets in 0..1000; none where it asks for what is not there."""
    if draw.target_rle is None:
        return parse_boxes("\n".join(draw.targets)).boxes
    return [mask_to_box_1000(mask) for mask in _true_masks(draw.target_rle, draw)]


def _true_masks(rles: Sequence[Rle], draw: Draw) -> list[np.ndarray]:
    """The true masks of a draw, bool (H, W). DataError where one is empty: answers that decode to nothing would fit."""
    masks = [rle_to_mask(rle) for rle in rles]
    if not all(mask.any() for mask in masks):
        raise DataError("a true mask has no pixel; expected at least one. Build the dataset again", record=draw.record)
    return masks
