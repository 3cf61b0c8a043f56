"""Training a mask tokenizer from nothing: a plain torch loop, float32, on masks of images that a caller draws.

Leaves the public training where a tokenizer of this size does not learn otherwise; each point is a parameter:
layers start as torch starts them (Sam2's std of 0.02 gives dead logits), the image is faded in (or the decoder learns
"all objects" from it and ignores the codes), the codebooks start from the first batch and idle codes restart, and the
loss is first on the small logits, then on enlarged ones.

Shapes: B images, N masks of each, K codes, D channels, S the side of the logits.
"""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyclegrpo.files import atomic_path
from cyclegrpo.tokenizer.config import MaskTokenizerConfig, hiera_config
from cyclegrpo.tokenizer.model import ImageFeatures, MaskTokenizer, normalised_boxes
from cyclegrpo.tokenizer.params import TokenizerSizes, TokenizerTraining
from cyclegrpo.tokenizer.quantizer import CodebookAverages

__all__ = [
    "DrawExample",
    "TokenizerSizes",
    "TokenizerTraining",
    "config_of",
    "round_to_half",
    "save_half",
    "train_mask_tokenizer",
]

logger = logging.getLogger(__name__)

DrawExample = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
"""Draws an image, uint8 RGB (H, W, 3), and the asked number N of its masks, bool (N, H, W), none empty."""


def config_of(sizes: TokenizerSizes) -> MaskTokenizerConfig:
    """The tokenizer's config for the sizes of a params file."""
    return hiera_config(**sizes.model_dump())


def train_mask_tokenizer(
    draw_example: DrawExample, params: TokenizerTraining, *, log_every: int = 25
) -> tuple[MaskTokenizer, list[dict[str, float]]]:
    """A trained tokenizer (in eval mode) and its training curve; the same params and examples give the same weights.

    Args:
        draw_example: called for every image of every step with the run's own generator.
        params: sizes, steps, losses and the four tricks.
        log_every: steps between rows of the curve; the last step is always one.
    """
    torch.manual_seed(params.seed)
    rng = np.random.default_rng(params.seed)
    tokenizer = MaskTokenizer(config_of(params.sizes)).train()
    start_weights(tokenizer, torch_init=params.torch_init, attention_gain=params.attention_gain)
    averages = CodebookAverages(
        list(tokenizer.codebooks),
        decay=params.codebook_decay,
        restart_ratio=params.restart_ratio,
        seed=params.seed,
    )
    weights = [weight for weight in tokenizer.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=params.learning_rate, weight_decay=params.weight_decay)
    curve: list[dict[str, float]] = []
    started = time.monotonic()
    for step in range(params.num_steps):
        learning_rate = params.learning_rate * schedule(step, params.num_steps, params.warmup_ratio)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        losses = training_losses(tokenizer, averages, draw_example, rng, params, step)
        optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()
        nn.utils.clip_grad_norm_(weights, params.max_grad_norm)
        optimizer.step()
        if step % log_every == 0 or step == params.num_steps - 1:
            row = {name: float(value.detach()) for name, value in losses.items()}
            curve.append({"step": step, "learning_rate": learning_rate, **row})
            seconds = time.monotonic() - started
            logger.info("step %d of %d, loss %.3f, iou %.3f, %.0f s", step, params.num_steps, row["loss"], row["iou"], seconds)
    return tokenizer.eval(), curve


def training_losses(
    tokenizer: MaskTokenizer,
    averages: CodebookAverages,
    draw_example: DrawExample,
    rng: np.random.Generator,
    params: TokenizerTraining,
    step: int,
) -> dict[str, Tensor]:
    """Loss of one step and its parts; moves the codebooks."""
    progress = step / params.num_steps
    images, masks_BNHH, boxes_BN4 = draw_batch(tokenizer, draw_example, rng, params)
    share = image_share(progress, params)
    if share == 1 and rng.random() < params.no_image_ratio:
        share = 0.0
    features = tokenizer.image_features(images).scaled(share) if share else no_image(tokenizer, len(images))
    embeddings_ND = tokenizer.embed_masks(features, masks_BNHH.flatten(0, 1), boxes_BN4.flatten(0, 1))
    quantized_ND, commitment, restarted = embeddings_ND, embeddings_ND.new_zeros(()), 0
    if progress < params.quantize_start_ratio:
        averages.remember(embeddings_ND)
    else:
        quantized_ND, commitment, restarted = averages.quantize(embeddings_ND)
    logits_BNSS = tokenizer.decode_embeddings(features, quantized_ND.unflatten(0, masks_BNHH.shape[:2]))
    if progress >= params.fine_loss_ratio:
        logits_BNSS = F.interpolate(logits_BNSS, scale_factor=params.fine_loss_scale, mode="bilinear")
    balance = max(0.0, 1 - progress / params.balance_end_ratio) if params.balance_end_ratio else 0.0
    bce, dice, iou = mask_losses(logits_BNSS - tokenizer.config.mask_threshold, masks_BNHH, balance)
    loss = params.bce_weight * bce + params.dice_weight * dice + params.commitment_weight * commitment
    return {
        "loss": loss,
        "bce": bce,
        "dice": dice,
        "commitment": commitment,
        "iou": iou,
        "restarted": torch.tensor(float(restarted)),
    }


def draw_batch(
    tokenizer: MaskTokenizer, draw_example: DrawExample, rng: np.random.Generator, params: TokenizerTraining
) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels (B, 3, image_size, image_size), masks (B, N, T, T) as 0..1 at the side T of the fine loss, boxes (B, N, 4)."""
    side = tokenizer.config.image_size // 4 * params.fine_loss_scale
    pixels, masks, boxes = [], [], []
    for _ in range(params.images_per_step):
        image, masks_NHW = draw_example(rng, params.masks_per_image)
        pixels.append(tokenizer.image_to_pixels(image))
        masks_tensor = torch.from_numpy(masks_NHW)
        boxes.append(normalised_boxes(masks_tensor))
        masks.append(resize_masks(masks_tensor.float(), side))
    return torch.stack(pixels), torch.stack(masks), torch.stack(boxes)


def resize_masks(masks_NHW: Tensor, side: int) -> Tensor:
    """Masks (N, H, W) in 0..1 at (N, side, side), bilinear with antialias; the same tensor where the size fits."""
    if masks_NHW.shape[1:] == (side, side):
        return masks_NHW
    size = (side, side)
    return F.interpolate(masks_NHW.unsqueeze(0), size, mode="bilinear", align_corners=False, antialias=True)[0]


def mask_losses(logits_BNSS: Tensor, masks_BNHH: Tensor, balance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy, dice loss and IoU (of logits above 0), each the mean over masks, against masks in 0..1.

    With balance 1 the pixels inside a mask weigh as much as those outside, with 0 every pixel weighs the same.
    """
    side = logits_BNSS.shape[-1]
    targets = resize_masks(masks_BNHH.flatten(0, 1), side)
    logits = logits_BNSS.flatten(0, 1)
    area = targets.mean((1, 2), keepdim=True).clamp(1e-3, 0.999)
    weights = 1 + (((1 - area) / area) ** balance - 1) * targets
    weights = weights / weights.mean((1, 2), keepdim=True)
    bce = F.binary_cross_entropy_with_logits(logits, targets, weight=weights)
    probabilities = logits.sigmoid()
    overlap = (probabilities * targets).sum((1, 2))
    dice = 1 - (2 * overlap + 1) / (probabilities.sum((1, 2)) + targets.sum((1, 2)) + 1)
    with torch.no_grad():
        predicted, wanted = logits > 0, targets > 0.5
        union = (predicted | wanted).sum((1, 2)).clamp(min=1)
        iou = (predicted & wanted).sum((1, 2)) / union
    return bce, dice.mean(), iou.mean()


def image_share(progress: float, params: TokenizerTraining) -> float:
    """Factor of the image features at a share of the steps: 0, then rising in a line, then 1."""
    start, end = params.fade_start_ratio, params.fade_end_ratio
    if progress < start:
        return 0.0
    return 1.0 if progress >= end else (progress - start) / (end - start)


def no_image(tokenizer: MaskTokenizer, num_images: int) -> ImageFeatures:
    """Features of zeros, which is what images times 0 are, without a pass of the image encoder."""
    side, dim = tokenizer.config.image_size // 4, tokenizer.config.embed_dim
    shapes = ((dim // 8, side), (dim // 4, side // 2), (dim, side // 4))
    high, middle, low = (torch.zeros(num_images, channels, edge, edge) for channels, edge in shapes)
    return ImageFeatures((high, middle, low))


def schedule(step: int, num_steps: int, warmup_ratio: float) -> float:
    """Share of the peak learning rate: a rising line, then half a cosine down to 0.

    >>> [round(schedule(step, 100, 0.04), 3) for step in (0, 3, 4, 52, 100)]
    [0.25, 1.0, 1.0, 0.5, 0.0]
    """
    warmup_steps = math.ceil(warmup_ratio * num_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, num_steps - warmup_steps)))


def start_weights(tokenizer: MaskTokenizer, *, torch_init: bool, attention_gain: float) -> None:
    """Give the tokenizer the weights that training starts from, and both uses of the position code the same one."""
    sam2 = tokenizer.sam2
    sam2.shared_image_embedding.positional_embedding.copy_(sam2.prompt_encoder.shared_embedding.positional_embedding)
    if torch_init:
        for module in tokenizer.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                module.reset_parameters()
    for transformer in (tokenizer.mask_encoder.transformer, sam2.mask_decoder.transformer):
        for name, weight in transformer.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.data *= attention_gain


@torch.no_grad()
def round_to_half(tokenizer: MaskTokenizer) -> None:
    """Round every weight to a value that float16 holds, so that storing it in half the bytes changes no code."""
    for tensor in (*tokenizer.parameters(), *tokenizer.buffers()):
        tensor.copy_(tensor.half())


def save_half(tokenizer: MaskTokenizer, folder: Path) -> None:
    """Store rounded weights as float16 (see `round_to_half`), atomically; `from_pretrained` gives float32 back."""
    with atomic_path(folder) as temporary:
        tokenizer.half().save_pretrained(temporary)
    tokenizer.float()
