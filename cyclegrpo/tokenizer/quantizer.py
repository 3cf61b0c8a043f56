"""Residual vector quantisation: a mask embedding <-> one code in each codebook.

Shapes: N masks, L codebooks, K rows in a codebook, D channels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def nearest_rows(vectors_ND: Tensor, codebook_KD: Tensor) -> Tensor:
    """Index of the codebook row nearest to each vector by squared distance, long (N,); the first of equals.

    >>> nearest_rows(torch.tensor([[0.9], [0.2]]), torch.tensor([[0.0], [1.0]])).tolist()
    [1, 0]
    """
    distances_NK = (
        vectors_ND.square().sum(1, keepdim=True) - 2 * vectors_ND @ codebook_KD.T + codebook_KD.square().sum(1)
    )
    return distances_NK.argmin(dim=1)


def quantize(embeddings_ND: Tensor, codebooks: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Codes of each embedding, long (N, L), and the vectors (N, D) that each codebook was asked for.

    The first codebook is asked for the embedding, every later one for what the earlier rows leave over.

    >>> books = [torch.tensor([[0.0], [10.0]]), torch.tensor([[-1.0], [1.0]])]
    >>> codes, asked = quantize(torch.tensor([[9.0]]), books)
    >>> codes.tolist(), [a.item() for a in asked]
    ([[1, 0]], [9.0, -1.0])
    """
    residual_ND = embeddings_ND
    codes, asked = [], []
    for codebook_KD in codebooks:
        asked.append(residual_ND)
        codes_N = nearest_rows(residual_ND, codebook_KD)
        codes.append(codes_N)
        residual_ND = residual_ND - codebook_KD[codes_N]
    return torch.stack(codes, dim=1), asked


def embed_codes(codes_NL: Tensor, codebooks: Sequence[Tensor]) -> Tensor:
    """Sum of the rows that the codes name, (N, D); a code of -1 is missing and adds nothing.

    The public code turns -1 into row 0 in the caller's tensor; here it is left out, as was meant.

    >>> books = [torch.tensor([[0.0], [10.0]]), torch.tensor([[-1.0], [1.0]])]
    >>> embed_codes(torch.tensor([[1, 0], [1, -1]]), books).flatten().tolist()
    [9.0, 10.0]
    """
    rows = [
        codebook_KD[codes_N.clamp(min=0)] * (codes_N >= 0).unsqueeze(1)
        for codes_N, codebook_KD in zip(codes_NL.unbind(1), codebooks, strict=True)
    ]
    return torch.stack(rows).sum(dim=0)


class CodebookAverages:
    """Quantises in training and moves the codebooks: each row is a moving average of the vectors it was nearest to.

    The codebooks start from remembered embeddings, the first time that something is quantised. Rows that are hardly
    asked for are set to vectors of the current batch.

    Args:
        codebooks: the (K, D) tensors to move, in place.
        decay: weight of the past in each step, in [0, 1).
        restart_ratio: a row restarts when its average count falls below this share of an even count (N / K).
        seed: of the choice of vectors that rows start from.
        keep_rows: the codebooks are good already, and start as they are.
        gather: joins the vectors of all processes, (N, D) each, so that all move their codebooks alike; None where
            there is one process.
    """

    num_remembered = 4096
    num_start_rounds = 10

    def __init__(
        self,
        codebooks: Sequence[Tensor],
        *,
        decay: float,
        restart_ratio: float,
        seed: int,
        keep_rows: bool = False,
        gather: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.codebooks = list(codebooks)
        self.keep_rows = keep_rows
        self.gather = gather or (lambda vectors_ND: vectors_ND)
        self.decay = decay
        self.restart_ratio = restart_ratio
        self.generator = torch.Generator().manual_seed(seed)
        self.remembered: list[Tensor] = []
        self.counts: list[Tensor] = []
        self.sums: list[Tensor] = []

    def remember(self, embeddings_ND: Tensor) -> None:
        """Keep embeddings for the codebooks to start from; the latest ones count."""
        if self.keep_rows:
            return
        self.remembered.append(self.gather(embeddings_ND.detach().float()))
        while sum(map(len, self.remembered)) > self.num_remembered:
            self.remembered.pop(0)

    def quantize(self, embeddings_ND: Tensor) -> tuple[Tensor, Tensor, int]:
        """Quantised embeddings with the embeddings' gradient, the commitment loss, and how many rows restarted.

        The commitment loss is the mean squared distance to the sum of the first rows, averaged over how many are
        summed. The codebooks move after they were used.
        """
        everywhere_ND = self.gather(embeddings_ND.detach().float())
        with torch.no_grad(), torch.autocast(embeddings_ND.device.type, enabled=False):
            if not self.counts:
                self._start(torch.cat([*self.remembered, everywhere_ND]), len(everywhere_ND))
            codes_NL, _ = quantize(embeddings_ND.float(), self.codebooks)
            rows = [book[codes] for book, codes in zip(self.codebooks, codes_NL.unbind(1), strict=True)]
            sums_LND = torch.stack(rows).cumsum(dim=0)
            num_restarted = self._move(*quantize(everywhere_ND, self.codebooks))
        commitment = (embeddings_ND - sums_LND).square().mean()
        return embeddings_ND + (sums_LND[-1] - embeddings_ND).detach(), commitment, num_restarted

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on beside the codebooks themselves."""
        return {
            "remembered": self.remembered,
            "counts": self.counts,
            "sums": self.sums,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        device = self.codebooks[0].device
        for name in ("remembered", "counts", "sums"):
            setattr(self, name, [tensor.to(device) for tensor in state[name]])
        self.generator.set_state(state["generator"].cpu())

    @torch.no_grad()
    def _start(self, vectors_ND: Tensor, batch_size: int) -> None:
        """Fill each codebook by some rounds of k-means over what the earlier ones leave over."""
        for codebook_KD in self.codebooks:
            num_rows = len(codebook_KD)
            if not self.keep_rows:
                codebook_KD.copy_(self._pick(vectors_ND, num_rows))
            for _ in range(0 if self.keep_rows else self.num_start_rounds):
                codes_N = nearest_rows(vectors_ND, codebook_KD)
                counts_K = torch.bincount(codes_N, minlength=num_rows)
                sums_KD = torch.zeros_like(codebook_KD).index_add_(0, codes_N, vectors_ND)
                used_K = counts_K > 0
                codebook_KD[used_K] = sums_KD[used_K] / counts_K[used_K].unsqueeze(1)
            vectors_ND = vectors_ND - codebook_KD[nearest_rows(vectors_ND, codebook_KD)]
            even = torch.full((num_rows,), batch_size / num_rows, device=codebook_KD.device)
            self.counts.append(even)
            self.sums.append(codebook_KD * even.unsqueeze(1))

    def _move(self, codes_NL: Tensor, asked: Sequence[Tensor]) -> int:
        num_restarted = 0
        for level, codebook_KD in enumerate(self.codebooks):
            counts_K, sums_KD = self.counts[level], self.sums[level]
            new_K = torch.bincount(codes_NL[:, level], minlength=len(codebook_KD)).to(counts_K.dtype)
            counts_K.lerp_(new_K, 1 - self.decay)
            new_sums_KD = torch.zeros_like(sums_KD).index_add_(0, codes_NL[:, level], asked[level])
            sums_KD.lerp_(new_sums_KD, 1 - self.decay)
            even = len(codes_NL) / len(codebook_KD)
            idle_K = counts_K < self.restart_ratio * even
            if num_idle := int(idle_K.sum()):
                counts_K[idle_K] = even
                sums_KD[idle_K] = self._pick(asked[level], num_idle) * even
                num_restarted += num_idle
            codebook_KD.copy_(sums_KD / counts_K.clamp(min=1e-6).unsqueeze(1))
        return num_restarted

    def _pick(self, vectors_ND: Tensor, num_rows: int) -> Tensor:
        chosen = torch.randint(len(vectors_ND), (num_rows,), generator=self.generator)
        return vectors_ND[chosen.to(vectors_ND.device)]
