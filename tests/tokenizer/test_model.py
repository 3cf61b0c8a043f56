"""The tokenizer's three calls at their edges, on a tiny random model."""

import numpy as np
import pytest
import torch
from PIL import Image

from cyclegrpo.tokenizer import ImageFeatures, MaskTokenizer, MaskTokenizerConfig
from cyclegrpo.tokenizer import model as model_module
from cyclegrpo.tokenizer.mask_prompts import normalised_boxes
from cyclegrpo.tokenizer.train import round_to_half, save_half

SIDE = 16  # of the logits of the tiny config


@pytest.fixture(scope="module")
def tokenizer(tiny_config: MaskTokenizerConfig) -> MaskTokenizer:
    torch.manual_seed(0)
    tokenizer = MaskTokenizer(tiny_config).eval()
    for module in tokenizer.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d | torch.nn.ConvTranspose2d):
            module.reset_parameters()
    return tokenizer


def draw_image(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def draw_masks(seed: int, number: int, height: int, width: int) -> np.ndarray:
    masks = np.random.default_rng(seed).random((number, height, width)) < 0.3
    masks[:, 0, 0] = True
    return masks


@pytest.fixture(scope="module")
def features(tokenizer: MaskTokenizer) -> ImageFeatures:
    return tokenizer.embed_images([draw_image(0, 40, 56)])[0]


def test_features_have_the_stated_shapes(tokenizer):
    features = tokenizer.embed_images([draw_image(0, 64, 64), Image.fromarray(draw_image(1, 20, 90))])
    assert len(features) == 2
    assert [tuple(m.shape) for m in features.maps] == [(2, 4, 16, 16), (2, 8, 8, 8), (2, 32, 4, 4)]
    assert [len(one) for one in features] == [1, 1]
    assert torch.equal(features[-1].maps[0], features[1].maps[0])
    with pytest.raises(IndexError, match="image 2 of 2"):
        features[2]


def test_a_batch_of_images_equals_one_by_one(tokenizer):
    images = [draw_image(seed, 30 + seed, 70) for seed in range(3)]
    together = tokenizer.embed_images(images)
    for index, image in enumerate(images):
        for batched, alone in zip(together[index].maps, tokenizer.embed_images([image]).maps, strict=True):
            torch.testing.assert_close(batched, alone, atol=1e-5, rtol=1e-5)


def test_passes_of_the_encoder_hold_no_more_pixels_than_memory_allows(tokenizer, monkeypatch):
    images = [draw_image(seed, 30, 70) for seed in range(5)]
    together, passes = tokenizer.embed_images(images), []
    encode = tokenizer.image_features
    monkeypatch.setattr(tokenizer, "image_features", lambda pixels: passes.append(len(pixels)) or encode(pixels))
    for budget, expected in ((2 * tokenizer.config.image_size**2, [2, 2, 1]), (1, [1] * 5)):
        monkeypatch.setitem(model_module.PIXELS_PER_PASS, "cpu", budget)
        passes.clear()
        parted = tokenizer.embed_images(images)
        assert passes == expected
        for ours, theirs in zip(parted.maps, together.maps, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert [len(one) for one in parted] == [1] * 5


def test_no_images_are_refused(tokenizer):
    with pytest.raises(ValueError, match="no images"):
        tokenizer.embed_images([])


def test_an_image_is_the_same_as_pil_and_as_array_and_its_mode_does_not_matter(tokenizer):
    array = draw_image(0, 33, 47)
    palette = Image.fromarray(array).convert("RGBA")
    for image in (Image.fromarray(array), palette):
        assert torch.equal(tokenizer.image_to_pixels(image), tokenizer.image_to_pixels(array))


@pytest.mark.parametrize(("height", "width"), [(40, 56), (1, 1), (200, 3), (64, 64)])
def test_masks_of_any_size(tokenizer, features, height, width):
    masks = draw_masks(0, 3, height, width)
    codes = tokenizer.encode(features, masks)
    assert codes.shape == (3, 2) and codes.dtype == torch.long
    assert codes.min() >= 0 and codes.max() < 16
    logits = tokenizer.decode(features, codes)
    assert logits.shape == (3, SIDE, SIDE) and logits.dtype == torch.float32
    decoded = tokenizer.decode_masks(features, codes, height, width)
    assert decoded.shape == (3, height, width) and decoded.dtype == bool


def test_many_masks_equal_one_by_one(tokenizer, features, monkeypatch):
    passes = []
    decode = tokenizer.decode_embeddings
    monkeypatch.setitem(model_module.MAP_VALUES_PER_PASS, "cpu", 4 * 32 * (64 // 16) ** 2)
    monkeypatch.setattr(tokenizer, "decode_embeddings", lambda f, e: passes.append(e.shape[1]) or decode(f, e))
    masks = draw_masks(1, 11, 24, 24)
    codes = tokenizer.encode(features, masks)
    assert torch.equal(codes, torch.cat([tokenizer.encode(features, mask[None]) for mask in masks]))
    logits = tokenizer.decode(features, codes)
    assert passes == [4, 4, 3]
    alone = torch.cat([tokenizer.decode(features, code[None]) for code in codes])
    torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)


def test_arrays_and_tensors_give_the_same_codes(tokenizer, features):
    masks = draw_masks(2, 2, 24, 24)
    codes = tokenizer.encode(features, masks)
    assert torch.equal(codes, tokenizer.encode(features, torch.from_numpy(masks)))
    assert torch.equal(codes, tokenizer.encode(features, iter(masks)))
    logits = tokenizer.decode(features, codes)
    assert torch.equal(logits, tokenizer.decode(features, codes.tolist()))
    assert torch.equal(logits, tokenizer.decode(features, codes.numpy()))


def test_nothing_in_nothing_out(tokenizer, features):
    assert tokenizer.encode(features, np.zeros((0, 9, 9), bool)).shape == (0, 2)
    assert tokenizer.decode(features, np.zeros((0, 2), int)).shape == (0, SIDE, SIDE)
    assert tokenizer.decode(features, []).shape == (0, SIDE, SIDE)
    assert tokenizer.decode_masks(features, [], 5, 7).shape == (0, 5, 7)


def test_an_empty_mask_is_refused_by_its_index(tokenizer, features):
    masks = draw_masks(0, 3, 9, 9)
    masks[1] = False
    with pytest.raises(ValueError, match=r"masks\[1\] is empty"):
        tokenizer.encode(features, masks)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ([[0, 0], [16, 0]], r"codes\[1\] is \[16, 0\]; expected 0\.\.15"),
        ([[0, 16]], r"codes\[0\] is \[0, 16\]"),
        ([[-1, 0]], r"codes\[0\] is \[-1, 0\]"),
        ([[0, -2]], r"codes\[0\] is \[0, -2\]"),
        ([[0, 1, 2]], r"codes have shape \(1, 3\); expected \(N, 2\)"),
        ([0, 1], r"codes have shape \(2,\); expected \(N, 2\)"),
    ],
)
def test_codes_out_of_range_are_refused_by_their_index(tokenizer, features, codes, message):
    with pytest.raises(ValueError, match=message):
        tokenizer.decode(features, codes)


def test_features_of_several_images_are_refused(tokenizer):
    features = tokenizer.embed_images([draw_image(0, 8, 8)] * 2)
    with pytest.raises(ValueError, match="features are of 2 images"):
        tokenizer.encode(features, draw_masks(0, 1, 8, 8))
    with pytest.raises(ValueError, match="features are of 2 images"):
        tokenizer.decode(features, [[0, 0]])


def test_masks_of_a_wrong_shape_are_refused(tokenizer, features):
    with pytest.raises(ValueError, match=r"masks\[0\] has shape \(8,\); expected \(H, W\)"):
        tokenizer.encode(features, np.ones((8, 8), bool))


def test_masks_of_several_images_in_one_call_equal_those_of_one_image_each(tokenizer):
    images = [draw_image(seed, 30, 40 + seed) for seed in range(3)]
    masks = [draw_masks(seed, 9, 30, 40 + seed) for seed in range(3)]
    features = tokenizer.embed_images(images)
    owners = [number % 3 for number in range(27)]  # more than one pass
    together = tokenizer.encode(features, [masks[k % 3][k // 3] for k in range(27)], owners)
    for image in range(3):
        assert torch.equal(together[image::3], tokenizer.encode(features[image], masks[image]))


@pytest.mark.parametrize("owners", [[0], [0, 2], [0, -1]])
def test_masks_without_an_image_are_refused(tokenizer, owners):
    features = tokenizer.embed_images([draw_image(0, 8, 8)] * 2)
    with pytest.raises(ValueError, match=r"no list of one number in 0\.\.1"):
        tokenizer.encode(features, draw_masks(0, 2, 8, 8), owners)


def test_a_missing_second_code_adds_nothing_and_stays_missing(tokenizer, features):
    codes = torch.tensor([[3, -1]])
    logits = tokenizer.decode(features, codes)
    assert codes.tolist() == [[3, -1]]
    with torch.no_grad():
        expected = tokenizer.decode_embeddings(features, tokenizer.codebooks[0][3][None, None])[0]
    assert torch.equal(logits, expected)
    assert not torch.equal(logits, tokenizer.decode(features, [[3, 0]]))


def test_boxes_are_inclusive_and_normalised():
    masks = torch.zeros((2, 4, 8), dtype=torch.bool)
    masks[0, 1:3, 2:5] = True  # columns 2 to 4 of 8, rows 1 to 2 of 4
    masks[1, 3, 7] = True
    assert normalised_boxes(masks).tolist() == [[0.25, 0.25, 0.5, 0.5], [0.875, 0.75, 0.875, 0.75]]
    assert normalised_boxes(masks[:0]).shape == (0, 4)


def test_saved_and_loaded_it_gives_the_same_codes_and_logits(tokenizer, features, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = MaskTokenizer.from_pretrained(tmp_path).eval()
    for name, tensor in tokenizer.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    codes = tokenizer.encode(features, draw_masks(3, 4, 20, 20))
    assert torch.equal(codes, loaded.encode(features, draw_masks(3, 4, 20, 20)))
    assert torch.equal(tokenizer.decode(features, codes), loaded.decode(features, codes))


def test_stored_in_half_the_bytes_it_loads_as_float32_with_the_same_codes(tiny_config, tmp_path):
    torch.manual_seed(1)
    tokenizer = MaskTokenizer(tiny_config).eval()
    round_to_half(tokenizer)
    image, masks = draw_image(5, 64, 64), draw_masks(5, 6, 64, 64)
    codes = tokenizer.encode(tokenizer.embed_images([image])[0], masks)
    save_half(tokenizer, tmp_path / "half")
    assert tokenizer.dtype == torch.float32
    loaded = MaskTokenizer.from_pretrained(tmp_path / "half").eval()
    assert loaded.dtype == torch.float32
    assert torch.equal(codes, loaded.encode(loaded.embed_images([image])[0], masks))
    tokenizer.save_pretrained(tmp_path / "whole")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]


def test_weights_are_loaded_as_float32_or_not_at_all(tiny_config, tmp_path):
    MaskTokenizer(tiny_config).save_pretrained(tmp_path)
    assert MaskTokenizer.from_pretrained(tmp_path, dtype="float32").dtype == torch.float32
    with pytest.raises(ValueError, match=r"dtype is torch\.bfloat16, .*compute_dtype instead"):
        MaskTokenizer.from_pretrained(tmp_path, dtype=torch.bfloat16)


def test_numbers_count_as_bool_but_probabilities_are_no_masks(tokenizer):
    features = tokenizer.embed_images([draw_image(0, 20, 20)])[0]
    masks = draw_masks(3, 2, 20, 20)
    codes = tokenizer.encode(features, masks)
    assert torch.equal(tokenizer.encode(features, masks.astype(np.uint8) * 255), codes)
    for scale in (1, 255):
        assert torch.equal(tokenizer.encode(features, masks.astype(np.float32) * scale), codes)
    with pytest.raises(ValueError, match=r"masks\[1\] has fractions; expected bool"):
        tokenizer.encode(features, [masks[0], masks[1] * 0.4])
    with pytest.raises(ValueError, match=r"masks\[0\] has fractions"):
        tokenizer.encode(features, [np.where(masks[0], np.nan, 0)])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4), np.uint8), r"uint8 \(4, 4\); expected uint8 \(H, W, 3\)"),
        (np.zeros((4, 4, 3), np.float32), r"float32 \(4, 4, 3\)"),
        (Image.new("I;16", (4, 4)), r"mode I;16; open it with cyclegrpo\.images\.load_image"),
        (Image.new("F", (4, 4)), "mode F"),
    ],
)
def test_images_that_would_be_read_wrongly_are_refused(tokenizer, image, message):
    with pytest.raises(ValueError, match=message):
        tokenizer.embed_images([image])


def test_an_image_without_its_list_is_refused(tokenizer):
    with pytest.raises(ValueError, match="expected a list of images"):
        tokenizer.embed_images(np.zeros((4, 4, 3), np.uint8))


def test_calls_that_would_give_something_else_than_asked_are_refused(tokenizer, features):
    mask = np.ones((4, 4), bool)
    with pytest.raises(ValueError, match="image_of_mask is longer than the masks"):
        tokenizer.encode(features, [mask], image_of_mask=[0, 0])
    with pytest.raises(ValueError, match="codes are no whole numbers"):
        tokenizer.decode(features, [[1.7, 2.2]])
    with pytest.raises(ValueError, match="masks of 0 x 5"):
        tokenizer.decode_masks(features, [[1, 2]], 0, 5)
    with pytest.raises(ValueError, match=r"masks\[0\] has shape \(0, 5\); expected pixels"):
        tokenizer.encode(features, [np.ones((0, 5), bool)])


def test_codes_do_not_depend_on_the_callers_autocast(tokenizer, features, monkeypatch):
    seen = []
    search = model_module.quantize

    def spy(embeddings, codebooks):
        seen.append((embeddings.dtype, torch.is_autocast_enabled("cpu")))
        return search(embeddings, codebooks)

    monkeypatch.setattr(model_module, "quantize", spy)
    with torch.autocast("cpu", torch.bfloat16):
        tokenizer.encode(features, [np.ones((4, 4), bool)])
    assert seen == [(torch.float32, False)]
