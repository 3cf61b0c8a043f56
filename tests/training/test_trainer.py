"""One step of CycleGRPO with a tiny random policy: what is asked, what is earned, and the loss against a reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.support import G, K, make_trainer


def token_mean_loss(trainer, batch, beta):
    """The loss of one task, from its formula: policy gradient and KL per token, averaged over the task's tokens."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    images = {name: batch[name] for name in ("pixel_values", "image_grid_thw", "mm_token_type_ids")}
    width = batch["completion_ids"].shape[1]

    def log_probs(model):
        logits = model(input_ids=ids, attention_mask=attention, **images).logits[:, -width - 1 : -1]
        return logits.log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]

    ours = log_probs(trainer.model)
    with torch.no_grad():
        theirs = log_probs(trainer.ref_model)
    ratio = torch.exp(ours - ours.detach())
    distance = theirs - ours
    per_token = -ratio * batch["advantages"][:, None] + beta * (torch.exp(distance) - distance - 1)
    mask = batch["completion_mask"]
    return (per_token * mask).sum() / mask.sum()


@pytest.mark.parametrize(
    ("changes", "weights"),
    [
        ({}, (0.5, 0.5)),
        ({"caption_weight": 0.8, "grounding_weight": 0.2}, (0.8, 0.2)),
        ({"micro_batches": 2}, (0.5, 0.5)),
    ],
)
def test_the_loss_is_the_weighted_sum_of_the_tasks_token_means(
    policy_dir, dataset_dir, rectangles, tmp_path, monkeypatch, changes, weights
):
    trainer = make_trainer(policy_dir, dataset_dir, rectangles, tmp_path, **changes)
    whole = {}

    def draw_advantages(answers, rewards, **_):
        # Random policies hardly ever find a region, so the rewards would all be alike.
        rng = np.random.default_rng(len(rewards))
        answers.batch["advantages"] = torch.tensor(rng.normal(size=len(rewards)), dtype=torch.float32)
        whole[answers.task] = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in answers.batch.items()}

    monkeypatch.setattr(trainer, "_set_advantages", draw_advantages)
    with torch.no_grad():  # away from the reference, so that the KL counts
        for parameter in trainer.model.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    gradients = {}
    monkeypatch.setattr(
        trainer.accelerator,
        "clip_grad_norm_",
        lambda *a, **k: gradients.update(
            {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
        ),
    )
    trainer.train()
    assert whole["captions"]["completion_ids"].shape[0] == 4 * G
    assert whole["groundings"]["completion_ids"].shape[0] == 2 * G * K
    trainer.model.zero_grad()
    loss = sum(
        w * token_mean_loss(trainer, whole[n], 0.05) for w, n in zip(weights, ("captions", "groundings"), strict=True)
    )
    loss.backward()
    logged = trainer.state.log_history[0]["loss"]
    assert logged == pytest.approx(loss.item(), abs=1e-5)
    wanted = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    assert wanted.keys() == gradients.keys()
    for name, gradient in wanted.items():
        assert (gradients[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6, name


def test_a_step_logs_what_makes_failures_visible(policy_dir, dataset_dir, rectangles, tmp_path):
    trainer = make_trainer(policy_dir, dataset_dir, rectangles, tmp_path)
    trainer.train()
    logged = trainer.state.log_history[0]
    for name in (
        "caption/cycle_score",
        "caption/clean",
        "caption/no_repeat",
        "grounding/overlap",
        "grounding/unparsable",
        "no_target/accuracy",
        "expression/overlap",
        "caption/no_signal",
        "grounding/no_signal",
        "no_target/no_signal",
        "expression/no_signal",
        "kl",
    ):
        assert 0.0 <= logged[name] <= 1.0, name
    assert rectangles.num_encoded == 2  # every image once, whatever the number of answers


@pytest.mark.parametrize("locate", [{}, {"locate_with": "reference", "optimise": "captions"}])
def test_every_task_has_its_own_limit_of_length(policy_dir, dataset_dir, rectangles, tmp_path, locate):
    limits = {"max_caption_tokens": 12, "max_grounding_tokens": 4}
    trainer = make_trainer(policy_dir, dataset_dir, rectangles, tmp_path, **limits, **locate)
    trainer.train()
    logged = trainer.state.log_history[0]
    # A random policy of 886 tokens hardly ever ends an answer by itself.
    assert logged["captions/max_length"] == 12
    assert logged["groundings/max_length"] == 4
    for kept in (trainer.generation_config.max_new_tokens, trainer.generation_kwargs["max_new_tokens"]):
        assert kept == trainer.max_completion_length == 12  # as before
