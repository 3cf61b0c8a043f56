"""Training a mask tokenizer from nothing: a plain torch loop, float32, on masks of images that a caller draws.

Leaves the public training where a tokenizer of this size does not learn otherwise; each point is a parameter. In order:

1. layers start as torch starts them (Sam2's std of 0.02 gives dead logits), with sharper attention and with positions;
2. a small head draws masks from the mask embeddings alone. The mask decoder learns too slowly to teach them shapes;
3. the mask decoder learns to read the embeddings, without the image (or it learns "all objects" from the image and
   ignores the embedding); pixels inside masks weigh more at first;
4. the image is faded in;
5. the small head goes, and quantisation is faded in: what the image tells need not be spelled in codes any more. The
   codebooks start from clusters of embeddings, and idle codes restart.

Shapes: B images, N masks of each, K codes, D channels, S the side of the logits, T the side of the masks in the loss.
"""

import math
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

DrawExample = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
"""Draws an image, uint8 RGB (H, W, 3), and the asked number N of its masks, bool (N, H, W), none empty."""


def config_of(sizes: TokenizerSizes) -> MaskTokenizerConfig:
    """The tokenizer's config for the sizes of a params file."""
    return hiera_config(**sizes.model_dump())


class ShapeHead(nn.Module):
    """Draws masks (B, N, side, side) from mask embeddings (B, N, D) alone. It teaches them shapes and is not kept."""

    def __init__(self, embed_dim: int, hidden_dim: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.layers = nn.Sequential(nn.Linear(embed_dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, side * side))

    def forward(self, embeddings_BND: Tensor) -> Tensor:
        """Logits of the masks."""
        return self.layers(embeddings_BND).unflatten(-1, (self.side, self.side))


def train_mask_tokenizer(
    draw_example: DrawExample,
    params: TokenizerTraining,
    *,
    log_every: int = 25,
    on_row: Callable[[dict[str, float]], None] = lambda row: None,
) -> tuple[MaskTokenizer, list[dict[str, float]]]:
    """A trained tokenizer (in eval mode) and its training curve; the same params and examples give the same weights.

    Args:
        draw_example: called for every image of every step with the run's own generator.
        params: sizes, steps, losses and the order of the phases.
        log_every: steps between rows of the curve; the last step is always one.
        on_row: called with every row as it is measured.
    """
    torch.manual_seed(params.seed)
    run = _Run(draw_example, params)
    optimizer = torch.optim.AdamW(run.weights, lr=params.learning_rate, weight_decay=params.weight_decay)
    curve: list[dict[str, float]] = []
    for step in range(params.num_steps):
        learning_rate = params.learning_rate * schedule(step, params.num_steps, params.warmup_ratio)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        losses = run.losses(step / params.num_steps)
        optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()
        nn.utils.clip_grad_norm_(run.weights, params.max_grad_norm)
        optimizer.step()
        if step % log_every == 0 or step == params.num_steps - 1:
            row = {name: float(value.detach()) for name, value in losses.items()}
            curve.append({"step": step, "learning_rate": learning_rate, **row})
            on_row(curve[-1])
    return run.tokenizer.eval(), curve


class _Run:
    """What one training holds: the tokenizer, the head that is not kept, the moving codebooks, the generator."""

    def __init__(self, draw_example: DrawExample, params: TokenizerTraining) -> None:
        self.params = params
        self.draw_example = draw_example
        self.rng = np.random.default_rng(params.seed)
        self.tokenizer = MaskTokenizer(config_of(params.sizes)).train()
        start_weights(self.tokenizer, params)
        self.shape_head = ShapeHead(params.sizes.embed_dim, params.shape_hidden_dim, params.shape_side)
        self.averages = CodebookAverages(
            list(self.tokenizer.codebooks),
            decay=params.codebook_decay,
            restart_ratio=params.restart_ratio,
            seed=params.seed,
        )
        modules = (self.tokenizer, self.shape_head)
        self.weights = [weight for module in modules for weight in module.parameters() if weight.requires_grad]

    def losses(self, progress: float) -> dict[str, Tensor]:
        """Loss and figures of one step at a share of the steps; moves the codebooks once they are in use.

        `iou` is the decoder's and 0 before it starts; `shape_iou` is the small head's.
        """
        params, tokenizer = self.params, self.tokenizer
        images, masks_BNTT, boxes_BN4 = self.draw_batch()
        share = ramp(progress, params.fade_start_ratio, params.fade_end_ratio)
        features = tokenizer.image_features(images).scaled(share) if share else no_image(tokenizer, len(images))
        embeddings_KD = tokenizer.embed_masks(features, masks_BNTT.flatten(0, 1), boxes_BN4.flatten(0, 1))
        embeddings_KD, commitment, restarted = self.quantize(embeddings_KD, progress)
        embeddings_BND = embeddings_KD.unflatten(0, masks_BNTT.shape[:2])
        balance = 1 - ramp(progress, 0.0, params.balance_end_ratio)
        shape_loss, shape_iou = self.weigh(self.shape_head(embeddings_BND), masks_BNTT, balance)
        shape_weight = params.shape_weight * (1 - ramp(progress, 0.0, params.shape_end_ratio))
        loss = shape_weight * shape_loss + params.commitment_weight * commitment
        iou = torch.zeros(())
        if progress >= params.decode_start_ratio:
            logits_BNSS = tokenizer.decode_embeddings(features, embeddings_BND) - tokenizer.config.mask_threshold
            if progress >= params.fine_loss_ratio:
                logits_BNSS = F.interpolate(logits_BNSS, masks_BNTT.shape[-2:], mode="bilinear", align_corners=False)
            mask_loss, iou = self.weigh(logits_BNSS, masks_BNTT, balance)
            loss = loss + mask_loss
        figures = {"commitment": commitment, "shape_iou": shape_iou, "iou": iou}
        return {"loss": loss, **figures, "restarted": torch.tensor(float(restarted))}

    def quantize(self, embeddings_KD: Tensor, progress: float) -> tuple[Tensor, Tensor, int]:
        """Embeddings moved towards their codes' rows, the commitment loss, and how many rows restarted."""
        if progress < self.params.quantize_start_ratio:
            self.averages.remember(embeddings_KD)
            return embeddings_KD, torch.zeros(()), 0
        quantized_KD, commitment, restarted = self.averages.quantize(embeddings_KD)
        share = ramp(progress, self.params.quantize_start_ratio, self.params.quantize_end_ratio)
        return embeddings_KD.lerp(quantized_KD, share), commitment, restarted

    def weigh(self, logits_BNSS: Tensor, masks_BNTT: Tensor, balance: float) -> tuple[Tensor, Tensor]:
        """The weighted sum of cross-entropy and dice, and the IoU."""
        bce, dice, iou = mask_losses(logits_BNSS, masks_BNTT, balance)
        return self.params.bce_weight * bce + self.params.dice_weight * dice, iou

    def draw_batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels (B, 3, image_size, image_size), masks (B, N, T, T) in 0..1, boxes (B, N, 4) of the masks as drawn."""
        side = self.tokenizer.config.image_size // 4 * self.params.fine_loss_scale
        pixels, masks, boxes = [], [], []
        for _ in range(self.params.images_per_step):
            image, masks_NHW = self.draw_example(self.rng, self.params.masks_per_image)
            pixels.append(self.tokenizer.image_to_pixels(image))
            boxes.append(normalised_boxes(torch.from_numpy(masks_NHW)))
            masks.append(resize_masks(torch.from_numpy(masks_NHW).float(), side))
        return torch.stack(pixels), torch.stack(masks), torch.stack(boxes)


def resize_masks(masks_NHW: Tensor, side: int) -> Tensor:
    """Masks (N, H, W) in 0..1 at (N, side, side), bilinear with antialias; the same tensor where the size fits."""
    if masks_NHW.shape[1:] == (side, side):
        return masks_NHW
    size = (side, side)
    return F.interpolate(masks_NHW.unsqueeze(0), size, mode="bilinear", align_corners=False, antialias=True)[0]


def mask_losses(logits_BNSS: Tensor, masks_BNTT: Tensor, balance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy, dice loss and IoU (of logits above 0), each the mean over masks, against masks in 0..1.

    With balance 1 the pixels inside a mask weigh as much as those outside, with 0 every pixel weighs the same.
    """
    targets = resize_masks(masks_BNTT.flatten(0, 1), logits_BNSS.shape[-1])
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


def ramp(progress: float, start: float, end: float) -> float:
    """0 before the start, 1 from the end on, and a line between them.

    >>> [ramp(progress, 0.25, 0.75) for progress in (0.1, 0.25, 0.5, 0.75)], ramp(0.0, 0.0, 0.0)
    ([0.0, 0.0, 0.5, 1.0], 1.0)
    """
    if progress < start:
        return 0.0
    return 1.0 if progress >= end else (progress - start) / (end - start)


def schedule(step: int, num_steps: int, warmup_ratio: float) -> float:
    """Share of the peak learning rate: a rising line, then half a cosine down to 0.

    >>> [round(schedule(step, 100, 0.04), 3) for step in (0, 3, 4, 52, 100)]
    [0.25, 1.0, 1.0, 0.5, 0.0]
    """
    warmup_steps = math.ceil(warmup_ratio * num_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, num_steps - warmup_steps)))


def no_image(tokenizer: MaskTokenizer, num_images: int) -> ImageFeatures:
    """Features of zeros, which is what features times 0 are, without a pass of the image encoder."""
    side, dim = tokenizer.config.image_size // 4, tokenizer.config.embed_dim
    shapes = ((dim // 8, side), (dim // 4, side // 2), (dim, side // 4))
    high, middle, low = (torch.zeros(num_images, channels, edge, edge) for channels, edge in shapes)
    return ImageFeatures((high, middle, low))


def start_weights(tokenizer: MaskTokenizer, params: TokenizerTraining) -> None:
    """Give the tokenizer the weights that training starts from, and both uses of the position code the same one."""
    sam2 = tokenizer.sam2
    sam2.shared_image_embedding.positional_embedding.copy_(sam2.prompt_encoder.shared_embedding.positional_embedding)
    if params.torch_init:
        for module in tokenizer.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                module.reset_parameters()
    nn.init.normal_(sam2.vision_encoder.backbone.pos_embed, std=params.position_std)
    for transformer in (tokenizer.mask_encoder.transformer, sam2.mask_decoder.transformer):
        for name, weight in transformer.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight.data *= params.attention_gain


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
