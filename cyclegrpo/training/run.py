"""The stage train: rows -> draws -> CycleGRPOTrainer -> a policy directory, a curve and metrics.

Interrupted runs resume from the last checkpoint in `models/checkpoints` when the parameters that shape the run are the
same; else the command stops and says how to start anew. The finished policy appears all at once.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from PIL import Image
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig

from cyclegrpo.dataset.schema import frame_of, list_files
from cyclegrpo.dataset.tokenizers import load_tokenizer, resolve_dtype
from cyclegrpo.errors import DataError, ParamsError
from cyclegrpo.files import digest, sha256_file, write_json
from cyclegrpo.images import MAX_PIXELS, load_image_below
from cyclegrpo.loading import bars_on_terminals_only, require_model, resolve_device
from cyclegrpo.params import Params, Train
from cyclegrpo.policy import load_model, load_processor, prompt_to_messages, require_mask_tokens, save_policy
from cyclegrpo.regions.spaces import BOX, RegionSpace, space
from cyclegrpo.tokenizer import MaskTokenizer
from cyclegrpo.training.curve import CurveWriter, summary, training_rows, write_curves
from cyclegrpo.training.draws import Draw, draw_steps, load_rows
from cyclegrpo.training.scoring import BoxScorer, MaskScorer, Scorer
from cyclegrpo.training.trainer import CycleGRPOTrainer

POLICY_DIR = Path("models/policy")
CHECKPOINT_DIR = Path("models/checkpoints")
RESULTS_DIR = Path("results/train")
RUN_FILE = "run.json"
PROCESS_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Where launchers say how many processes they have started, as accelerate reads it."""


@dataclass(frozen=True)
class TrainReport:
    """What the stage prints: steps, seconds, and the mean cycle score of the first and of the last ten logged steps.

    The scores are None in a run without regions to describe.
    """

    num_steps: int
    seconds: float
    first_cycle_score: float | None
    last_cycle_score: float | None


def run_train(
    params: Params,
    *,
    policy_dir: Path = POLICY_DIR,
    checkpoint_dir: Path = CHECKPOINT_DIR,
    results_dir: Path = RESULTS_DIR,
) -> TrainReport:
    """Train `base.policy` on the dataset and save it, with its processor, to `policy_dir`.

    Raises DataError where the dataset, the policy or the tokenizer is missing or does not fit the parameters, or where
    `checkpoint_dir` holds an unfinished run with other parameters; ParamsError where this is not one process on one
    device.
    """
    train, base = params.train, params.base
    device = training_device(base.device)  # before any file is touched
    rows = load_rows(base.dataset_dir)
    tokenizer = load_tokenizer(base.tokenizer, device, base.tokenizer_dtype) if base.region_space == "mask" else None
    steps = draw_steps(
        rows, train.prompts, _space(tokenizer), num_steps=train.num_steps, zoom=train.zoom, seed=base.seed
    )
    draws = [draw for step in steps for draw in step]
    resume = resume_or_start(checkpoint_dir, run_digest(params))
    if resume is not None:
        sys.stderr.write(f"going on from {resume}\n")
    curve = CurveWriter(results_dir, train.num_steps)
    with bars_on_terminals_only(), warnings.catch_warnings():
        # TRL 1.16 calls transformers by old names; nobody who trains can mend that.
        warnings.filterwarnings("ignore", r"`\w*gradient_checkpointing\w*` is deprecated", FutureWarning)
        trainer = build_trainer(params, draws, tokenizer, checkpoint_dir, [curve])
        start = time.perf_counter()
        trainer.train(resume_from_checkpoint=resume)
        seconds = time.perf_counter() - start
        if trainer.is_world_process_zero():
            save_policy(trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class, policy_dir)
    logged = training_rows(trainer.state.log_history)
    write_curves(results_dir, logged)  # a run that goes on from its last step logs none
    metrics = summary(logged) | {"num_steps": train.num_steps}
    write_json(results_dir / "metrics.json", metrics)
    start_run(checkpoint_dir, None)
    scores = (metrics.get(f"{part}.caption_cycle_score") for part in ("first", "last"))
    return TrainReport(train.num_steps, seconds, *scores)


def _space(tokenizer: MaskTokenizer | None) -> RegionSpace:
    """The space of the tokenizer's codes, or that of boxes."""
    return BOX if tokenizer is None else space("mask", codebook_size=tokenizer.config.codebook_size)


def build_trainer(
    params: Params,
    draws: list[Draw],
    tokenizer: MaskTokenizer | None,
    checkpoint_dir: Path,
    callbacks: list[TrainerCallback],
) -> CycleGRPOTrainer:
    """The trainer for some draws (all steps, in order), with policy, processor, scorer and TRL configuration.

    Args:
        tokenizer: decodes the answers; None in the box space.

    Raises DataError where the policy is missing or does not know the tokenizer's tokens.
    """
    base, train = params.base, params.train
    device = training_device(base.device)
    require_model(base.policy, "the policy to train", "Mend base.policy, or make one first.")
    processor = load_processor(base.policy)
    scorer: Scorer = BoxScorer()
    if tokenizer is not None:
        require_mask_tokens(base.policy, processor, codebook_size=tokenizer.config.codebook_size)
        scorer = MaskScorer(tokenizer, train.reward)
    model = load_model(base.policy, torch.float32)
    if train.freeze_vision:
        model.model.visual.requires_grad_(False)
    trainer = CycleGRPOTrainer(
        model=model,
        params=train,
        space=_space(tokenizer),
        scorer=scorer,
        args=trl_config(train, base.seed, checkpoint_dir, use_cpu=device == "cpu"),
        train_dataset=draws_dataset(draws, base.dataset_dir, max_pixels=params.check.max_pixels),
        processing_class=processor,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)  # prints every log line; `CurveWriter` says what people want to see
    return trainer


def training_device(device: str) -> str:
    """`base.device` as training uses it: `cpu`, `cuda` (the one GPU that is visible) or `mps`.

    Raises ParamsError where several processes were started, which would write over each other's files, or where several
    GPUs are visible: TRL takes one per process, and transformers always the first.
    """
    num_processes = max(int(os.environ.get(name, 1)) for name in PROCESS_COUNTS)
    if num_processes > 1:
        raise ParamsError(
            f"train was started as {num_processes} processes; expected one, on one device. Start it without a launcher"
        )
    kind = resolve_device(device).partition(":")[0]
    if kind != "cuda":
        return kind
    num_gpus = torch.cuda.device_count()
    if num_gpus > 1:
        chosen = device.partition(":")[2] or "0"
        raise ParamsError(
            f"{num_gpus} GPUs are visible and base.device is {device}; train runs on one. "
            f"Set CUDA_VISIBLE_DEVICES, for instance to {chosen}, and base.device: cuda"
        )
    return kind


def draws_dataset(draws: list[Draw], dataset_dir: Path, *, max_pixels: int = MAX_PIXELS) -> Dataset:
    """The draws as TRL reads them: `prompt` (messages with images), `draw`, `whole_image`; images open on demand."""

    def load(rows: dict[str, list[int]]) -> dict[str, list[Any]]:
        chosen = [draws[index] for index in rows["index"]]
        # A draw comes G times in a batch; its images are opened once.
        opened = {index: _open_images(draws[index], dataset_dir, max_pixels) for index in set(rows["index"])}
        images = [opened[index] for index in rows["index"]]
        prompts = [prompt_to_messages(draw.prompt, loaded) for draw, loaded in zip(chosen, images, strict=True)]
        return {"prompt": prompts, "draw": chosen, "whole_image": [loaded[0] for loaded in images]}

    return Dataset.from_dict({"index": list(range(len(draws)))}).with_transform(load)


def _open_images(draw: Draw, dataset_dir: Path, max_pixels: int) -> list[Image.Image]:
    """The whole image, in the frame of the true masks, and the crop, if the draw has one."""
    whole, *crops = draw.images
    image = load_image_below(dataset_dir, whole, declared_size=frame_of(draw.target_rle), max_pixels=max_pixels)
    return [image, *(load_image_below(dataset_dir, crop, max_pixels=max_pixels) for crop in crops)]


def trl_config(train: Train, seed: int, output_dir: Path, *, use_cpu: bool) -> GRPOConfig:
    """The run as TRL's configuration: one rollout per optimizer step, `micro_batches` parts per task."""
    num_tasks = 2 if train.optimise == "both" else 1
    num_parts = num_tasks * train.micro_batches
    prompts = train.prompts.caption + train.prompts.no_target + train.prompts.expression
    num_answers = prompts * train.num_captions
    if num_answers % num_parts:
        raise ParamsError(
            f"train: {prompts} prompts with {train.num_captions} captions each do not divide into {num_parts} equal "
            "micro-batches; change train.prompts, train.num_captions or train.micro_batches"
        )
    num_groundings = train.prompts.caption * train.num_captions * train.num_groundings
    if train.optimise != "captions" and num_groundings % train.micro_batches:
        raise ParamsError(
            f"train: {num_groundings} groundings a step do not divide into {train.micro_batches} equal micro-batches; "
            "change train.prompts.caption, train.num_groundings or train.micro_batches"
        )
    return GRPOConfig(
        output_dir=str(output_dir),
        max_steps=train.num_steps,
        steps_per_generation=num_parts,
        gradient_accumulation_steps=num_parts,
        per_device_train_batch_size=num_answers // num_parts,
        num_generations=train.num_captions,
        max_completion_length=train.max_caption_tokens,  # the trainer gives every task its own limit
        shuffle_dataset=False,  # the draws are in order already
        remove_unused_columns=False,
        temperature=train.temperature,
        top_p=train.top_p,
        learning_rate=train.learning_rate,
        lr_scheduler_type=train.lr_schedule,
        weight_decay=train.weight_decay,
        warmup_steps=train.warmup_steps,
        max_grad_norm=train.max_grad_norm,
        beta=train.beta,
        epsilon=train.epsilon_low,
        epsilon_high=train.epsilon_high,
        delta=3.0,  # dual clip; inactive with one update per rollout
        loss_type="dapo",
        use_bias_correction_kl=False,  # the paper's plain estimator exp(d) - d - 1
        bf16=train.bf16 and not use_cpu,
        use_cpu=use_cpu,
        activation_checkpointing=train.gradient_checkpointing and not use_cpu,
        logging_steps=train.logging_steps,
        save_steps=train.save_steps,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        seed=seed,
    )


def run_digest(params: Params) -> str:
    """What an interrupted run must share with its continuation: parameters, rows, policy and tokenizer."""
    base = params.base
    files = list_files(base.dataset_dir)
    models = [path for folder in (base.policy, base.tokenizer) for path in sorted(folder.glob("*")) if path.is_file()]
    contents = {path.as_posix(): sha256_file(path) for path in [*files, *models]}
    dtype = resolve_dtype(base.device, base.tokenizer_dtype)
    return digest(params.train.model_dump(mode="json"), base.seed, base.region_space, dtype, contents)


def resume_or_start(checkpoint_dir: Path, run: str) -> str | None:
    """The last checkpoint of this very run; None where there is none, and then the folder is emptied for a new run.

    DataError if the folder holds checkpoints of another unfinished run.
    """
    run_file = checkpoint_dir / RUN_FILE
    last = last_whole_checkpoint(checkpoint_dir)
    if last is not None and run_file.is_file():
        if json.loads(run_file.read_text())["run"] != run:
            raise DataError(
                "holds an unfinished run with other parameters or data; delete the folder to start anew, or restore "
                "them to continue",
                file=checkpoint_dir,
            )
        return str(last)
    start_run(checkpoint_dir, run)
    return None


def last_whole_checkpoint(checkpoint_dir: Path) -> Path | None:
    """The newest checkpoint whose writing was finished, or None. Newer ones, cut off by a kill, are removed.

    The trainer writes `trainer_state.json` after the model, the optimizer and the random states.
    """
    steps = {int(path.name.rpartition("-")[2]): path for path in checkpoint_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-[0-9]*")}
    for _, path in sorted(steps.items(), reverse=True):
        try:
            json.loads((path / TRAINER_STATE_NAME).read_text())
        except (OSError, ValueError):
            sys.stderr.write(f"{path}: was not finished; going on from the checkpoint before\n")
            shutil.rmtree(path)
        else:
            return path
    return None


def start_run(checkpoint_dir: Path, run: str | None) -> None:
    """An empty folder for the checkpoints of a run; None says that no run is unfinished."""
    if checkpoint_dir.is_dir():
        shutil.rmtree(checkpoint_dir)
    write_json(checkpoint_dir / RUN_FILE, {"run": run})
