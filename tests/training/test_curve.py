from __future__ import annotations

import pytest

from cyclegrpo.training.curve import mean_of, progress_line, summary, training_rows, write_curves

HISTORY = [
    {"step": 1, "loss": 0.5, "caption/cycle_score": 0.2, "time/captions_s": 1.5, "kl": None},
    {"step": 2, "loss": 0.25, "caption/cycle_score": 0.4, "time/captions_s": 2.5, "no_target/accuracy": 1.0},
    {"step": 2, "train_runtime": 9.0},
]


def test_curves_keep_seconds_apart_and_leave_gaps_empty(tmp_path):
    write_curves(tmp_path, training_rows(HISTORY))
    assert (tmp_path / "curves.csv").read_text() == (
        "step,caption/cycle_score,loss,no_target/accuracy\n1,0.2,0.5,\n2,0.4,0.25,1.0\n"
    )
    assert (tmp_path / "times.csv").read_text() == "step,time/captions_s\n1,1.5\n2,2.5\n"


def test_a_column_averages_the_rows_that_have_it():
    rows = training_rows(HISTORY)
    assert mean_of(rows, "no_target/accuracy") == 1.0
    assert mean_of(rows, "caption/cycle_score") == pytest.approx(0.3)
    assert mean_of(rows, "expression/overlap") is None


def test_the_summary_quotes_the_first_and_the_last_ten_steps():
    rows = [{"step": i, "loss": 0.0, "caption/cycle_score": i / 100} for i in range(1, 31)]
    assert summary(rows) == {
        "first.caption_cycle_score": pytest.approx(0.055),
        "last.caption_cycle_score": pytest.approx(0.255),
    }


def test_a_step_in_one_line_names_only_what_it_has():
    assert progress_line({"step": 2, "no_target/accuracy": 1.0}, 36) == "step 2/36  no-target 1.000"
