"""A policy: a vision-language model with its processor, asked questions about images.

The one place that turns a prompt with `<image>` placeholders into chat messages, so that training, evaluation and
prediction ask in exactly the same way. Answers are decoded with special tokens kept (mask tokens must survive) and only
end-of-turn markers removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from cyclegrpo.loading import bars_on_terminals_only, require_model, resolve_device
from cyclegrpo.regions.spaces import IMAGE

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
    processor = AutoProcessor.from_pretrained(path)
    processor.tokenizer.padding_side = "left"
    return processor


def save_policy(model: Any, processor: Any, path: Path) -> None:
    """The model and its processor as a Hugging Face directory, which appears all at once and replaces an older one."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    with bars_on_terminals_only():
        model.save_pretrained(unfinished)
    processor.save_pretrained(unfinished)
    if path.is_dir():
        shutil.rmtree(path)
    unfinished.rename(path)


class Policy:
    """A model and its processor (of `load_processor`), ready to generate answers in batches."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model = model.eval()
        self.processor = processor
        tokenizer = processor.tokenizer
        ends = [tokenizer.convert_tokens_to_ids(t) for t in END_OF_TURN]
        self.end_ids = sorted({i for i in [*ends, tokenizer.eos_token_id] if i is not None and i >= 0})

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Policy:
        """The policy saved in a Hugging Face directory, in bf16 on CUDA and float32 on the CPU.

        Raises DataError when the directory is missing or holds no model.
        """
        path = Path(path)
        require_model(path, "a policy", "Train one, or name another.")
        device = resolve_device(device)
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        with bars_on_terminals_only():
            model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype).to(device)
        return cls(model, load_processor(path))

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
