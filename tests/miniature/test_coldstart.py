"""The cold start: its questions are the pipeline's own, and sharing image features changes nothing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cyclegrpo.dataset.prompts import ask_expression
from cyclegrpo.errors import DataError
from cyclegrpo.params import Crop
from cyclegrpo.policy import Policy, prompt_to_messages, save_policy
from cyclegrpo.regions.spaces import MASK
from cyclegrpo.regions.tokens import codes_to_token
from miniature import coldstart
from miniature.coldstart import answer_loss, naming_loss, new_policy, train_cold_start
from miniature.known import know_scenes
from miniature.params import load_miniature_params
from miniature.scene import VOCABULARY, caption_of
from miniature.turns import (
    ATTRIBUTES_QUESTION,
    DESCRIBE_QUESTION,
    IGNORE,
    TurnEncoder,
    draw_turns,
    fixed_sentences,
)

CROP = Crop(min_side_px=32, enlarge_to_px=96)


class CentreTokenizer:
    """First code: the mask's centre on a 16 x 16 grid; second: its area. Counts the images it sees."""

    config = SimpleNamespace(codebook_size=256)
    num_encoded = 0

    def embed_images(self, images):
        self.num_encoded += len(images)
        return list(images)

    def encode(self, features, masks, image_of_mask):
        codes = []
        for mask in masks:
            ys, xs = np.nonzero(mask)
            row, column = (int(16 * v.mean() / side) for v, side in zip((ys, xs), mask.shape, strict=True))
            codes.append([16 * row + column, min(255, int(1024 * mask.mean()))])
        return torch.tensor(codes)


@pytest.fixture(scope="module")
def settings():
    return load_miniature_params().coldstart


@pytest.fixture(scope="module")
def policy(settings):
    return new_policy(settings)


@pytest.fixture(scope="module")
def scenes():
    return know_scenes(range(6_000_000, 6_000_004), CentreTokenizer(), CROP)


def test_every_object_has_a_token_and_a_crop_with_a_token():
    tokenizer = CentreTokenizer()
    known = know_scenes(range(6_000_000, 6_000_003), tokenizer, CROP)
    num_objects = sum(len(k.objects) for k in known)
    assert all(len(k.objects) == len(k.scene.objects) for k in known)
    assert tokenizer.num_encoded == len(known) + num_objects
    for known_scene in known:
        for known_object in known_scene.objects:
            assert known_object.crop is not None and min(known_object.crop.size) == 96
            assert known_object.crop_token != known_object.token


def test_turns_ask_with_the_prompts_of_the_pipeline(scenes, settings):
    known, images = scenes[0], [k.image for k in scenes]
    rng = np.random.default_rng(0)
    turns = [turn for _ in range(40) for turn in draw_turns(known, 0, images, settings, rng)]
    assert len(turns) == 40 * (settings.describe_turns + settings.locate_turns + 2 * settings.locate_pairs)
    tokens = {o.token for o in known.objects}
    locate_prefix = MASK.locate("")[:100]
    descriptions = {caption_of({a: o.word(a) for a in VOCABULARY}) for o in known.scene.objects}
    for turn in turns:
        assert turn.prompt.count("<image>") == len(turn.images)
        if turn.prompt.startswith(locate_prefix):
            assert turn.answer in tokens | {"null"}
        elif turn.prompt.startswith((DESCRIBE_QUESTION, ATTRIBUTES_QUESTION)):
            assert turn.answer.startswith("the ")
            if turn.prompt.startswith(ATTRIBUTES_QUESTION):
                assert turn.answer in descriptions
            assert len(turn.images) == 1 or images[turn.images[1]] in [o.crop for o in known.objects]
        else:
            assert turn.answer in tokens | {"No target."}
    asked = sum(turn.prompt.startswith(ATTRIBUTES_QUESTION) for turn in turns) / (40 * settings.describe_turns)
    assert asked == pytest.approx(settings.attributes_ratio, abs=0.15)


def test_prompts_stay_short_and_survive_the_tokenizer(policy):
    tokenizer = policy[1].tokenizer
    token = codes_to_token(3, 200)
    for prompt in (
        MASK.describe(token, token),
        MASK.describe(token, token).replace(DESCRIBE_QUESTION, ATTRIBUTES_QUESTION),
        MASK.locate("the small red circle at the top left"),
        ask_expression("the blue square", "r/1"),
    ):
        text = policy[1].apply_chat_template(
            prompt_to_messages(prompt, ["x"] * prompt.count("<image>")), add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert len(ids) <= 32
    for sentence in fixed_sentences():
        assert len(tokenizer(sentence, add_special_tokens=False)["input_ids"]) == 1, sentence


def test_shared_image_features_give_the_loss_of_single_turns(policy, scenes, settings):
    model, processor = policy
    images = [k.image for k in scenes]
    rng = np.random.default_rng(3)
    turns = [t for i, known in enumerate(scenes) for t in draw_turns(known, i, images, settings, rng)]
    encoder = TurnEncoder(processor)
    with torch.no_grad():
        together = answer_loss(model, encoder, images, turns)
        total, count = 0.0, 0
        for turn in turns:
            pictures = [images[i] for i in turn.images]
            batch = Policy(model, processor).encode([turn.prompt], [pictures])
            answer = processor.tokenizer(turn.answer, add_special_tokens=False)["input_ids"]
            answer = torch.tensor([[*answer, processor.tokenizer.eos_token_id]])
            width = answer.shape[1]
            batch["input_ids"] = torch.cat([batch["input_ids"], answer], 1)
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
            batch["mm_token_type_ids"] = torch.cat([batch["mm_token_type_ids"], torch.zeros_like(answer)], 1)
            logits = model(**batch).logits[0, -width - 1 : -1]
            total += torch.nn.functional.cross_entropy(logits, answer[0], reduction="sum").item()
            count += width
    assert together.item() == pytest.approx(total / count, abs=2e-3)  # patches are kept in half precision


def test_only_answers_are_learned(policy, scenes, settings):
    turns = draw_turns(scenes[0], 0, images := [scenes[0].image], settings, np.random.default_rng(1))
    encoder = TurnEncoder(policy[1])
    batch = encoder.text(turns, encoder.patches(images)[1])
    for turn, labels in zip(turns, batch["labels"], strict=True):
        kept = labels[labels != IGNORE].tolist()
        assert policy[1].tokenizer.decode(kept, skip_special_tokens=False) == turn.answer + "<|im_end|>"


@pytest.fixture(scope="module")
def short(settings):
    return settings.model_copy(
        update={"warmup_steps": 12, "num_steps": 12, "images_per_step": 2, "warmup_images_per_step": 2}
    )


def test_training_is_repeatable_and_lowers_both_losses(scenes, short, tmp_path):
    weights = []
    for _ in range(2):
        model, processor = new_policy(short)
        curve = train_cold_start(model, processor, scenes, short)
        losses = [loss for _, _, loss in curve]
        assert [row[:2] for row in curve] == [(phase, step) for phase in ("warm-up", "sft") for step in range(12)]
        assert np.mean(losses[8:12]) < np.mean(losses[:4])
        assert np.mean(losses[20:]) < np.mean(losses[12:16])
        weights.append(model.lm_head.weight.detach().clone())
    assert torch.equal(*weights)
    assert torch.isfinite(naming_loss(model, TurnEncoder(processor), scenes))
    save_policy(model.half(), processor, tmp_path / "policy")
    policy = Policy.load(tmp_path / "policy", "cpu")
    assert len(policy.generate([MASK.locate("the circle")], [[scenes[0].image]], max_new_tokens=3)) == 1


@pytest.mark.parametrize(("killed_after", "kept_steps"), [(5, 4), (13, 12), (18, 16), (24, 24)])
def test_a_run_that_goes_on_after_a_kill_ends_as_one_without(
    killed_after, kept_steps, scenes, short, tmp_path, monkeypatch
):
    """Killed in the first phase, between the two, in the second, and while the policy is stored."""
    monkeypatch.setattr(coldstart, "SAVE_STEPS", 4)

    def train(**options):
        model, processor = new_policy(short)
        return model, train_cold_start(model, processor, scenes, short, checkpoint_dir=tmp_path / "states", **options)

    def kill(row):
        if seen.append(row) or len(seen) == killed_after:
            raise KeyboardInterrupt

    def no_space(curve):
        raise OSError("no space left")

    seen = []
    with pytest.raises((KeyboardInterrupt, OSError)):
        train(on_row=kill if killed_after < 24 else lambda row: None, keep=no_space)
    seen = []
    model, curve = train(on_row=seen.append)
    assert len(seen) == 24 - kept_steps
    assert not (tmp_path / "states").exists()
    whole_model, processor = new_policy(short)
    assert curve == train_cold_start(whole_model, processor, scenes, short)
    for ours, theirs in zip(model.parameters(), whole_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_on_other_scenes_is_not_gone_on_with(scenes, short, tmp_path, monkeypatch):
    monkeypatch.setattr(coldstart, "SAVE_STEPS", 4)

    def die(curve):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        train_cold_start(*new_policy(short), scenes, short, checkpoint_dir=tmp_path, data="these", keep=die)
    with pytest.raises(DataError, match="unfinished training with other"):
        train_cold_start(*new_policy(short), scenes, short, checkpoint_dir=tmp_path, data="others")


def test_scenes_that_do_not_fill_a_step_are_an_error_and_not_a_loop_without_end(policy, scenes, settings):
    with pytest.raises(ValueError, match="4 scenes do not fill a step of 16"):
        train_cold_start(*policy, scenes, settings.model_copy(update={"warmup_images_per_step": 16}))


def test_weights_that_the_last_step_breaks_are_not_kept(scenes, short):
    kept = []
    broken = short.model_copy(update={"warmup_steps": 0, "num_steps": 1, "learning_rate": 1e38})
    with pytest.raises(DataError, match="weights are no numbers any more"):
        train_cold_start(*new_policy(broken), scenes, broken, keep=kept.append)
    assert not kept


def test_a_loss_that_is_no_number_ends_the_run(scenes, short):
    with pytest.raises(DataError, match="the loss of warm-up is no number at step 1"):
        train_cold_start(*new_policy(short), scenes, short.model_copy(update={"warmup_learning_rate": 1e30}))
