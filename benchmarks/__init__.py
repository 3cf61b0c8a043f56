"""Benchmarks of the mask tokenizer, one command each; what was measured with them is in docs/results.md."""
