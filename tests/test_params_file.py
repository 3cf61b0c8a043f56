"""The params file read: what is no YAML or no file, how numbers are read, and the limits of a quick look."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cyclegrpo.errors import ParamsError
from cyclegrpo.params import SourceParams
from cyclegrpo.params_file import limited, load_params, read_sections
from tests.test_params import SHIPPED, write_params


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty; expected sections base, link"),
        ("- a\n- b\n", "no mapping; expected sections base, link"),
        ("base: {a: 1\nlink: 2\n", "line 2: "),
        ("base: 1\nbase: 2\n", 'line 2: found duplicate key "base"'),
        ("base: {}\n", "base.tokenizer is missing; add it."),
    ],
)
def test_a_broken_file_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ParamsError) as caught:
        load_params(tmp_path / "p.yaml")
    assert message in caught.value.problems[0] and "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"base: \xe9\n")
    for name, message in [("no.yaml", "no such file"), (".", "cannot be read"), ("latin.yaml", "UTF-8")]:
        with pytest.raises(ParamsError, match=message):
            load_params(tmp_path / name)


def test_numbers_are_read_as_yaml_1_2(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    assert "  learning_rate: " in text
    lines = ["  learning_rate: 1e-5" if line.startswith("  learning_rate: ") else line for line in text.splitlines()]
    lines = ["  title: on" if line.startswith("  title: ") else line for line in lines]
    (tmp_path / "p.yaml").write_text("\n".join(lines))
    params = load_params(tmp_path / "p.yaml")
    assert params.train.learning_rate == 0.00001 and params.report.title == "on"


def test_values_survive_a_round_trip(tmp_path: Path) -> None:
    params = load_params(SHIPPED)
    YAML(typ="safe").dump(params.model_dump(mode="json"), tmp_path / "again.yaml")
    assert load_params(tmp_path / "again.yaml") == params


def test_limits_only_lower() -> None:
    params = load_params(SHIPPED)
    small = limited(params, records=3, steps=2, regions=5)
    assert [source.limit for source in small.base.sources] == [3, 3]
    assert (small.train.num_steps, small.evaluate.num_regions) == (2, 5)
    assert limited(small, records=10, steps=100, regions=1000) == small
    assert limited(params) == params


def test_sections_that_the_sources_do_not_need_are_let_be(tmp_path: Path) -> None:
    """Measuring a tokenizer takes a file that training and evaluation would refuse."""
    path = write_params(tmp_path, {"train.betta": 1, "evaluate.split": 3})
    assert read_sections(path, SourceParams).base.sources
    path = write_params(tmp_path, {"base.sources[0].formatt": "x"})
    with pytest.raises(ParamsError, match=r"base\.sources\[0\]\.formatt is unknown"):
        read_sections(path, SourceParams)
