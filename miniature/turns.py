"""The conversations of the cold start: questions about a scene with their answers, and the tensors made of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from cyclegrpo.dataset.prompts import QUESTIONS, ask_expression, question_prompt
from cyclegrpo.policy import prompt_to_messages
from cyclegrpo.regions.answers import NO_TARGET
from cyclegrpo.regions.spaces import MASK
from miniature.expressions import draw_caption, draw_expression, draw_near_miss, draw_no_target
from miniature.known import KnownScene
from miniature.params import ColdStart
from miniature.scene import VOCABULARY, caption_of

IGNORE = -100
NO_ANSWERS = ("null", NO_TARGET)
"""What the cycle's prompt and the questions of gRefCOCO rows are answered where nothing fits."""

DESCRIBE_QUESTION = MASK.describe_template.partition("{region}")[0]
ATTRIBUTES_QUESTION = "<image>\nWhat are the size, color, shape, row and column of the following region? "
"""Asked instead of it about a region's attributes, all of which the answer names."""


@dataclass(frozen=True)
class Turn:
    """One question about some images and its answer; `images` are indices into the batch's image list."""

    prompt: str
    images: tuple[int, ...]
    answer: str


def draw_turns(
    known: KnownScene, image_index: int, images: list[Image.Image], params: ColdStart, rng: np.random.Generator
) -> list[Turn]:
    """The turns of one scene in one step: descriptions, and groundings of expressions that fit an object or nothing.

    Most descriptions are short and often ambiguous, of small objects often no more than `the object`; some
    (`detailed_ratio`) name nearly every attribute, so that the policy can say both, and reinforcement has something to
    choose from. In the place of some (`attributes_ratio`) the attributes are asked for by name: what a region looks
    like is known to the policy, as to any larger model, though its descriptions seldom say it.
    Pairs of groundings differ in one word, which decides whether anything fits: without them the policy does not learn
    to compare every word. Groundings alternate between the cycle's prompt (answer `null` where nothing fits) and the
    questions of gRefCOCO rows (answer `No target.`).

    Args:
        image_index: where the scene's picture stands in `images`, the pictures of the step.
        images: crops that the turns show are appended to it.
    """
    scene, turns = known.scene, []
    crop_indices: dict[int, int] = {}
    turns += [_describe(known, image_index, images, crop_indices, params, rng) for _ in range(params.describe_turns)]
    for number in range(params.locate_turns):
        if rng.random() < params.no_target_ratio:
            turns.append(_locate(draw_no_target(scene, rng, params.expression_words), None, image_index, number, rng))
        else:
            unambiguous = bool(rng.random() < params.unambiguous_ratio)
            target, words = draw_expression(scene, rng, params.expression_words, unambiguous=unambiguous)
            turns.append(_locate(words, known.objects[target].token, image_index, number, rng))
    for number in range(params.locate_pairs):
        target, words, missing = draw_near_miss(scene, rng, params.expression_words)
        turns.append(_locate(words, known.objects[target].token, image_index, number, rng))
        turns.append(_locate(missing, None, image_index, number, rng))
    return turns


def _describe(
    known: KnownScene,
    image_index: int,
    images: list[Image.Image],
    crop_indices: dict[int, int],
    params: ColdStart,
    rng: np.random.Generator,
) -> Turn:
    """One description, or the attributes, of an object drawn at random, with its crop or without.

    Args:
        crop_indices: of the scene's objects whose crops are among the images already; the object drawn is added.
    """
    target = int(rng.integers(len(known.scene.objects)))
    scene_object, known_object = known.scene.objects[target], known.objects[target]
    is_asked = rng.random() < params.attributes_ratio
    is_detailed = rng.random() < params.detailed_ratio
    named = params.detailed_words if is_detailed else params.caption_words.of(scene_object.size)
    words = {a: scene_object.word(a) for a in VOCABULARY} if is_asked else draw_caption(known.scene, target, rng, named)
    shown: tuple[int, ...] = (image_index,)
    prompt = MASK.describe(known_object.token)
    if known_object.crop is not None and rng.random() < params.zoom_ratio:
        if target not in crop_indices:
            crop_indices[target] = len(images)
            images.append(known_object.crop)
        shown = (image_index, crop_indices[target])
        prompt = MASK.describe(known_object.token, known_object.crop_token)
    if is_asked:
        prompt = prompt.replace(DESCRIBE_QUESTION, ATTRIBUTES_QUESTION)
    return Turn(prompt, shown, caption_of(words))


def _locate(words: dict[str, str], token: str | None, image_index: int, number: int, rng: np.random.Generator) -> Turn:
    """One grounding; even numbers ask with the cycle's prompt, odd ones with a question. None is no target."""
    text = caption_of(words)
    is_question = number % 2
    prompt = ask_expression(text, str(rng.integers(2**32))) if is_question else MASK.locate(text)
    return Turn(prompt, (image_index,), NO_ANSWERS[is_question] if token is None else token)


class TurnEncoder:
    """Turns and images to tensors: token ids with labels on the answers only, patches of distinct images."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self._patches: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._words: dict[str, list[int]] = {}

    def patches(self, images: Sequence[Image.Image]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Per image its patch rows (num_patches, patch values), and the grids (num_images, 3)."""
        missing = [im for im in images if id(im) not in self._patches]
        if missing:
            out = self.processor.image_processor(images=missing, return_tensors="pt")
            rows = out["image_grid_thw"].prod(-1).tolist()
            for im, px, grid in zip(missing, out["pixel_values"].split(rows), out["image_grid_thw"], strict=True):
                self._patches[id(im)] = (px.half(), grid)
        kept = [self._patches[id(im)] for im in images]
        return [px.float() for px, _ in kept], torch.stack([grid for _, grid in kept])

    def words(self, text: str) -> list[int]:
        """The ids of a text that is asked for again and again."""
        if text not in self._words:
            self._words[text] = self._ids([text])[0]
        return self._words[text]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"]

    def text(self, turns: Sequence[Turn], grids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Right-padded `input_ids`, `attention_mask`, `labels` (answers only) and `mm_token_type_ids`, each (N, L)."""
        merge = self.processor.image_processor.merge_size**2
        pad_token = self.processor.image_token
        messages = [prompt_to_messages(turn.prompt, turn.images) for turn in turns]
        texts = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompts = []
        for turn, text in zip(turns, texts, strict=True):
            head, *rest = text.split(pad_token)
            for index, piece in zip(turn.images, rest, strict=True):
                head += pad_token * int(grids[index].prod() // merge) + piece
            prompts.append(head)
        rows = []
        for prompt_ids, answer in zip(self._ids(prompts), self._ids([turn.answer for turn in turns]), strict=True):
            answer_ids = [*answer, self.tokenizer.eos_token_id]
            rows.append((prompt_ids + answer_ids, [IGNORE] * len(prompt_ids) + answer_ids))
        length = max(len(ids) for ids, _ in rows)
        fill = self.tokenizer.pad_token_id
        ids = torch.tensor([ids + [fill] * (length - len(ids)) for ids, _ in rows])
        labels = torch.tensor([lab + [IGNORE] * (length - len(lab)) for _, lab in rows])
        lengths = torch.tensor([len(ids) for ids, _ in rows])
        mask = (torch.arange(length) < lengths[:, None]).long()
        mm = (ids == self.processor.image_token_id).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": labels, "mm_token_type_ids": mm}


def fixed_sentences() -> list[str]:
    """The fixed parts of every prompt the policy sees, longest first; its tokenizer has one token for each.

    A space before a description is left to the description, so that its first word is spelled as inside a sentence.
    """
    templates = [MASK.describe("{region}", "{crop}"), MASK.locate("{description}")]
    templates += [question_prompt(question) for question in QUESTIONS["mask"]]
    templates.append(f"{ATTRIBUTES_QUESTION}{{region}}")
    pieces = {"user\n", "assistant\n"}
    for template in templates:
        for text in re.split(r"<image>\n?|\{region\}|\{crop\}|\{description\}", template):
            pieces.add(text.removesuffix(" ") if "{description}" in template else text)
    return sorted((piece for piece in pieces if len(piece) > 2), key=lambda piece: (-len(piece), piece))
