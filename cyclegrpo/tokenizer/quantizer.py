"""Residual vector quantisation: a mask embedding <-> one code in each codebook.

Shapes: N masks, L codebooks, K rows in a codebook, D channels.
"""

from collections.abc import Sequence

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
