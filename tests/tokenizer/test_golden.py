"""The tokenizer against vectors of the public code: same codes, same embeddings and logits within rounding."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from cyclegrpo.tokenizer import ImageFeatures, MaskTokenizer, MaskTokenizerConfig
from cyclegrpo.tokenizer.convert import convert_state_dict
from cyclegrpo.tokenizer.mask_prompts import normalised_boxes
from cyclegrpo.tokenizer.model import IMAGENET_MEAN, IMAGENET_STD

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = Path(os.environ.get("CYCLEGRPO_GOLDEN", REPOSITORY.parent / "shared" / "golden"))
pytestmark = pytest.mark.skipif(not (GOLDEN / "golden.json").is_file(), reason="no golden vectors here")

IMAGES = ("a_97x131", "b_256x256", "c_300x200", "d_64x500")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """One pixel lies 6e-5 from the threshold, and two threads add up in another order than one."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def tokenizer(nano_config: MaskTokenizerConfig) -> MaskTokenizer:
    tokenizer = MaskTokenizer(nano_config).eval()
    reference = load_file(GOLDEN / "ref_state_nano_fp16.safetensors")
    tokenizer.load_state_dict(convert_state_dict(reference, nano_config))
    return tokenizer


@pytest.fixture(scope="module")
def vectors() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "golden.safetensors")


@pytest.fixture(scope="module")
def description() -> dict:
    return json.loads((GOLDEN / "golden.json").read_text())


@pytest.fixture(scope="module")
def features(tokenizer: MaskTokenizer) -> dict[str, ImageFeatures]:
    return {name: tokenizer.embed_images([Image.open(GOLDEN / f"images/{name}.png")])[0] for name in IMAGES}


def read_mask(name: str) -> torch.Tensor:
    return torch.from_numpy(np.asarray(Image.open(GOLDEN / name)) > 0)


@contextmanager
def outputs_of(module: torch.nn.Module) -> Iterator[list]:
    """What a module returns, call by call."""
    outputs: list = []
    handle = module.register_forward_hook(lambda module, args, output: outputs.append(output))
    yield outputs
    handle.remove()


@pytest.mark.parametrize("name", IMAGES)
def test_the_pixels_of_a_resized_image(name, tokenizer, description):
    pixels_3SS = tokenizer.image_to_pixels(Image.open(GOLDEN / f"images/{name}.png"))
    pixels_SS3 = pixels_3SS.permute(1, 2, 0).double().numpy() * IMAGENET_STD + IMAGENET_MEAN
    levels = np.rint(pixels_SS3 * 255)
    assert np.abs(pixels_SS3 * 255 - levels).max() < 1e-3
    image = next(image for image in description["images"] if image["name"] == name)
    assert hashlib.sha256(levels.astype(np.uint8).tobytes()).hexdigest() == image["resized_1024_sha256"]


@pytest.mark.parametrize("name", IMAGES)
def test_features_of_an_image(name, features, vectors):
    high, middle, low = features[name].maps
    torch.testing.assert_close(high[0, :, ::16, ::16], vectors[f"{name}/feat0_every16"], atol=1e-4, rtol=0)
    torch.testing.assert_close(middle[0, :, ::8, ::8], vectors[f"{name}/feat1_every8"], atol=1e-4, rtol=0)
    torch.testing.assert_close(low[0, :, ::4, ::4], vectors[f"{name}/feat2_every4"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", IMAGES)
def test_encode_gives_the_same_codes_and_embeddings(name, tokenizer, features, vectors, description):
    cases = [case for case in description["cases"] if case["image"] == name]
    masks = torch.stack([read_mask(case["mask"]) for case in cases])
    boxes = normalised_boxes(masks)
    torch.testing.assert_close(boxes, torch.tensor([case["box_normalised_xyxy"] for case in cases]), atol=1e-7, rtol=0)
    assert tokenizer.encode(features[name], masks).tolist() == [case["codes"] for case in cases]
    with torch.no_grad(), outputs_of(tokenizer.sam2.prompt_encoder) as prompts:
        embeddings = tokenizer.embed_masks(features[name], masks, boxes, torch.zeros(len(masks), dtype=torch.long))
    for case, sparse_1PD in zip(cases, prompts[0][0], strict=True):
        expected = vectors[f"{name}/{case['index']}/sparse"]
        torch.testing.assert_close(sparse_1PD.squeeze(0), expected, atol=1e-4, rtol=0)
    expected = torch.stack([vectors[f"{name}/{case['index']}/mask_embed"] for case in cases])
    torch.testing.assert_close(embeddings, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", IMAGES)
def test_decode_gives_the_same_logits_and_masks(name, tokenizer, features, vectors, description):
    cases = [case for case in description["cases"] if case["image"] == name]
    codes = torch.tensor([case["codes"] for case in cases])
    expected = torch.stack([vectors[f"{name}/{case['index']}/logits"] for case in cases])
    with outputs_of(tokenizer.sam2.mask_decoder) as decoded:
        logits = tokenizer.decode(features[name], codes)
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=0)
    ious_N3 = torch.cat([ious_1N3.squeeze(0) for _, ious_1N3, *_ in decoded])
    expected = torch.stack([vectors[f"{name}/{case['index']}/iou3"] for case in cases])
    torch.testing.assert_close(ious_N3, expected.reshape(ious_N3.shape), atol=1e-4, rtol=0)
    assert ious_N3.argmax(-1).tolist() == [case["best_iou_index"] for case in cases]
    image = next(image for image in description["images"] if image["name"] == name)
    masks = tokenizer.decode_masks(features[name], codes, image["height"], image["width"])
    for case, mask in zip(cases, masks, strict=True):
        assert np.array_equal(mask, read_mask(case["mask"].replace(".png", "_decoded.png")).numpy())


def test_decode_of_given_codes(tokenizer, features, vectors, description):
    for extra in description["extra_decodes"]:
        logits = tokenizer.decode(features[extra["image"]], [extra["codes"]])[0]
        torch.testing.assert_close(logits, vectors[extra["key"]], atol=2e-3, rtol=0)


def test_a_missing_second_code_is_skipped_and_the_codes_stay_as_they_are(tokenizer, features, vectors, description):
    cases = [case for case in description["cases"] if "missing_second" in case]
    assert len(cases) == len(IMAGES)
    for case in cases:
        codes = torch.tensor([case["missing_second"]["input"]])
        logits = tokenizer.decode(features[case["image"]], codes)[0]
        expected = vectors[f"{case['image']}/{case['index']}/logits_missing_second_skipped"]
        torch.testing.assert_close(logits, expected, atol=2e-3, rtol=0)
        assert codes.tolist() == [case["missing_second"]["input"]]
