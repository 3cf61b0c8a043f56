"""Our own reference vectors: a small tokenizer whose weights follow from their names, and what it gives.

They were made when the tokenizer agreed with the public code's vectors, so that the same code is held to the same
behaviour where those are not at hand. `python -m tests.tokenizer.vectors` writes them anew.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from cyclegrpo.tokenizer import MaskTokenizer, hiera_config
from cyclegrpo.tokenizer.mask_prompts import normalised_boxes

FILE = Path(__file__).parent / "vectors.safetensors"
SIZES = ((97, 131), (64, 64), (120, 40))
"""Height and width of the images; the tokenizer sees 160 x 160."""
NUM_MASKS = 4


def seeded_tokenizer(codebooks: Sequence[torch.Tensor] = ()) -> MaskTokenizer:
    """The tokenizer: every weight drawn from a generator that is seeded with its name, but for given codebooks."""
    config = hiera_config(
        image_size=160,
        embed_dim=32,
        stage_dims=(8, 16, 32, 64),
        stage_blocks=(1, 1, 2, 1),
        stage_heads=(1, 2, 4, 8),
        stage_windows=(8, 4, 10, 5),
        global_blocks=(3,),
        position_grid=5,
        decoder_heads=4,
        decoder_mlp_dim=64,
        iou_head_dim=32,
        codebook_size=64,
    )
    tokenizer = MaskTokenizer(config).eval()
    with torch.no_grad():
        for name, weight in tokenizer.state_dict().items():
            weight.copy_(seeded_weight(name, tuple(weight.shape)))
        positions = tokenizer.sam2.prompt_encoder.shared_embedding.positional_embedding
        tokenizer.sam2.shared_image_embedding.positional_embedding.copy_(positions)
        for book, given in zip(tokenizer.codebooks, codebooks, strict=False):
            book.copy_(given)
    return tokenizer


def spread_codebooks() -> list[torch.Tensor]:
    """Codebooks among which the examples' embeddings differ: noise around their mean, and noise."""
    vectors = make_vectors(seeded_tokenizer())
    embeddings = torch.cat([vectors[f"{index}.embeddings"] for index in range(len(SIZES))])
    books = [seeded_weight(f"codebooks.{level}", (64, 32)) for level in range(2)]
    return [(embeddings.mean(0) + 0.35 * books[0]).half().float(), (0.25 * books[1]).half().float()]


def seeded_weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Matrices keep the size of what goes through them; norms stay near 1; biases and tokens are small and large."""
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    if "norm" in name:
        values = 0.1 * values + name.endswith("weight")
    elif name.endswith("bias"):
        values = 0.2 * values
    elif len(shape) >= 2 and not any(part in name for part in ("embed", "tokens", "token.", "codebooks")):
        values = 1.5 * values / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(np.asarray(values, np.float32))


def draw_example(index: int) -> tuple[np.ndarray, np.ndarray]:
    """An image of coloured stripes (H, W, 3), and masks (NUM_MASKS, H, W): a box, a blob, a ring, one pixel."""
    height, width = SIZES[index]
    yy, xx = np.indices((height, width))
    image = np.stack([(xx * (3 + index) + yy * c) % 256 for c in (1, 5, 9)], axis=2).astype(np.uint8)
    radius = np.hypot(yy - height / 2, xx - width / 2) / min(height, width)
    masks = np.zeros((NUM_MASKS, height, width), bool)
    masks[0, : height // 2, width // 3 :] = True
    masks[1] = radius < 0.3
    masks[2] = (radius > 0.3) & (radius < 0.45)
    masks[3, height - 1, 2 + index] = True
    return image, masks


def make_vectors(tokenizer: MaskTokenizer) -> dict[str, torch.Tensor]:
    """What the tokenizer gives for every example: pixels, box, embedding, codes, logits, mask; and without code 1."""
    vectors: dict[str, torch.Tensor] = {}
    for index, (height, width) in enumerate(SIZES):
        image, masks = draw_example(index)
        side = tokenizer.config.image_size
        resized = np.asarray(Image.fromarray(image).resize((side, side)))
        features = tokenizer.embed_images([image])[0]
        boxes = normalised_boxes(torch.from_numpy(masks))
        owners = torch.zeros(NUM_MASKS, dtype=torch.long)
        with torch.no_grad():
            embeddings = tokenizer.embed_masks(features, torch.from_numpy(masks).float(), boxes, owners)
        codes = tokenizer.encode(features, masks)
        first_alone = codes.clone()
        first_alone[:, 1] = -1
        made = {
            "pixels_sha256": torch.tensor(list(hashlib.sha256(resized.tobytes()).digest()), dtype=torch.uint8),
            "image_map": features.maps[2][0, :, ::3, ::3],
            "boxes": boxes,
            "embeddings": embeddings,
            "codes": codes,
            "logits": tokenizer.decode(features, codes)[:, ::2, ::2],
            "logits_first_code": tokenizer.decode(features, first_alone)[:, ::4, ::4],
            "masks": torch.from_numpy(np.packbits(tokenizer.decode_masks(features, codes, height, width))),
        }
        vectors |= {f"{index}.{name}": tensor.contiguous() for name, tensor in made.items()}
    return vectors


if __name__ == "__main__":
    books = spread_codebooks()
    kept = {f"codebooks.{level}": book for level, book in enumerate(books)}
    save_file(kept | make_vectors(seeded_tokenizer(books)), FILE)
    FILE.chmod(0o644)
