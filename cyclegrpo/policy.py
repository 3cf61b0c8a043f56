"""A policy: a vision-language model with its processor, asked questions about images.

The one place that turns a prompt with `<image>` placeholders into chat messages, so that training, evaluation and
prediction ask in exactly the same way. Answers are decoded with special tokens kept (mask tokens must survive) and only
end-of-turn markers removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from cyclegrpo.errors import DataError
from cyclegrpo.files import atomic_path, remove_leftovers, share_weights
from cyclegrpo.loading import bars_on_terminals_only, require_model, resolve_device, told_as_data
from cyclegrpo.regions.spaces import IMAGE
from cyclegrpo.regions.tokens import all_token_strings
from cyclegrpo.vision import speed_up_vision

END_OF_TURN = ("<|im_end|>", "<|endoftext|>")


def prompt_to_messages(prompt: str, images: Sequence[Any]) -> list[dict[str, Any]]:
    """One user turn whose images stand where the prompt says `<image>`.

    After an image the first line break is dropped, as in the released models' training (benchmarks A15.2).
    Raises ValueError when the number of placeholders is not the number of images.

    >>> prompt_to_messages("<image>\\nWhat is it?", ["img"])[0]["content"]
    [{'type': 'image', 'image': 'img'}, {'type': 'text', 'text': 'What is it?'}]
    """
    pieces = prompt.split(IMAGE)
    if len(pieces) - 1 != len(images):
        raise ValueError(f"{len(images)} images, {len(pieces) - 1} placeholders in the prompt {prompt[:80]!r}")
    content: list[dict[str, Any]] = [{"type": "text", "text": pieces[0]}] if pieces[0] else []
    for image, text in zip(images, pieces[1:], strict=True):
        content.append({"type": "image", "image": image})
        if text := text.removeprefix("\n"):
            content.append({"type": "text", "text": text})
    return [{"role": "user", "content": content}]


def load_processor(path: Path) -> Any:
    """The processor of the policy saved in a directory; it pads on the left, whatever is saved there.

    A released Qwen3-VL pads on the right. Generation begins at the right end of a prompt, and TRL puts prompts that it
    padded on the left beside the image positions of the processor, without a look at its side.
    """
    with told_as_data(path):
        processor = AutoProcessor.from_pretrained(path)
    processor.tokenizer.padding_side = "left"
    return processor


def load_model(path: Path, dtype: torch.dtype) -> Any:
    """The model of the policy saved in a directory, on the CPU, with a faster vision tower (`vision.py`)."""
    with told_as_data(path), bars_on_terminals_only():
        model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype)
    speed_up_vision(model)
    return model


def require_mask_tokens(path: Path, processor: Any, *, codebook_size: int, special_ok: bool = False) -> None:
    """DataError where a policy cannot read or write the mask tokens of a tokenizer with such codebooks.

    Args:
        path: the policy's directory; its config says how many rows its embedding has.
        processor: the policy's.
        codebook_size: entries per codebook of the mask tokenizer.
        special_ok: let tokens pass that decoding without special tokens cuts out of answers, as TRL decodes. (Not all
            of these are in `all_special_ids`, so the test is the decoding itself.)
    """
    tokens = all_token_strings(codebook_size)
    with told_as_data(path):
        num_rows = AutoConfig.from_pretrained(path).get_text_config().vocab_size
    encoded = processor.tokenizer(tokens, add_special_tokens=False)["input_ids"]
    decoded = processor.tokenizer.batch_decode(encoded)
    kept = processor.tokenizer.batch_decode(encoded, skip_special_tokens=True)
    missing = [
        token
        for token, ids, text in zip(tokens, encoded, decoded, strict=True)
        if len(ids) != 1 or ids[0] >= num_rows or text != token
    ]
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(tokens)} mask tokens of base.tokenizer are not in the policy's vocabulary, "
            f"the first is {missing[0]}; expected one id and one embedding for each. Name another policy "
            "(base.policy), or base.region_space: box",
            file=path,
        )
    special = [token for token, text in zip(tokens, kept, strict=True) if text != token]
    if special and not special_ok:
        raise DataError(
            f"{len(special)} of the {len(tokens)} mask tokens are special tokens of the policy, the first is "
            f"{special[0]}, and training would not see them in answers; expected ordinary ones. Add them to the "
            "tokenizer of base.policy with special_tokens=False",
            file=path,
        )


def save_policy(model: Any, processor: Any, path: Path) -> None:
    """The model and its processor as a Hugging Face directory, which appears all at once and replaces an older one."""
    remove_leftovers(path)
    with atomic_path(path) as unfinished, bars_on_terminals_only():
        model.save_pretrained(unfinished)
        processor.save_pretrained(unfinished)
        share_weights(unfinished)


class Policy:
    """A model and its processor (of `load_processor`), ready to generate answers in batches."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model = model.eval()
        self.processor = processor
        tokenizer = processor.tokenizer
        ends = [tokenizer.convert_tokens_to_ids(t) for t in END_OF_TURN]
        self.end_ids = sorted({i for i in [*ends, tokenizer.eos_token_id] if i is not None and i >= 0})

    @classmethod
    def load(cls, path: str | Path, device: str = "auto", *, codebook_size: int | None = None) -> Policy:
        """The policy saved in a Hugging Face directory, in bf16 on CUDA and float32 on the CPU.

        Args:
            codebook_size: entries per codebook of the mask tokenizer whose tokens it must know; None where it need not.

        Raises DataError when the directory is missing, holds no model, or lacks mask tokens (before the model loads).
        """
        path = Path(path)
        require_model(path, "a policy", "Train one, or name another.")
        processor = load_processor(path)
        if codebook_size is not None:
            require_mask_tokens(path, processor, codebook_size=codebook_size, special_ok=True)
        device = resolve_device(device)
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        return cls(load_model(path, dtype).to(device), processor)

    def encode(self, prompts: Sequence[str], images: Sequence[Sequence[Image.Image]]) -> Any:
        """The processor's batch for some prompts, on the model's device: left-padded token ids and image patches."""
        messages = [prompt_to_messages(p, i) for p, i in zip(prompts, images, strict=True)]
        return self.processor.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        ).to(self.model.device)

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[str],
        images: Sequence[Sequence[Image.Image]],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        batch_size: int = 32,
    ) -> list[str]:
        """One answer for each prompt, in order; greedy at temperature 0, else sampled from the whole distribution.

        Sampling is a pure function of (seed, prompts, batch_size): the caller's random state is left as it was.
        """
        answers: list[str] = []
        sampling = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        options = sampling if temperature > 0 else {"do_sample": False}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for start in range(0, len(prompts), batch_size):
                batch = self.encode(prompts[start : start + batch_size], images[start : start + batch_size])
                out = self.model.generate(
                    **batch,
                    max_new_tokens=max_new_tokens,
                    eos_token_id=self.end_ids,
                    pad_token_id=self.processor.tokenizer.pad_token_id,
                    **options,
                )
                answers += self._decode(out[:, batch["input_ids"].shape[1] :])
        return answers

    def _decode(self, ids: torch.Tensor) -> list[str]:
        is_end = torch.isin(ids, torch.tensor(self.end_ids, device=ids.device))
        length = torch.where(is_end.any(1), is_end.int().argmax(1), ids.shape[1])
        kept = [row[:n].tolist() for row, n in zip(ids.cpu(), length.tolist(), strict=True)]
        return self.processor.tokenizer.batch_decode(kept, skip_special_tokens=False)
