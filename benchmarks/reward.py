"""The exact reward against an encoder pass: 36 groundings of one image decoded and compared at 256 x 256.

    python -m benchmarks.reward

Every distinct pair of codes is decoded once, so what the reward costs depends on how many of the 36 differ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
from PIL import Image

from benchmarks.common import encoder_clock, made_up_image, random_tokenizer
from cyclegrpo.params import Reward
from cyclegrpo.regions.tokens import codes_to_token
from cyclegrpo.training.draws import Draw
from cyclegrpo.training.scoring import MaskScorer

NUM_GROUNDINGS = 36


def main(arguments: Sequence[str] | None = None) -> None:
    """Print seconds of the encoder, seconds of the reward and their ratio, for several numbers of distinct answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="large", choices=("tiny", "small", "base_plus", "large"))
    parser.add_argument("--distinct", type=int, nargs="+", default=[6, 12, 24, 36])
    options = parser.parse_args(arguments)
    scorer = MaskScorer(random_tokenizer(options.size), Reward(resolution="logits"))
    image = Image.fromarray(made_up_image(0))
    draw = Draw("caption", "<image>", ("a.jpg",), (codes_to_token(1, 2),), None, "row 0")
    for distinct in options.distinct:
        pairs = np.random.default_rng(distinct).integers(0, 256, (distinct, 2)).tolist()
        answers = [codes_to_token(*pairs[number % distinct]) for number in range(NUM_GROUNDINGS)]
        scorer.start_step()
        with encoder_clock(scorer.tokenizer) as clock:
            start = time.perf_counter()
            scorer.score(answers, [draw] * NUM_GROUNDINGS, [image] * NUM_GROUNDINGS)
            seconds = time.perf_counter() - start - clock.seconds
        print(
            f"{distinct:2d} of {NUM_GROUNDINGS} distinct: encoder {clock.seconds:.2f} s, reward {seconds:.2f} s, "
            f"ratio {seconds / clock.seconds:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
