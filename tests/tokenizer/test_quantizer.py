"""Residual quantisation and the moving codebooks against hand-computed numbers."""

import pytest
import torch

from cyclegrpo.tokenizer.quantizer import CodebookAverages, embed_codes, nearest_rows, quantize

BOOKS = [torch.tensor([[0.0, 0.0], [10.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])]


def test_nearest_rows_takes_the_first_of_equals():
    assert nearest_rows(torch.tensor([[5.0, 0.0], [5.1, 0.0], [-3.0, 9.0]]), BOOKS[0]).tolist() == [0, 1, 0]


def test_later_codes_spell_what_earlier_ones_leave_over():
    codes, asked = quantize(torch.tensor([[11.0, 0.0], [0.5, 1.6]]), BOOKS)
    assert codes.tolist() == [[1, 0], [0, 1]]
    assert torch.equal(asked[0], torch.tensor([[11.0, 0.0], [0.5, 1.6]]))
    torch.testing.assert_close(asked[1], torch.tensor([[1.0, 0.0], [0.5, 1.6]]))


def test_embed_codes_sums_rows_and_leaves_missing_ones_out():
    codes = torch.tensor([[1, 1], [1, -1], [0, 0]])
    assert embed_codes(codes, BOOKS).tolist() == [[10.0, 2.0], [10.0, 0.0], [1.0, 0.0]]
    assert codes.tolist() == [[1, 1], [1, -1], [0, 0]]
    assert embed_codes(codes[:0], BOOKS).shape == (0, 2)


def averages_of(books: list[torch.Tensor], **settings: float) -> CodebookAverages:
    defaults = {"decay": 0.5, "restart_ratio": 0.0}
    return CodebookAverages(books, **{**defaults, **settings}, seed=0)


def test_codebooks_start_from_the_remembered_clusters():
    books = [torch.zeros(2, 1), torch.zeros(2, 1)]
    averages = averages_of(books)
    batch = torch.tensor([[-10.0], [-8.0], [8.0], [10.0]])
    averages.remember(batch.repeat(8, 1))
    quantized, commitment, restarted = averages.quantize(batch)
    assert restarted == 0
    assert quantized.flatten().tolist() == pytest.approx([-10.0, -8.0, 8.0, 10.0])
    # The first rows miss by 1 (clusters around -9 and 9), both rows by 0: mean of squares over both sums.
    assert commitment.item() == pytest.approx(0.5)


def test_a_row_moves_to_the_average_of_what_was_nearest():
    books = [torch.zeros(2, 1)]
    averages = averages_of(books)
    averages.remember(torch.tensor([[0.0], [10.0]] * 8))
    averages.quantize(torch.tensor([[0.0], [10.0]]))
    assert sorted(books[0].flatten().tolist()) == [0.0, 10.0]
    averages.quantize(torch.tensor([[4.0], [10.0]]))
    # Counts stay 1; half of the sum 0 and half of the sum 4.
    assert sorted(books[0].flatten().tolist()) == [2.0, 10.0]


def test_idle_rows_restart_from_the_batch():
    books = [torch.zeros(2, 1)]
    averages = averages_of(books, restart_ratio=0.3)
    averages.remember(torch.tensor([[0.0], [10.0]] * 8))
    averages.quantize(torch.tensor([[0.0], [10.0]]))
    # The other row's count halves with each batch: 0.5, then 0.25, which is below 0.3 of an even 1.
    assert [averages.quantize(torch.tensor([[0.0], [0.0]]))[2] for _ in range(2)] == [0, 1]
    assert books[0].flatten().tolist() == [0.0, 0.0]


def test_the_gradient_passes_straight_through():
    averages = averages_of([torch.zeros(2, 1)])
    averages.remember(torch.tensor([[0.0], [10.0]] * 8))
    embeddings = torch.tensor([[1.0], [9.0]], requires_grad=True)
    quantized, _, _ = averages.quantize(embeddings)
    (quantized * torch.tensor([[2.0], [3.0]])).sum().backward()
    assert embeddings.grad is not None
    assert embeddings.grad.flatten().tolist() == [2.0, 3.0]
