"""SAMTok, the mask tokenizer, on transformers' Sam2 modules: (image, mask) -> code pair, (image, codes) -> mask.

    tokenizer = MaskTokenizer.from_pretrained("miniature/checkpoints/tokenizer").eval()
    features = tokenizer.embed_images([image])            # once per image
    codes = tokenizer.encode(features[0], masks)          # (N, 2)
    masks_again = tokenizer.decode_masks(features[0], codes, height, width)

Shapes: B images, N masks, L codebooks, D channels, M the side of the image map (image_size // 16), S the side of the
logits (4 * M). Weights and codebooks are float32 after loading, whatever they are stored in. On a GPU the networks
compute in bfloat16 (`compute_dtype`), which gives other codes for one mask in ten.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice, repeat
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedModel, Sam2Model
from transformers.models.sam2.modeling_sam2 import Sam2TwoWayTransformer

from cyclegrpo.tokenizer.config import MaskTokenizerConfig
from cyclegrpo.tokenizer.features import ImageFeatures
from cyclegrpo.tokenizer.mask_prompts import mask_prompts, resize_to_prompt
from cyclegrpo.tokenizer.quantizer import embed_codes, quantize

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# What bounds memory, whatever the number of masks and the size of the images: pixels, and values of image maps, at a
# time, by device. Larger passes are slower on a CPU, whose caches they leave.
PIXELS_PER_PASS = {"cpu": 1 << 20, "cuda": 1 << 23}  # of images; a released model: one, and eight
MAP_VALUES_PER_PASS = {"cpu": 1 << 21, "cuda": 1 << 24}  # for masks; a released model: two, and sixteen (0.7 GB)
PIXELS_PER_RESIZE = 1 << 24  # of masks at the image's size: 64 MB as float32

Codes = np.ndarray | Tensor | Sequence[Sequence[int]]


class MaskEncoder(nn.Module):
    """A two-way transformer whose one learned token reads the mask prompt and the image: its output embeds the mask."""

    def __init__(self, config: MaskTokenizerConfig) -> None:
        super().__init__()
        encoder_config = config.mask_encoder_config
        # The transformer is no PreTrainedModel, so nothing else tells it which attention to use.
        encoder_config._attn_implementation = config._attn_implementation
        self.transformer = Sam2TwoWayTransformer(encoder_config)
        self.mask_tokens = nn.Embedding(1, encoder_config.hidden_size)

    def forward(self, sparse_N1PD: Tensor, dense_NDMM: Tensor, positions_NDMM: Tensor) -> Tensor:
        """Mask embeddings (N, D) from the box tokens, the image map plus mask prompt, and its positions."""
        token = self.mask_tokens.weight.expand(sparse_N1PD.shape[0], 1, -1, -1)
        tokens, _ = self.transformer(
            point_embeddings=torch.cat((token, sparse_N1PD), dim=2),
            image_embeddings=dense_NDMM,
            image_positional_embeddings=positions_NDMM,
            attention_similarity=None,
        )
        return tokens[:, 0, 0]


class MaskTokenizer(PreTrainedModel):
    """Masks of an image <-> codes. See the module's docstring for the three calls."""

    config: MaskTokenizerConfig
    config_class = MaskTokenizerConfig
    base_model_prefix = "mask_tokenizer"
    main_input_name = "pixel_values"
    _supports_sdpa = True

    def __init__(self, config: MaskTokenizerConfig) -> None:
        super().__init__(config)
        self.sam2 = Sam2Model(config.sam2_config)
        self.mask_encoder = MaskEncoder(config)
        shape = (config.codebook_size, config.embed_dim)
        # Codebooks follow moving averages of the embeddings in training, never a gradient.
        self.codebooks = nn.ParameterList(
            nn.Parameter(torch.zeros(shape), requires_grad=False) for _ in range(config.codebook_depth)
        )
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> "MaskTokenizer":
        """The tokenizer saved in a folder, as float32, whatever it is stored in. ValueError for another `dtype`."""
        dtype = kwargs.setdefault("dtype", kwargs.pop("torch_dtype", torch.float32))
        if dtype not in (torch.float32, "float32"):
            raise ValueError(f"dtype is {dtype}, but weights stay float32; set the config's compute_dtype instead.")
        return super().from_pretrained(*args, **kwargs)

    @property
    def compute_dtype(self) -> torch.dtype:
        """What the three calls compute in: the config's, where `auto` is bfloat16 on a GPU and float32 elsewhere."""
        name = self.config.compute_dtype
        if name == "auto":
            name = "bfloat16" if self.device.type == "cuda" else "float32"
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]

    def autocast(self) -> AbstractContextManager[Any]:
        """Inside, networks compute in `compute_dtype`, whatever the caller's own autocast says."""
        dtype = self.compute_dtype
        return torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32)

    def embed_images(self, images: Sequence[Image.Image | np.ndarray]) -> ImageFeatures:
        """Features of RGB images (PIL, or uint8 (H, W, 3)), each of any size; several go through the encoder at once
        where memory allows it. Raises ValueError where there are none, or where one is no such image.
        """
        if isinstance(images, np.ndarray | Image.Image):
            raise ValueError("one image; expected a list of images.")
        images_per_pass = self._per_pass(PIXELS_PER_PASS, self.config.image_size**2)
        parts = []
        for start in range(0, len(images), images_per_pass):
            pixels = torch.stack([self.image_to_pixels(image) for image in images[start : start + images_per_pass]])
            with torch.no_grad(), self.autocast():
                parts.append(self.image_features(pixels.to(self.device)))
        return ImageFeatures.concatenate(parts)

    def encode(
        self,
        features: ImageFeatures,
        masks: Iterable[np.ndarray | Tensor],
        image_of_mask: Sequence[int] | None = None,
    ) -> Tensor:
        """Codes of masks, long (N, L), each in [0, codebook_size).

        Args:
            features: of one image, or of those that `image_of_mask` counts.
            masks: bool (H, W) each, such as an array (N, H, W), of any size; the whole image, whatever size it was
                given in. Numbers count as bool, but no fractions. They are taken one after the other, so a generator
                never holds all of them.
            image_of_mask: for each mask the number of its image in `features`; None where that is one image.

        No masks give (0, L). An empty mask has no box and is refused by its index.
        """
        if image_of_mask is None:
            self._check_one_image(features)
        codes = [torch.zeros((0, self.config.codebook_depth), dtype=torch.long, device=self.device)]
        prompts = mask_prompts(masks, self.sam2.prompt_encoder.mask_input_size, self.device)
        owners = repeat(0) if image_of_mask is None else iter(image_of_mask)
        while chunk := list(islice(prompts, self._masks_per_pass())):
            images = torch.tensor(list(islice(owners, len(chunk))), dtype=torch.long, device=self.device)
            if len(images) != len(chunk) or not bool(((images >= 0) & (images < len(features))).all()):
                raise ValueError(f"image_of_mask is no list of one number in 0..{len(features) - 1} for each mask.")
            masks_NSS, boxes_N4 = (torch.cat(part) for part in zip(*chunk, strict=True))
            with torch.no_grad(), self.autocast():
                embeddings_ND = self.embed_masks(features, masks_NSS, boxes_N4, images)
            with torch.autocast(self.device.type, enabled=False):  # a caller's own would change codes
                codes.append(quantize(embeddings_ND.float(), list(self.codebooks))[0])
        if image_of_mask is not None and next(owners, None) is not None:
            raise ValueError("image_of_mask is longer than the masks; expected one number for each.")
        return torch.cat(codes)

    def decode(self, features: ImageFeatures, codes: Codes) -> Tensor:
        """Mask logits of the codes on one image, float32 (N, S, S) with S = image_size // 4.

        Args:
            features: of one image.
            codes: integers (N, L) in [0, codebook_size); -1 after the first column is a missing code and adds nothing.

        No codes give (0, S, S). A code out of range is refused by its index.
        """
        side = self.config.image_size // 4
        return torch.cat([torch.zeros((0, side, side), device=self.device), *self._decode_chunks(features, codes)])

    def decode_masks(self, features: ImageFeatures, codes: Codes, height: int, width: int) -> np.ndarray:
        """Masks of the codes, bool (N, height, width): logits resized bilinearly, above the config's threshold."""
        masks = list(self.iterate_masks(features, codes, height, width))
        return np.stack(masks) if masks else np.zeros((0, height, width), bool)

    def iterate_masks(self, features: ImageFeatures, codes: Codes, height: int, width: int) -> Iterator[np.ndarray]:
        """The masks of `decode_masks` one after the other, bool (height, width), so that few are held at a time."""
        if min(height, width) < 1:
            raise ValueError(f"masks of {height} x {width}; expected pixels.")
        masks_per_resize = max(1, PIXELS_PER_RESIZE // (height * width))
        for logits_NSS in self._decode_chunks(features, codes):
            for part_NSS in logits_NSS.split(masks_per_resize):
                resized = F.interpolate(part_NSS.unsqueeze(1), (height, width), mode="bilinear", align_corners=False)
                yield from (resized[:, 0] > self.config.mask_threshold).cpu().numpy()

    def _decode_chunks(self, features: ImageFeatures, codes: Codes) -> Iterator[Tensor]:
        """Logits, float32, of as many codes at a time as `MAP_VALUES_PER_PASS` allows."""
        self._check_one_image(features)
        given = torch.as_tensor(codes)
        if given.numel() and given.is_floating_point():
            raise ValueError("codes are no whole numbers; expected integers (N, L).")
        codes_NL = given.long()
        if codes_NL.numel() == 0:
            codes_NL = codes_NL.reshape(0, self.config.codebook_depth)
        self._check_codes(codes_NL)
        codes_per_pass = self._masks_per_pass()
        for chunk_NL in codes_NL.to(self.device).split(codes_per_pass) if len(codes_NL) else ():
            with torch.no_grad(), self.autocast():
                quantized_ND = embed_codes(chunk_NL, list(self.codebooks))
                logits_NSS = self.decode_embeddings(features, quantized_ND.unsqueeze(0))[0]
            yield logits_NSS.float()

    def _masks_per_pass(self) -> int:
        """How many masks go in one pass: each has an image map of its own, which the transformers change."""
        return self._per_pass(MAP_VALUES_PER_PASS, self.config.embed_dim * (self.config.image_size // 16) ** 2)

    def _per_pass(self, budgets: dict[str, int], size: int) -> int:
        """How many things of a size go in one pass on this device, at least one."""
        return max(1, budgets.get(self.device.type, budgets["cpu"]) // size)

    def image_to_pixels(self, image: Image.Image | np.ndarray) -> Tensor:
        """Normalised pixels (3, image_size, image_size) of one RGB image; its aspect is not kept."""
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise ValueError(f"an image is {image.dtype} {image.shape}; expected uint8 (H, W, 3).")
            image = Image.fromarray(image)
        elif image.mode[0] in "IF":
            raise ValueError(f"an image has mode {image.mode}; open it with cyclegrpo.images.load_image.")
        side = self.config.image_size
        resized = np.asarray(image.convert("RGB").resize((side, side)), dtype=np.float32) / 255
        normalised = (resized - np.array(IMAGENET_MEAN, np.float32)) / np.array(IMAGENET_STD, np.float32)
        return torch.from_numpy(normalised).permute(2, 0, 1)

    def image_features(self, pixels_B3HW: Tensor) -> ImageFeatures:
        """Features of normalised pixels (B, 3, image_size, image_size), with gradients."""
        decoder = self.sam2.mask_decoder
        high, middle, low = self.sam2.vision_encoder(pixels_B3HW, return_dict=True).fpn_hidden_states
        low = low + self.sam2.no_memory_embedding.reshape(1, -1, 1, 1)
        return ImageFeatures((decoder.conv_s0(high), decoder.conv_s1(middle), low))

    def embed_masks(
        self, features: ImageFeatures, masks_NHW: Tensor, boxes_N4: Tensor, image_of_mask_N: Tensor
    ) -> Tensor:
        """Mask embeddings (N, D) before quantisation, with gradients.

        Args:
            features: of B images.
            masks_NHW: in 0..1, of any one size.
            boxes_N4: as `normalised_boxes` gives them.
            image_of_mask_N: the number of each mask's image, long.
        """
        side = self.sam2.prompt_encoder.mask_input_size
        masks_NSS = resize_to_prompt(masks_NHW.to(self.device, torch.float32), side)
        sparse, dense = self.sam2.prompt_encoder(
            input_points=None,
            input_labels=None,
            input_boxes=boxes_N4.unsqueeze(1).to(self.device) * self.config.image_size,
            input_masks=masks_NSS.unsqueeze(1),
        )
        images_NDMM = features.maps[2][image_of_mask_N.to(self.device)]
        positions = self.sam2.get_image_wide_positional_embeddings().expand_as(images_NDMM)
        return self.mask_encoder(sparse, images_NDMM + dense, positions)

    def decode_embeddings(self, features: ImageFeatures, quantized_BND: Tensor) -> Tensor:
        """Logits (B, N, S, S) of N quantised mask embeddings on each of B images, with gradients."""
        num_images, num_masks, _ = quantized_BND.shape
        points = quantized_BND.new_zeros((num_images, num_masks, 1, 2))
        labels = torch.full((num_images, num_masks, 1), -1, dtype=torch.int32, device=quantized_BND.device)
        sparse, dense = self.sam2.prompt_encoder(
            input_points=points, input_labels=labels, input_boxes=None, input_masks=None
        )
        high, middle, low = features.maps
        positions = self.sam2.get_image_wide_positional_embeddings().repeat(num_images, 1, 1, 1)
        logits, iou_scores, _, _ = self.sam2.mask_decoder(
            image_embeddings=low,
            image_positional_embeddings=positions,
            sparse_prompt_embeddings=torch.cat((sparse, quantized_BND.unsqueeze(2)), dim=2),
            dense_prompt_embeddings=dense,
            multimask_output=self.config.multimask_output,
            high_resolution_features=[high, middle],
        )
        best = iou_scores.argmax(dim=2)[..., None, None, None].expand(-1, -1, 1, *logits.shape[-2:])
        return logits.gather(2, best).squeeze(2)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        # transformers passes over a custom model that holds no weights of its own, so the list is what arrives here.
        if isinstance(module, nn.ParameterList):
            for codebook in module:
                nn.init.normal_(codebook)

    def _check_one_image(self, features: ImageFeatures) -> None:
        if len(features) != 1:
            raise ValueError(f"features are of {len(features)} images; expected one: pass features[i].")

    def _check_codes(self, codes_NL: Tensor) -> None:
        depth = self.config.codebook_depth
        if codes_NL.ndim != 2 or codes_NL.shape[1] != depth:
            raise ValueError(f"codes have shape {tuple(codes_NL.shape)}; expected (N, {depth}).")
        lowest = torch.full((depth,), -1)
        lowest[0] = 0
        codes = codes_NL.cpu()
        wrong = ((codes < lowest) | (codes >= self.config.codebook_size)).any(dim=1).nonzero().flatten().tolist()
        if wrong:
            raise ValueError(
                f"codes[{wrong[0]}] is {codes[wrong[0]].tolist()}; expected 0..{self.config.codebook_size - 1}, "
                "or -1 for a missing code after the first."
            )
