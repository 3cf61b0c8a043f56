"""From params to a trainer: what is set, and what is refused, whatever the policy's folder says."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from transformers import AddedToken, AutoProcessor

from cyclegrpo.errors import DataError, ParamsError
from cyclegrpo.policy import Policy, prompt_to_messages
from cyclegrpo.regions.spaces import MASK
from cyclegrpo.training.draws import draw_steps, load_rows
from cyclegrpo.training.run import build_trainer, run_train, training_device


def build(params, rectangles, tmp_path):
    """The trainer of the params, and the draws of its first step."""
    rows = load_rows(params.base.dataset_dir)
    (draws,) = draw_steps(rows, params.train.prompts, MASK, num_steps=1, zoom=True, seed=0)
    return build_trainer(params, draws, rectangles, tmp_path / "checkpoints", []), draws


def test_policy_and_reference_look_once_at_the_image_of_many_answers(params, rectangles, tmp_path):
    trainer, draws = build(params, rectangles, tmp_path)
    seen = {"policy": [], "reference": []}
    for name, model in (("policy", trainer.model), ("reference", trainer.ref_model)):
        tower = model.model.visual
        tower.blocks[0].register_forward_pre_hook(lambda _, args, name=name: seen[name].append(len(args[0])))
    question = next(trainer.train_dataset[i] for i, draw in enumerate(draws) if draw.task == "caption")
    images = [part["image"] for part in question["prompt"][0]["content"] if part["type"] == "image"]
    once = trainer.processing_class.image_processor(images, return_tensors="pt")["image_grid_thw"].prod(1).sum().item()
    trainer._answer("captions", [question] * 4, 4)
    assert seen["policy"] and set(seen["policy"]) == {once}
    assert seen["reference"] and set(seen["reference"]) == {once}


def with_base(params, **changes):
    return params.model_copy(update={"base": params.base.model_copy(update=changes)})


@pytest.fixture
def changed_policy(policy_dir, tmp_path):
    """A function that copies the policy's folder with a processor that was changed by a function."""

    def copy(change):
        folder = tmp_path / "changed"
        processor = AutoProcessor.from_pretrained(policy_dir)
        change(processor)
        processor.save_pretrained(folder)
        for file in policy_dir.iterdir():
            if not (folder / file.name).exists():
                (folder / file.name).symlink_to(file)
        return folder

    return copy


def test_a_policy_that_pads_on_the_right_sees_every_prompt_alone(params, rectangles, changed_policy, tmp_path):
    def pad_on_the_right(processor):
        processor.tokenizer.padding_side = "right"

    params = with_base(params, policy=changed_policy(pad_on_the_right))
    assert AutoProcessor.from_pretrained(params.base.policy).tokenizer.padding_side == "right"
    trainer, draws = build(params, rectangles, tmp_path)
    questions = [trainer.train_dataset[index] for index in range(len(draws))]
    answers = trainer._answer("captions", questions, 1)
    batch = answers.batch
    assert len(set(batch["prompt_mask"].sum(1).tolist())) > 1  # of unequal length, so that there is padding
    policy, _, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model,
        torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
        torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
        batch["completion_ids"].shape[1],
        **{name: batch[name] for name in ("pixel_values", "image_grid_thw", "num_images", "mm_token_type_ids")},
    )
    for index, draw in enumerate(draws):
        answer = batch["completion_ids"][index][batch["completion_mask"][index].bool()]
        images = [part["image"] for part in questions[index]["prompt"][0]["content"] if part["type"] == "image"]
        alone = log_probs_alone(trainer, prompt_to_messages(draw.prompt, images), answer)
        for together in (batch["ref_per_token_logps"], policy.detach()):
            np.testing.assert_allclose(together[index, : len(answer)], alone, atol=1e-4)


@torch.no_grad()
def log_probs_alone(trainer, messages, answer):
    """Log-probabilities of an answer's token ids (tokens,) after one prompt that nothing is padded beside."""
    inputs = trainer.processing_class.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    inputs["input_ids"] = torch.cat([inputs["input_ids"], answer[None]], 1)
    zeros = torch.zeros_like(answer)[None]
    inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], zeros], 1)
    inputs["attention_mask"] = torch.cat([inputs["attention_mask"], zeros + 1], 1)
    model = type(trainer.ref_model).from_pretrained(trainer.ref_model.name_or_path, dtype=torch.float32)
    logits = model(**inputs).logits[0, -len(answer) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, answer[:, None])[:, 0]


def test_mask_tokens_that_the_policy_lacks_are_counted_and_named(params, policy_dir, rectangles, tmp_path):
    rectangles.config.codebook_size = 300  # the policy knows 2 x 256 codes: the last 88 of 2 x 300 are missing
    message = re.escape(
        f"{policy_dir}: 88 of the 602 mask tokens of base.tokenizer are not in the policy's vocabulary, the first is "
        "<|mt_0512|>;"
    )
    with pytest.raises(DataError, match=message):
        build(params, rectangles, tmp_path)
    with pytest.raises(DataError, match=message):  # what evaluation and prediction do
        Policy.load(policy_dir, "cpu", codebook_size=300)


def test_mask_tokens_without_an_embedding_are_missing(params, rectangles, changed_policy, tmp_path):
    def add_two(processor):
        processor.tokenizer.add_tokens(["<|mt_0512|>", "<|mt_0513|>"])  # and the model keeps its size

    rectangles.config.codebook_size = 257
    with pytest.raises(DataError, match=r"changed: 2 of the 516 mask tokens .* the first is <\|mt_0512\|>;"):
        build(with_base(params, policy=changed_policy(add_two)), rectangles, tmp_path)


@pytest.mark.parametrize("listed", [True, False])
def test_special_mask_tokens_are_refused(params, rectangles, changed_policy, tmp_path, listed):
    def make_special(processor):
        token = AddedToken("<|mt_0007|>", special=True, normalized=False)
        if listed:
            processor.tokenizer.add_special_tokens({"extra_special_tokens": [token]})
        else:
            processor.tokenizer.add_tokens([token])  # not in `all_special_ids`, and cut out all the same

    folder = changed_policy(make_special)
    message = r"changed: 1 of the 514 mask tokens are special tokens of the policy, the first is <\|mt_0007\|>"
    with pytest.raises(DataError, match=message + ".*base.policy"):
        build(with_base(params, policy=folder), rectangles, tmp_path)
    assert Policy.load(folder, "cpu", codebook_size=256)  # answers are decoded with special tokens kept


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_several_processes_are_refused_before_any_file_is_touched(params, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "2")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "kept").touch()
    folders = {name: tmp_path / name.removesuffix("_dir") for name in ("policy_dir", "results_dir")}
    with pytest.raises(ParamsError, match="train was started as 2 processes; expected one"):
        run_train(params, checkpoint_dir=tmp_path / "checkpoints", **folders)
    assert (tmp_path / "checkpoints" / "kept").exists()


@pytest.mark.parametrize(
    ("device", "num_gpus", "expected"),
    [
        ("cpu", 2, "cpu"),
        ("mps", 0, "mps"),
        ("auto", 0, "cpu"),
        ("auto", 1, "cuda"),
        ("cuda", 1, "cuda"),
        ("cuda:0", 1, "cuda"),
        ("auto", 2, "2 GPUs are visible and base.device is auto; .* CUDA_VISIBLE_DEVICES, for instance to 0,"),
        ("cuda:1", 2, "2 GPUs are visible and base.device is cuda:1; .* CUDA_VISIBLE_DEVICES, for instance to 1,"),
        ("cuda:1", 1, "base.device is cuda:1, but 1 GPUs are visible"),
        ("cuda", 0, "base.device is cuda, but 0 GPUs are visible"),
    ],
)
def test_training_has_one_device(monkeypatch, device, num_gpus, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    if " " not in expected:
        assert training_device(device) == expected
        return
    with pytest.raises(ParamsError, match=expected):
        training_device(device)
