"""Training a mask tokenizer: the loop, and how the result is stored. What a step does: `step.py`.

Runs under accelerate, on one process or several (`accelerate launch`). Every draw is a pure function of the seed, the
step and the process, so that a run which goes on after a kill ends as one that was never interrupted.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor

from cyclegrpo.errors import DataError
from cyclegrpo.files import atomic_path, digest
from cyclegrpo.tokenizer.config import config_of
from cyclegrpo.tokenizer.folder import save_tokenizer
from cyclegrpo.tokenizer.losses import resize_masks
from cyclegrpo.tokenizer.mask_prompts import normalised_boxes
from cyclegrpo.tokenizer.model import MaskTokenizer
from cyclegrpo.tokenizer.params import TokenizerTraining
from cyclegrpo.tokenizer.quantizer import CodebookAverages
from cyclegrpo.tokenizer.step import TrainingStep, start_weights
from cyclegrpo.unfinished import UnfinishedRun, digest_weights, require_finite

DrawExample = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
"""Draws an image, uint8 RGB (H, W, 3), and the asked number N of its masks, bool (N, H, W), none empty."""

Row = dict[str, float]


def train_mask_tokenizer(
    draw_example: DrawExample,
    params: TokenizerTraining,
    *,
    tokenizer: MaskTokenizer | None = None,
    checkpoint_dir: Path | None = None,
    data: str = "",
    cpu: bool = False,
    kept: Sequence[Any] = (),
    log_every: int = 25,
    on_row: Callable[[Row], None] = lambda row: None,
    keep: Callable[[MaskTokenizer, list[Row]], None] = lambda tokenizer, curve: None,
) -> tuple[MaskTokenizer, list[Row]]:
    """A trained tokenizer (in eval mode) and its training curve; the same params and examples give the same weights.

    Args:
        draw_example: called for every image of every step.
        params: sizes, steps, losses and the order of the phases.
        tokenizer: one to go on from, with its own sizes and codebooks and without phases; None starts from nothing.
        checkpoint_dir: where the state is kept every `params.save_steps`; an unfinished run there is taken up again.
        data: what tells these examples from others, so that a run does not go on with other ones.
        cpu: train on the CPU also where there is a GPU.
        kept: what else a run that goes on must know; each has `state_dict` and `load_state_dict`.
        log_every: steps between rows of the curve; the last step is always one.
        on_row: called with every row as it is measured, on the main process.
        keep: called with what is returned, on the main process, to store it; only then is the unfinished run removed.

    Raises DataError where `checkpoint_dir` holds an unfinished run with other params, other first weights or other
    data, or files that are none; and where the loss or a weight is no number any more.
    """
    run = _Run(draw_example, params, tokenizer, cpu)
    run.accelerator.register_for_checkpointing(*kept)
    unfinished = UnfinishedRun(checkpoint_dir, run.accelerator, _digest_of(run, data))
    is_main = run.accelerator.is_main_process
    unfinished.resume()
    while run.state.step < params.num_steps:
        step = run.state.step
        losses = run.optimise()
        if step % log_every == 0 or step == params.num_steps - 1:
            row = {"step": step, "learning_rate": run.learning_rate, **run.means(losses)}
            if not math.isfinite(row["loss"]):
                raise DataError(f"the loss is {row['loss']} at step {step}; lower learning_rate and start anew.")
            run.state.curve.append(row)
            if is_main:
                on_row(row)
        run.state.step += 1
        is_last = run.state.step == params.num_steps
        if is_last or (params.save_steps and run.state.step % params.save_steps == 0):
            require_finite(run.module)
            if params.save_steps:
                unfinished.save(run.state.step)
    trained = run.accelerator.unwrap_model(run.module).tokenizer.cpu().eval()
    if is_main:
        keep(trained, run.state.curve)
    unfinished.clear()
    return trained, run.state.curve


class _State:
    """What a checkpoint holds beside the weights and the optimizer's state."""

    def __init__(self, averages: CodebookAverages) -> None:
        self.step = 0
        self.curve: list[Row] = []
        self.averages = averages

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "curve": self.curve, "averages": self.averages.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.curve = state["step"], state["curve"]
        self.averages.load_state_dict(state["averages"])


class _Run:
    """One training: the module, the optimizer and the moving codebooks, on this process's device."""

    def __init__(
        self, draw_example: DrawExample, params: TokenizerTraining, tokenizer: MaskTokenizer | None, cpu: bool
    ) -> None:
        self.params = params = params if tokenizer is None else params.without_phases()
        self.draw_example = draw_example
        # Phases leave parts of the model without a gradient, which several processes have to be told.
        phases = DistributedDataParallelKwargs(find_unused_parameters=True)
        self.accelerator = Accelerator(
            cpu=cpu, mixed_precision="bf16" if params.bf16 else "no", kwargs_handlers=[phases]
        )
        torch.manual_seed(params.seed)
        is_new = tokenizer is None
        if tokenizer is None:
            tokenizer = MaskTokenizer(config_of(params.sizes))
            start_weights(tokenizer, params)
        tokenizer = tokenizer.train().to(self.accelerator.device)
        averages = CodebookAverages(
            list(tokenizer.codebooks),
            decay=params.codebook_decay,
            restart_ratio=params.restart_ratio,
            seed=params.seed,
            keep_rows=not is_new,
            gather=self.accelerator.gather,
        )
        module = TrainingStep(tokenizer, averages, params)
        self.weights = [weight for weight in module.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(
            self.weights, lr=params.learning_rate, weight_decay=params.weight_decay, fused=True
        )
        self.config = tokenizer.config
        self.tokenizer = tokenizer
        self.state = _State(averages)
        self.module, self.optimizer = self.accelerator.prepare(module, optimizer)
        self.accelerator.register_for_checkpointing(self.state)

    @property
    def learning_rate(self) -> float:
        """Of the step that comes."""
        return self.params.learning_rate * schedule(self.state.step, self.params.num_steps, self.params.warmup_ratio)

    def optimise(self) -> dict[str, Tensor]:
        """One optimizer step; the losses and figures of this process."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        seed = [self.params.seed, self.state.step, self.accelerator.process_index]
        rng = np.random.default_rng(seed)
        batch = [part.to(self.accelerator.device) for part in self.draw_batch(rng)]
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        losses = self.module(*batch, self.state.step / self.params.num_steps, generator)
        self.optimizer.zero_grad(set_to_none=True)
        self.accelerator.backward(losses["loss"])
        self.accelerator.clip_grad_norm_(self.weights, self.params.max_grad_norm)
        self.optimizer.step()
        return losses

    def means(self, losses: dict[str, Tensor]) -> Row:
        """The losses and figures as numbers, over all processes."""
        everywhere = self.accelerator.reduce({name: value.detach() for name, value in losses.items()}, "mean")
        return {name: float(value) for name, value in everywhere.items()}

    def draw_batch(self, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels (B, 3, image_size, image_size), masks (B, N, T, T) in 0..1, boxes (B, N, 4) of the masks as drawn."""
        side = self.config.image_size // 4 * self.params.fine_loss_scale
        pixels, masks, boxes = [], [], []
        for _ in range(self.params.images_per_step):
            image, masks_NHW = self.draw_example(rng, self.params.masks_per_image)
            pixels.append(self.tokenizer.image_to_pixels(image))
            boxes.append(normalised_boxes(torch.from_numpy(masks_NHW)))
            masks.append(resize_masks(torch.from_numpy(masks_NHW).float(), side))
        return torch.stack(pixels), torch.stack(masks), torch.stack(boxes)


def _digest_of(run: _Run, data: str) -> str:
    """What a run must share with its continuation: parameters, processes, first weights and data."""
    return digest(
        run.params.model_dump(mode="json"), run.accelerator.num_processes, digest_weights(run.tokenizer), data
    )


def schedule(step: int, num_steps: int, warmup_ratio: float) -> float:
    """Share of the peak learning rate: a rising line, then half a cosine down to 0.

    >>> [round(schedule(step, 100, 0.04), 3) for step in (0, 3, 4, 52, 100)]
    [0.25, 1.0, 1.0, 0.5, 0.0]
    """
    warmup_steps = math.ceil(warmup_ratio * num_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, num_steps - warmup_steps)))


@torch.no_grad()
def round_to_half(tokenizer: MaskTokenizer) -> None:
    """Round every weight to a value that float16 holds, so that storing it in half the bytes changes no code."""
    for tensor in (*tokenizer.parameters(), *tokenizer.buffers()):
        tensor.copy_(tensor.half())


def save_half(tokenizer: MaskTokenizer, folder: Path) -> None:
    """Store rounded weights as float16 (see `round_to_half`), atomically; `from_pretrained` gives float32 back."""
    with atomic_path(folder) as temporary:
        save_tokenizer(tokenizer.half(), temporary)
    tokenizer.float()
