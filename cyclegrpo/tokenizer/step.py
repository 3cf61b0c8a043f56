"""One training step of a mask tokenizer: from images and masks to the loss, phase by phase.

Leaves the public training where a tokenizer of this size does not learn otherwise; each point is a parameter. In order:

1. layers start as torch starts them (Sam2's std of 0.02 gives dead logits), with sharper attention and with positions;
2. a small head draws masks from the mask embeddings alone. The mask decoder learns too slowly to teach them shapes;
3. the mask decoder learns to read the embeddings, without the image (or it learns "all objects" from the image and
   ignores the embedding); pixels inside masks weigh more at first;
4. the image is faded in;
5. the small head goes, and quantisation is faded in: what the image tells need not be spelled in codes any more. The
   codebooks start from clusters of embeddings, and idle codes restart.

Shapes: B images, N masks of each, K = B N, D channels, S the side of the logits, T the side of the masks in the loss.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cyclegrpo.tokenizer.features import ImageFeatures
from cyclegrpo.tokenizer.losses import mask_losses, point_losses
from cyclegrpo.tokenizer.model import MaskTokenizer
from cyclegrpo.tokenizer.params import TokenizerTraining
from cyclegrpo.tokenizer.quantizer import CodebookAverages


class ShapeHead(nn.Module):
    """Draws masks (B, N, side, side) from mask embeddings (B, N, D) alone. It teaches them shapes and is not kept."""

    def __init__(self, embed_dim: int, hidden_dim: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.layers = nn.Sequential(nn.Linear(embed_dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, side * side))

    def forward(self, embeddings_BND: Tensor) -> Tensor:
        """Logits of the masks."""
        return self.layers(embeddings_BND).unflatten(-1, (self.side, self.side))


class TrainingStep(nn.Module):
    """What is trained, as one module: the tokenizer and the head that is not kept.

    Args:
        averages: moves the tokenizer's codebooks, which have no gradient.
    """

    def __init__(self, tokenizer: MaskTokenizer, averages: CodebookAverages, params: TokenizerTraining) -> None:
        super().__init__()
        self.params = params
        self.tokenizer = tokenizer
        self.shape_head = ShapeHead(tokenizer.config.embed_dim, params.shape_hidden_dim, params.shape_side)
        self.averages = averages

    def forward(
        self, images_B3HW: Tensor, masks_BNTT: Tensor, boxes_BN4: Tensor, progress: float, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Loss and figures of one step at a share of the steps; moves the codebooks once they are in use.

        `iou` is the decoder's and 0 before it starts; `shape_iou` is the small head's.
        """
        params, tokenizer = self.params, self.tokenizer
        num_images, num_masks = masks_BNTT.shape[:2]
        share = ramp(progress, params.fade_start_ratio, params.fade_end_ratio)
        features = tokenizer.image_features(images_B3HW).scaled(share) if share else no_image(tokenizer, num_images)
        image_of_mask = torch.arange(num_images, device=images_B3HW.device).repeat_interleave(num_masks)
        embeddings_KD = tokenizer.embed_masks(
            features, masks_BNTT.flatten(0, 1), boxes_BN4.flatten(0, 1), image_of_mask
        )
        embeddings_KD, commitment, restarted = self.quantize(embeddings_KD.float(), progress)
        embeddings_BND = embeddings_KD.unflatten(0, (num_images, num_masks))
        balance = 1 - ramp(progress, 0.0, params.balance_end_ratio)
        loss = params.commitment_weight * commitment
        shape_iou = iou = torch.zeros((), device=loss.device)
        shape_weight = params.shape_weight * (1 - ramp(progress, 0.0, params.shape_end_ratio))
        if shape_weight:
            shape_loss, shape_iou = self.weigh(
                mask_losses(self.shape_head(embeddings_BND).float(), masks_BNTT, balance)
            )
            loss = loss + shape_weight * shape_loss
        if progress >= params.decode_start_ratio:
            logits_BNSS = (
                tokenizer.decode_embeddings(features, embeddings_BND).float() - tokenizer.config.mask_threshold
            )
            mask_loss, iou = self.weigh(self.compare(logits_BNSS, masks_BNTT, balance, progress, generator))
            loss = loss + mask_loss
        figures = {"commitment": commitment, "shape_iou": shape_iou, "iou": iou}
        return {"loss": loss, **figures, "restarted": torch.tensor(float(restarted), device=loss.device)}

    def compare(
        self, logits_BNSS: Tensor, masks_BNTT: Tensor, balance: float, progress: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Cross-entropy, dice and IoU of decoded logits, on points, or on pixels that are finer later on."""
        if self.params.num_points:
            return point_losses(logits_BNSS, masks_BNTT, balance, self.params.num_points, generator)
        if progress >= self.params.fine_loss_ratio:
            logits_BNSS = F.interpolate(logits_BNSS, masks_BNTT.shape[-2:], mode="bilinear", align_corners=False)
        return mask_losses(logits_BNSS, masks_BNTT, balance)

    def quantize(self, embeddings_KD: Tensor, progress: float) -> tuple[Tensor, Tensor, int]:
        """Embeddings moved towards their codes' rows, the commitment loss, and how many rows restarted."""
        if progress < self.params.quantize_start_ratio:
            self.averages.remember(embeddings_KD)
            return embeddings_KD, torch.zeros((), device=embeddings_KD.device), 0
        quantized_KD, commitment, restarted = self.averages.quantize(embeddings_KD)
        share = ramp(progress, self.params.quantize_start_ratio, self.params.quantize_end_ratio)
        return embeddings_KD.lerp(quantized_KD, share), commitment, restarted

    def weigh(self, losses: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The weighted sum of cross-entropy and dice, and the IoU."""
        bce, dice, iou = losses
        return self.params.bce_weight * bce + self.params.dice_weight * dice, iou


def ramp(progress: float, start: float, end: float) -> float:
    """0 before the start, 1 from the end on, and a line between them.

    >>> [ramp(progress, 0.25, 0.75) for progress in (0.1, 0.25, 0.5, 0.75)], ramp(0.0, 0.0, 0.0)
    ([0.0, 0.0, 0.5, 1.0], 1.0)
    """
    if progress < start:
        return 0.0
    return 1.0 if progress >= end else (progress - start) / (end - start)


def no_image(tokenizer: MaskTokenizer, num_images: int) -> ImageFeatures:
    """Features of zeros, which is what features times 0 are, without a pass of the image encoder."""
    side, dim = tokenizer.config.image_size // 4, tokenizer.config.embed_dim
    shapes = ((dim // 8, side), (dim // 4, side // 2), (dim, side // 4))
    high, middle, low = (
        torch.zeros(num_images, channels, edge, edge, device=tokenizer.device) for channels, edge in shapes
    )
    return ImageFeatures((high, middle, low))


def start_weights(tokenizer: MaskTokenizer, params: TokenizerTraining) -> None:
    """Give a new tokenizer the weights that training starts from, and both uses of the position code the same one."""
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
