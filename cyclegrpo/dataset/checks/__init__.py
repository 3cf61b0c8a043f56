"""The parts of the validator: what is found in files, in texts, in images; and statistics. `dataset.check` runs
them."""
