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

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from cyclegrpo.dataset.tokenizers import load_tokenizer
from cyclegrpo.errors import DataError
from cyclegrpo.files import digest, sha256_file, write_text
from cyclegrpo.params import Crop
from cyclegrpo.policy import save_policy
from cyclegrpo.tokenizer.train import schedule
from cyclegrpo.unfinished import UnfinishedRun, digest_weights, require_finite
from cyclegrpo.vision import speed_up_vision
from miniature.code_state import miniature_code
from miniature.expressions import draw_expression
from miniature.known import KnownScene, know_scenes
from miniature.params import ColdStart, MiniatureParams
from miniature.policy import build_model, build_processor, build_tokenizer
from miniature.scene import COLUMNS, ROWS, VOCABULARY, caption_of, draw_scene
from miniature.turns import IGNORE, NO_ANSWERS, Turn, TurnEncoder, draw_turns, fixed_sentences

POLICY_DIR = Path("data/miniature/policy")
RESULTS_DIR = Path("results/miniature/coldstart")
LOG_STEPS = 50
SAVE_STEPS = 250
WARMUP_RATIO = 0.04
NUM_TOKENIZER_SCENES = 2000

Row = tuple[str, int, float]
"""Of the curve: phase, step in it, loss."""


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
            spelled = "".join(f" {scene_object.word(a)}" for a in VOCABULARY)
            words.append(encoder.words(spelled + known_object.token))
    target = torch.tensor(words)  # (objects, 5 attributes + 4 mask tokens); every word of the vocabulary is one token
    logits = F.rms_norm(torch.stack(cells), (embedding.shape[1],)) @ embedding.T
    log_probs = logits.log_softmax(-1)
    return -log_probs.gather(1, target).mean()


def train_cold_start(
    model: Any,
    processor: Any,
    scenes: Sequence[KnownScene],
    params: ColdStart,
    *,
    checkpoint_dir: Path | None = None,
    data: str = "",
    on_row: Callable[[Row], None] = lambda row: None,
    keep: Callable[[list[Row]], None] = lambda curve: None,
) -> list[Row]:
    """Both phases, in place; returns the curve, a row for every step.

    Args:
        checkpoint_dir: where the state is kept every `SAVE_STEPS`; an unfinished run there is taken up again.
        data: what tells these scenes from others, so that a run does not go on with other ones.
        on_row: called with every row as it is measured.
        keep: called with the curve, to store it and the model; only then is the unfinished run removed.

    Raises ValueError where the scenes do not fill one step; DataError where the loss or a weight is no number any more,
    or where `checkpoint_dir` holds another unfinished run.
    """
    phases = _phases(params, len(scenes))
    accelerator = Accelerator(cpu=True)
    # Of the second phase too, which forgets the first one's averages.
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.98), fused=True)
    model, optimizer = accelerator.prepare(model.train(), optimizer)
    state = _State(len(scenes), params.seed)
    accelerator.register_for_checkpointing(state)
    run = digest(params.model_dump(mode="json"), digest_weights(model), data)
    unfinished = UnfinishedRun(checkpoint_dir, accelerator, run)
    unfinished.resume()
    encoder = TurnEncoder(processor)

    def sft_loss(batch: list[KnownScene]) -> torch.Tensor:
        images = [known.image for known in batch]
        turns = [t for i, known in enumerate(batch) for t in draw_turns(known, i, images, params, state.rng)]
        return answer_loss(model, encoder, images, turns)

    loss_of = {"warm-up": lambda batch: naming_loss(model, encoder, batch), "sft": sft_loss}
    steps = [(phase, step) for phase in phases for step in range(phase.num_steps)]
    for phase, step in steps[len(state.curve) :]:
        if step == 0:
            optimizer.state.clear()
            state.order = []
        batch = [scenes[i] for i in state.next_batch(phase.images_per_step)]
        loss = _take_step(model, optimizer, loss_of[phase.name](batch), phase.learning_rate_at(step))
        if not math.isfinite(loss):
            raise DataError(f"the loss of {phase.name} is no number at step {step}; lower its learning rate")
        state.curve.append((phase.name, step, loss))
        on_row(state.curve[-1])
        if len(state.curve) % SAVE_STEPS == 0:
            require_finite(model)
            unfinished.save(len(state.curve))
    require_finite(model.eval())
    keep(state.curve)
    unfinished.clear()
    return state.curve


@dataclass(frozen=True)
class Phase:
    """One of the two phases: AdamW, 4 % warm-up and a cosine to zero, gradients clipped at norm 1."""

    name: str
    num_steps: int
    learning_rate: float
    images_per_step: int

    def learning_rate_at(self, step: int) -> float:
        """Of a step in this phase."""
        return self.learning_rate * schedule(step, self.num_steps, WARMUP_RATIO)


def _take_step(model: Any, optimizer: Any, loss: torch.Tensor, learning_rate: float) -> float:
    """One optimizer step; the loss as a number."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _phases(params: ColdStart, num_scenes: int) -> tuple[Phase, Phase]:
    """Both phases; ValueError where the scenes do not fill a step of one."""
    phases = (
        Phase("warm-up", params.warmup_steps, params.warmup_learning_rate, params.warmup_images_per_step),
        Phase("sft", params.num_steps, params.learning_rate, params.images_per_step),
    )
    most = max(phase.images_per_step for phase in phases)
    if most > num_scenes:
        raise ValueError(f"{num_scenes} scenes do not fill a step of {most}; draw more, or show fewer in a step")
    return phases


class _State:
    """What the next steps depend on beside weights and optimizer, and the curve so far.

    Scenes come in batches without end, each pass over them in a fresh order.
    """

    def __init__(self, num_scenes: int, seed: int) -> None:
        self.num_scenes = num_scenes
        self.rng = np.random.default_rng(seed)
        self.order: list[int] = []
        self.curve: list[Row] = []

    def next_batch(self, size: int) -> list[int]:
        """Numbers of the scenes of the step."""
        if len(self.order) < size:
            self.order = self.rng.permutation(self.num_scenes).tolist()
        batch, self.order = self.order[:size], self.order[size:]
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state, "order": self.order, "curve": self.curve}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.order, self.curve = state["order"], [tuple(row) for row in state["curve"]]


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
    speed_up_vision(model)

    def keep(curve: list[Row]) -> None:
        half = model.half()
        require_finite(half)  # float16 has no number above 65,504
        save_policy(half, processor, policy_dir)
        lines = [f"{phase},{step},{loss:.6f}\n" for phase, step, loss in curve]
        write_text(results_dir / "curves.csv", "".join(["phase,step,loss\n", *lines]))

    recent: deque[float] = deque(maxlen=LOG_STEPS)

    def tell(row: Row) -> None:
        phase, step, loss = row
        recent.append(loss)
        if step % LOG_STEPS == LOG_STEPS - 1:
            seconds = time.perf_counter() - start
            sys.stderr.write(f"{phase} step {step + 1}  loss {np.mean(recent):.4f}  {seconds:.0f} s\n")

    curve = train_cold_start(
        model,
        processor,
        scenes,
        settings,
        checkpoint_dir=policy_dir.with_name(f"{policy_dir.name}.checkpoints"),
        data=digest(
            params.scenes.coldstart.model_dump(mode="json"),
            crop.model_dump(mode="json"),
            [sha256_file(path) for path in sorted(tokenizer_dir.iterdir()) if path.is_file()],
            miniature_code(),
        ),
        on_row=tell,
        keep=keep,
    )
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    last = float(np.mean([loss for _, _, loss in curve[-LOG_STEPS:]]))
    return ColdStartReport(len(scenes), num_parameters, last, time.perf_counter() - start)
