"""The DenseWorld-like annotations of the miniature: the V3Det-like images described, with regions as mask tokens.

Writes `denseworld/annotations.json` below the raw folder, a JSON list of `{image, conversations: [human, gpt]}`, after
the world stage and with the tokenizer that the later stages decode it with (`base.tokenizer` of the main params file).
`image` is relative to the raw folder, `V3Det/images/<node>/<file>.jpg`; now and then it is a list with that one entry,
as in the real file. The answer names every whole object once; some name a part or a union of objects as well, and a few
hold no region. Run it with `python -m miniature.stages.annotate`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from cyclegrpo.dataset.tokenizers import load_tokenizer
from cyclegrpo.files import write_text
from cyclegrpo.images import load_image
from cyclegrpo.regions.tokens import codes_to_tokens
from miniature.expressions import draw_multi_target, draw_words
from miniature.params import MiniatureParams
from miniature.scene import SIDE_PX, Scene, caption_of, part_mask, union_mask
from miniature.world import DENSEWORLD, check_world, draw_v3det

if TYPE_CHECKING:
    from cyclegrpo.tokenizer import ImageFeatures, MaskTokenizer

_TAGS = 'Do not use "<|object_ref_start|>...<|object_ref_end|>" tags.'
PROMPTS = (
    "<image>\nCould you please give me a description of the image? Please respond with interleaved segmentation masks "
    f"for the corresponding parts of the answer. {_TAGS}",
    "<image>\nCan you provide a description of the this image? Please output with interleaved segmentation masks "
    f"for the corresponding phrases. {_TAGS}",
    "<image>\nPlease describe the contents of the image. Please respond with interleaved segmentation masks "
    f"for the corresponding parts of the answer. {_TAGS}",
    "<image>\nCould you give a explanation of what can be found within this picture? Please output with interleaved "
    f"segmentation masks for the corresponding phrases. {_TAGS}",
    "<image>\nCould you give me an explanation of this picture? Please respond with interleaved segmentation masks "
    f"for the corresponding phrases. {_TAGS}",
    "<image>\nCould you provide me with a analysis of this photo? Please output with interleaved segmentation masks "
    f"for the corresponding parts of the answer. {_TAGS}",
)
"""The six questions of the real file, with their slips of grammar."""
OPENINGS = ("The image shows", "On a grey background there are", "In this picture one can see")
LIST_RATIO = 0.05
PART_OF_EXTRAS = 0.5


@dataclass(frozen=True)
class Mention:
    """A region that an answer names: its phrase and its mask (H, W) bool."""

    phrase: str
    mask: np.ndarray


@dataclass(frozen=True)
class AnnotateReport:
    """What was written: records, regions, those that are no whole object, and how many entries of each codebook occur.

    `num_shared_regions` counts the regions whose tokens another region of the same image has too.
    """

    num_records: int
    num_records_without_regions: int
    num_regions: int
    num_extra_regions: int
    num_shared_regions: int
    num_first_codes: int
    num_second_codes: int


def run_annotate(params: MiniatureParams, tokenizer_dir: Path) -> AnnotateReport:
    """Write the annotations of every V3Det-like image of a finished world; each image is embedded once.

    Args:
        params: the miniature's params, which the world was made with.
        tokenizer_dir: folder of the mask tokenizer.

    Raises DataError where the world of the params or the tokenizer is not there.
    """
    check_world(params)
    tokenizer = load_tokenizer(tokenizer_dir, "auto")
    records: list[dict[str, Any]] = []
    codes: list[list[tuple[int, int]]] = []
    num_extra = 0
    without_regions = _records_without_regions(params)
    for index, (path, scene, features) in enumerate(_embedded_images(params, tokenizer)):
        rng = np.random.default_rng([params.annotate.seed, index])
        mentions = [] if index in without_regions else draw_mentions(scene, rng, params)
        codes.append(_encode(tokenizer, features, mentions))
        groups = codes_to_tokens(codes[-1], codebook_size=tokenizer.config.codebook_size)
        phrases = [mention.phrase for mention in mentions]
        records.append(draw_record(path, phrases, groups, rng, params.annotate.json_ratio))
        num_extra += max(0, len(mentions) - len(scene.objects))
    write_text(Path(params.world.raw_dir) / DENSEWORLD, json.dumps(records, indent=1) + "\n")
    return _report(codes, num_extra)


def draw_mentions(scene: Scene, rng: np.random.Generator, params: MiniatureParams) -> list[Mention]:
    """Every object of the scene, by an expression of its own, in scene order; sometimes a part or union after them."""
    words = params.world.expression_words
    mentions = [
        Mention(caption_of(draw_words(scene, index, rng, words, True)), scene_object.mask)
        for index, scene_object in enumerate(scene.objects)
    ]
    if rng.random() < params.annotate.part_ratio:
        if rng.random() < PART_OF_EXTRAS:
            index = int(rng.integers(len(mentions)))
            whole, part = mentions[index], scene.objects[index].parts[int(rng.integers(2))]
            mentions.append(Mention(f"the {part} of {whole.phrase}", part_mask(whole.mask, part)))
        else:
            targets, phrase = draw_multi_target(scene, rng, words)
            mentions.append(Mention(phrase, union_mask([scene.objects[i] for i in targets])))
    return mentions


def draw_record(
    image: str, phrases: list[str], tokens: list[str], rng: np.random.Generator, json_ratio: float
) -> dict[str, Any]:
    """One record: a drawn question, and an answer that holds every token group once, behind its phrase or as JSON.

    Without regions the answer is plain text.
    """
    prompt = PROMPTS[int(rng.integers(len(PROMPTS)))]
    opening = OPENINGS[int(rng.integers(len(OPENINGS)))]
    if not tokens:
        answer = f"{opening} a few coloured shapes."
    elif rng.random() < json_ratio:
        items = [{"mask_2d": group, "label": phrase} for phrase, group in zip(phrases, tokens, strict=True)]
        answer = f"```json\n{json.dumps(items, indent=2)}\n```"
    else:
        named = [f"{phrase} {group}" for phrase, group in zip(phrases, tokens, strict=True)]
        answer = f"{opening} {', '.join(named[:-1])}{' and ' if len(named) > 1 else ''}{named[-1]}."
    return {
        "image": [image] if rng.random() < LIST_RATIO else image,
        "conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}],
    }


def _embedded_images(params: MiniatureParams, tokenizer: MaskTokenizer) -> Iterator[tuple[str, Scene, ImageFeatures]]:
    """Path, scene and features of every image, as its file shows it, one encoder pass each (in batches)."""
    pairs = iter(draw_v3det(params))
    with tqdm(total=params.scenes.v3det.num_scenes, unit="image", disable=None) as progress:
        while batch := list(islice(pairs, params.annotate.batch_size)):
            paths = [Path(params.world.raw_dir) / path for path, _ in batch]
            features = tokenizer.embed_images([load_image(p, declared_size=(SIDE_PX, SIDE_PX)) for p in paths])
            for index, (path, scene) in enumerate(batch):
                yield path, scene, features[index]
            progress.update(len(batch))


def _encode(tokenizer: MaskTokenizer, features: ImageFeatures, mentions: list[Mention]) -> list[tuple[int, int]]:
    if not mentions:
        return []
    codes = tokenizer.encode(features, np.stack([mention.mask for mention in mentions]))
    return [(first, second) for first, second in codes.tolist()]


def _records_without_regions(params: MiniatureParams) -> set[int]:
    """Indices of the records whose answer is text alone."""
    order = np.random.default_rng(params.annotate.seed).permutation(params.scenes.v3det.num_scenes)
    return set(order[: params.annotate.num_without_regions].tolist())


def _report(codes: list[list[tuple[int, int]]], num_extra: int) -> AnnotateReport:
    flat = [code for record in codes for code in record]
    counts = [Counter(record) for record in codes]
    return AnnotateReport(
        num_records=len(codes),
        num_records_without_regions=sum(not record for record in codes),
        num_regions=len(flat),
        num_extra_regions=num_extra,
        num_shared_regions=sum(count for counter in counts for count in counter.values() if count > 1),
        num_first_codes=len({first for first, _ in flat}),
        num_second_codes=len({second for _, second in flat}),
    )
