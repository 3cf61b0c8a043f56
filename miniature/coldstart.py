"""Cold start of the small policy: it learns to see, to describe a region shortly and to find a described one.

Two phases, both on scenes drawn in memory (their seeds are disjoint from every other split's):

1. vision warm-up: every visual token names the attributes and the mask codes of the object in its cell, through the
   tied embeddings. Without it, supervised training stays on a plateau (a two-million-parameter model finds no way from
   pixels to words by itself);
2. supervised fine-tuning on conversations (`turns.py`): captions are true but short and often ambiguous, which is what
   CycleGRPO then improves without ever seeing a caption.

Distinct images of a batch are encoded once and their features shared by all turns about them
(`mm_encoder_outputs` of transformers' Qwen3-VL).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from cyclegrpo.dataset.tokenizers import load_tokenizer
from cyclegrpo.files import write_text
from cyclegrpo.params import Crop
from cyclegrpo.policy import save_policy
from miniature.expressions import draw_expression
from miniature.known import KnownScene, know_scenes
from miniature.params import ColdStart, MiniatureParams
from miniature.policy import build_model, build_processor, build_tokenizer
from miniature.scene import COLUMNS, ROWS, VOCABULARY, caption_of, draw_scene
from miniature.turns import IGNORE, NO_ANSWERS, Turn, TurnEncoder, draw_turns, fixed_sentences

POLICY_DIR = Path("data/miniature/policy")
RESULTS_DIR = Path("results/miniature/coldstart")
LOG_STEPS = 50
NUM_TOKENIZER_SCENES = 2000


def answer_loss(model: Any, encoder: TurnEncoder, images: list[Image.Image], turns: list[Turn]) -> torch.Tensor:
    """Mean cross-entropy of the answer tokens of all turns; every distinct image is encoded once."""
    pixels, grids = encoder.patches(images)
    features = model.model.get_image_features(torch.cat(pixels), grids, return_dict=True)
    total, count = torch.zeros(()), 0
    for num_images in sorted({len(t.images) for t in turns}):
        group = [t for t in turns if len(t.images) == num_images]
        order = [i for t in group for i in t.images]
        shared = BaseModelOutputWithDeepstackFeatures(
            pooler_output=[features.pooler_output[i] for i in order],
            deepstack_features=[[level[i] for i in order] for level in features.deepstack_features],
        )
        batch = encoder.text(group, grids)
        labels = batch.pop("labels")
        hidden = model.model(
            **batch, image_grid_thw=grids[order], mm_encoder_outputs={"image": shared}
        ).last_hidden_state
        wanted = labels[:, 1:] != IGNORE
        logits = model.lm_head(hidden[:, :-1][wanted])
        total = total + F.cross_entropy(logits, labels[:, 1:][wanted], reduction="sum")
        count += int(wanted.sum())
    return total / count


def naming_loss(model: Any, encoder: TurnEncoder, batch: Sequence[KnownScene]) -> torch.Tensor:
    """Warm-up loss: the visual token of an object's cell names each attribute and both codes of that object."""
    pixels, grids = encoder.patches([k.image for k in batch])
    features = model.model.get_image_features(torch.cat(pixels), grids, return_dict=True).pooler_output
    embedding = model.get_input_embeddings().weight
    cells, words = [], []
    for feature, known in zip(features, batch, strict=True):
        for scene_object, known_object in zip(known.scene.objects, known.objects, strict=True):
            cells.append(feature[3 * ROWS.index(scene_object.row) + COLUMNS.index(scene_object.column)])
            spelled = [f" {scene_object.word(a)}" for a in VOCABULARY]
            words.append(
                encoder.tokenizer("".join(spelled) + known_object.token, add_special_tokens=False)["input_ids"]
            )
    target = torch.tensor(words)  # (objects, 5 attributes + 4 mask tokens); every word of the vocabulary is one token
    logits = F.rms_norm(torch.stack(cells), (embedding.shape[1],)) @ embedding.T
    log_probs = logits.log_softmax(-1)
    return -log_probs.gather(1, target).mean()


def train_cold_start(
    model: Any,
    processor: Any,
    scenes: Sequence[KnownScene],
    params: ColdStart,
    on_step: Callable[[str, int, float], None] = lambda phase, step, loss: None,
) -> None:
    """Both phases, in place. `on_step(phase, step, loss)` is called after every step."""
    encoder = TurnEncoder(processor)
    rng = np.random.default_rng(params.seed)
    warmup_batches = _shuffled_batches(scenes, params.warmup_images_per_step, rng)
    _optimise(
        model,
        params.warmup_steps,
        params.warmup_learning_rate,
        lambda: naming_loss(model, encoder, next(warmup_batches)),
        lambda step, loss: on_step("warm-up", step, loss),
    )

    batches = _shuffled_batches(scenes, params.images_per_step, rng)

    def step_loss() -> torch.Tensor:
        batch = next(batches)
        images = [known.image for known in batch]
        turns = [t for i, known in enumerate(batch) for t in draw_turns(known, i, images, params, rng)]
        return answer_loss(model, encoder, images, turns)

    _optimise(model, params.num_steps, params.learning_rate, step_loss, lambda step, loss: on_step("sft", step, loss))


def _shuffled_batches(scenes: Sequence[KnownScene], size: int, rng: np.random.Generator) -> Iterator[list[KnownScene]]:
    """Batches without end, a fresh shuffle in every pass. Raises ValueError where the scenes do not fill one batch."""
    if size > len(scenes):
        raise ValueError(f"{len(scenes)} scenes do not fill a step of {size}; draw more, or show fewer in a step")
    while True:
        order = rng.permutation(len(scenes))
        for start in range(0, len(order) - size + 1, size):
            yield [scenes[i] for i in order[start : start + size]]


def _optimise(
    model: Any,
    num_steps: int,
    learning_rate: float,
    loss_of: Callable[[], torch.Tensor],
    on_step: Callable[[int, float], None],
) -> None:
    """AdamW with 4 % warm-up and a cosine to zero; gradients clipped at norm 1."""
    if num_steps == 0:
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    warm = max(1, num_steps // 25)

    def scale(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + float(np.cos(np.pi * (step - warm) / max(1, num_steps - warm))))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    model.train()
    for step in range(num_steps):
        loss = loss_of()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        on_step(step, float(loss.detach()))
    model.eval()


def new_policy(params: ColdStart) -> tuple[Any, Any]:
    """The small policy with random weights, and its processor, whose tokenizer has read the miniature's captions."""
    rng = np.random.default_rng([params.seed, 1])
    captions = [*NO_ANSWERS] * 50
    for seed in range(NUM_TOKENIZER_SCENES):  # texts only: these scenes are never shown
        captions.append(
            caption_of(draw_expression(draw_scene(seed), rng, params.expression_words, unambiguous=False)[1])
        )
    tokenizer = build_tokenizer(captions, fixed_sentences())
    for word in (word for words in VOCABULARY.values() for word in words):
        if len(tokenizer.tokenize(f" {word}")) != 1:
            raise RuntimeError(f"{word!r} is not one token of the small policy; raise num_merges")
    return build_model(tokenizer, seed=params.seed), build_processor(tokenizer)


@dataclass(frozen=True)
class ColdStartReport:
    """What the stage prints."""

    num_scenes: int
    num_parameters: int
    last_loss: float
    seconds: float


def run_cold_start(
    params: MiniatureParams,
    tokenizer_dir: Path,
    crop: Crop,
    policy_dir: Path = POLICY_DIR,
    results_dir: Path = RESULTS_DIR,
) -> ColdStartReport:
    """Draw the scenes, train the policy and save it, its weights rounded to float16 (half the file)."""
    start = time.perf_counter()
    settings = params.coldstart
    tokenizer = load_tokenizer(tokenizer_dir, "cpu")
    scenes = know_scenes(params.scenes.coldstart.seeds, tokenizer, crop)
    model, processor = new_policy(settings)
    losses: list[tuple[str, int, float]] = []

    def on_step(phase: str, step: int, loss: float) -> None:
        losses.append((phase, step, loss))
        if step % LOG_STEPS == LOG_STEPS - 1:
            mean = np.mean([value for _, _, value in losses[-LOG_STEPS:]])
            seconds = time.perf_counter() - start
            sys.stderr.write(f"{phase} step {step + 1}  loss {mean:.4f}  {seconds:.0f} s\n")

    train_cold_start(model, processor, scenes, settings, on_step)
    save_policy(model.half(), processor, policy_dir)
    write_text(
        results_dir / "curves.csv", "".join(["phase,step,loss\n", *(f"{p},{s},{v:.6f}\n" for p, s, v in losses)])
    )
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    last = float(np.mean([value for _, _, value in losses[-LOG_STEPS:]]))
    return ColdStartReport(len(scenes), num_parameters, last, time.perf_counter() - start)
