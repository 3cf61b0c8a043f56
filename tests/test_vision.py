"""Equal images of a batch go through the vision tower once, patches are embedded by a product; no figure changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from cyclegrpo.vision import PatchProjection, first_equal, speed_up_vision

RED, BLUE = 0, 1
# (grid, which picture): 2 x 4 and 4 x 2 have the same number of patches.
BATCH = [((1, 2, 4), RED), ((1, 4, 4), BLUE), ((1, 2, 4), RED), ((1, 4, 2), RED), ((1, 4, 4), BLUE), ((1, 2, 4), BLUE)]
NUM_DISTINCT = 4


def new_model() -> torch.nn.Module:
    from miniature.coldstart import new_policy
    from miniature.params import load_miniature_params

    return new_policy(load_miniature_params().coldstart)[0].eval()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    pictures = torch.randn(2, 16, 1536, generator=torch.Generator().manual_seed(0))
    grids = torch.tensor([grid for grid, _ in BATCH])
    return torch.cat([pictures[which][: grid.prod()] for grid, (_, which) in zip(grids, BATCH, strict=True)]), grids


@contextmanager
def images_seen(model: torch.nn.Module) -> Iterator[list[int]]:
    """How many images the tower itself was given, call by call."""
    seen: list[int] = []
    tower = model.model.visual
    patched = tower.patch_embed.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    yield seen
    patched.remove()


def test_features_are_those_of_the_whole_batch() -> None:
    plain, once = new_model(), new_model()
    once.load_state_dict(plain.state_dict())
    speed_up_vision(once)
    patches, grids = batch()
    with torch.no_grad(), images_seen(once) as seen:
        expected = plain.model.get_image_features(patches, grids)
        found = once.model.get_image_features(patches, grids)
    assert seen == [8 + 16 + 8 + 8]
    assert len(found.pooler_output) == len(BATCH)
    for ours, theirs in zip(found.pooler_output, expected.pooler_output, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(found.deepstack_features[0], expected.deepstack_features[0], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, atol=1e-5, rtol=1e-5)


def test_gradients_add_up_as_they_would_have() -> None:
    plain, once = new_model(), new_model()
    once.load_state_dict(plain.state_dict())
    speed_up_vision(once)
    patches, grids = batch()
    weights = torch.arange(len(BATCH)) + 1.0  # every copy pulls with another weight
    for model in (plain, once):
        features = model.model.get_image_features(patches, grids).pooler_output
        sum(w * part.square().sum() for w, part in zip(weights, features, strict=True)).backward()
    for (name, ours), theirs in zip(once.model.visual.named_parameters(), plain.model.visual.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-3, rtol=1e-3, msg=name)


def test_a_batch_of_distinct_images_and_the_next_one_are_left_alone() -> None:
    model = new_model()
    speed_up_vision(model)
    patches, grids = batch()
    with torch.no_grad(), images_seen(model) as seen:
        model.model.get_image_features(patches, grids)
        first_two = model.model.get_image_features(patches[:24], grids[:2])
    assert seen == [40, 24]
    assert [len(part) for part in first_two.pooler_output] == [2, 4]


def test_unknown_arguments_leave_the_batch_alone() -> None:
    model = new_model()
    speed_up_vision(model)
    patches, grids = batch()
    with torch.no_grad(), images_seen(model) as seen:
        model.model.visual(patches, grid_thw=grids, return_dict=True, output_hidden_states=True)
        model.model.visual(patches, grid_thw=grids, return_dict=False)
    assert seen == [len(patches)] * 2


def test_other_models_are_left_as_they_are() -> None:
    model = torch.nn.Linear(2, 2)
    speed_up_vision(model)
    assert not model._forward_pre_hooks


def test_patches_are_embedded_by_a_product_with_the_weights_and_names_of_the_model() -> None:
    model = new_model()
    names = list(model.state_dict())
    speed_up_vision(model)
    assert list(model.state_dict()) == names
    product = copy.deepcopy(model.model.visual.patch_embed.proj)
    assert isinstance(product, PatchProjection)
    convolution = torch.nn.Conv3d(3, product.out_channels, product.kernel_size, product.stride)
    convolution.load_state_dict(product.state_dict())
    patches = torch.randn(5, 3, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(product(patches), convolution(patches), atol=1e-5, rtol=1e-5)


def test_a_convolution_whose_patches_overlap_stays_one() -> None:
    model = new_model()
    proj = model.model.visual.patch_embed.proj
    model.model.visual.patch_embed.proj = torch.nn.Conv3d(3, proj.out_channels, proj.kernel_size, (1, 1, 1))
    speed_up_vision(model)
    assert type(model.model.visual.patch_embed.proj) is torch.nn.Conv3d


@pytest.mark.parametrize("images", [[], [torch.zeros(1, 2)]])
def test_first_equal_of_few(images: list[torch.Tensor]) -> None:
    assert first_equal(images) == list(range(len(images)))


def test_equal_sums_are_not_equal_images() -> None:
    assert first_equal([torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0], [2.0]])]) == [
        0,
        1,
        2,
    ]
