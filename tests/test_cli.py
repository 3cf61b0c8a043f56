"""The command line: what is instant, what each command calls, what errors and exit codes look like."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from cyclegrpo import __version__
from cyclegrpo.cli import app
from cyclegrpo.cli.pipeline import DataStage
from cyclegrpo.dataset.check import CheckReport
from cyclegrpo.dataset.checks.findings import Finding
from cyclegrpo.errors import DataError
from cyclegrpo.params import Params
from tests.test_params import ROOT, write_params

COMMANDS = ("prepare", "check", "train", "evaluate", "predict", "show", "report", "version")
FUNCTIONS = {
    "link": "cyclegrpo.dataset.link:run_link",
    "regions": "cyclegrpo.dataset.regions:run_regions",
    "crop": "cyclegrpo.dataset.crops:run_crop",
    "tokenize": "cyclegrpo.dataset.tokenize:run_tokenize",
    "build": "cyclegrpo.dataset.build:run_build",
    "check": "cyclegrpo.dataset.check:run_check",
    "train": "cyclegrpo.training.run:run_train",
    "evaluate": "cyclegrpo.evaluation.run:run_evaluate",
    "report": "cyclegrpo.explorer.report:run_report",
}


@dataclass
class FakeReport:
    num_rows: int = 3
    exit_code: int = 0


class Calls(list[tuple[str, Params]]):
    """What the commands called, with which params and `folders`; every call returns `result`, or raises it."""

    result: Any = FakeReport()
    folders: dict[str, Path]

    def take(self, name: str, params: Params, **folders: Path) -> Any:
        self.append((name, params))
        self.folders = folders
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every stage replaced by a note that it was called."""
    found = Calls()
    for name, place in FUNCTIONS.items():
        module, function = place.split(":")
        fake = SimpleNamespace(**{function: lambda params, name=name, **folders: found.take(name, params, **folders)})
        monkeypatch.setitem(sys.modules, module, fake)
    return found


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def params(tmp_path: Path) -> str:
    return str(write_params(tmp_path))


def test_help_is_instant_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom cyclegrpo.cli import main\n"
        "try:\n main()\nexcept SystemExit as leave:\n assert not leave.code\n"
        "heavy = {'torch', 'transformers', 'trl', 'numpy', 'pyarrow', 'polars', 'cv2', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        run = subprocess.run(
            [sys.executable, "-c", code, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        seconds.append(time.monotonic() - start)
        assert run.returncode == 0, run.stderr
    assert all(command in run.stdout for command in COMMANDS)
    assert min(seconds) < 1.0  # 0.2 s on an idle machine


@pytest.mark.parametrize("command", [[name] for name in COMMANDS] + [["predict", "describe"], ["predict", "locate"]])
def test_every_command_has_help(command: list[str]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0 and "Usage" in result.output


def test_version() -> None:
    assert invoke("version").output == invoke("--version").output == f"{__version__}\n"


def test_prepare_runs_the_data_stages_in_order(calls: Calls, params: str) -> None:
    result = invoke("prepare", "--params", params, "--limit", "4")
    assert result.exit_code == 0
    assert [name for name, _ in calls] == [stage.value for stage in DataStage]
    assert all(source.limit == 4 for source in calls[0][1].base.sources)
    assert "link\n  num_rows   3\n" in result.output


def test_prepare_runs_one_stage(calls: Calls, params: str) -> None:
    result = invoke("prepare", "crop", "--params", params, "--json")
    assert [name for name, _ in calls] == ["crop"]
    assert json.loads(result.output) == {"crop": {"num_rows": 3, "exit_code": 0}}


@pytest.mark.parametrize("command", ["check", "train", "evaluate", "report"])
def test_a_command_calls_its_stage(calls: Calls, params: str, command: str) -> None:
    result = invoke(command, "--params", params, "--json")
    assert result.exit_code == 0 and json.loads(result.output)["num_rows"] == 3
    assert [name for name, _ in calls] == [command]


def test_show_draws_a_row(monkeypatch: pytest.MonkeyPatch, params: str, tmp_path: Path) -> None:
    drawn: list[tuple[int, Path]] = []
    fake = SimpleNamespace(draw_row=lambda params, number, path: drawn.append((number, path)))
    monkeypatch.setitem(sys.modules, "cyclegrpo.dataset.show", fake)
    out = str(tmp_path / "a.png")
    assert invoke("show", "12", "--params", params, "--out", out).output.strip() == out
    assert drawn == [(12, Path(out))]


def test_limits_reach_the_params(calls: Calls, params: str) -> None:
    invoke("train", "--params", params, "--limit", "2")
    invoke("evaluate", "--params", params, "--limit", "7")
    assert (calls[0][1].train.num_steps, calls[1][1].evaluate.num_regions) == (2, 7)


def test_without_a_limit_everything_lies_where_the_pipeline_puts_it(calls: Calls, params: str) -> None:
    for command in ("train", "evaluate"):
        assert "limited" not in invoke(command, "--params", params).output
        assert calls.folders == {}


def test_a_limit_replaces_no_policy_and_no_results(
    calls: Calls, params: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    output = invoke("train", "--params", params, "--limit", "2").output
    models, results = Path("models/limited"), Path("results/limited")
    assert calls.folders == {
        "policy_dir": models / "policy",
        "checkpoint_dir": models / "checkpoints",
        "results_dir": results / "train",
    }
    assert all(f"{name:<14}  {folder}\n" in output for name, folder in calls.folders.items())
    shown = json.loads(invoke("evaluate", "--params", params, "--limit", "2", "--json").output)
    assert shown == {"num_rows": 3, "exit_code": 0, "trained": "models/policy", "results": "results/limited/evaluate"}
    assert calls.folders["kept"] == Path("data/work/limited/evaluate")


def test_a_limited_evaluation_asks_the_limited_policy_where_there_is_no_other(
    calls: Calls, params: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, expected in (("models/limited/policy", "models/limited/policy"), ("models/policy", "models/policy")):
        Path(folder).mkdir(parents=True)
        invoke("evaluate", "--params", params, "--limit", "2")
        assert calls.folders["trained"] == Path(expected)
    invoke("evaluate", "--params", params)
    assert calls.folders == {}


def test_help_says_where_a_limit_writes() -> None:
    for command, places in (("train", ["models/limited", "results/limited"]), ("evaluate", ["results/limited"])):
        text = " ".join(invoke(command, "--help").output.split())
        assert [place for place in places if place not in text] == []


def test_a_failed_check_is_exit_code_1_and_shows_what_failed(calls: Calls, params: str) -> None:
    finding = Finding("data/a.parquet", 3, "images", "image_missing", "no such file")
    calls.result = CheckReport(num_files=1, num_rows=4, num_errors=1, kinds={"image_missing": 1}, findings=[finding])
    result = invoke("check", "--params", params)
    assert result.exit_code == 1
    assert "4 rows in 1 files: 1 errors, 0 warnings" in result.output
    assert "image_missing" in result.output and "no such file" in result.output


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("no mask.", file="a.json", record=7), 1, "cyclegrpo train: error: a.json, record 7: no mask.\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "models/x"),
            1,
            "cyclegrpo train: error: models/x: no space left on the disk. "
            "Free some and run it again; finished parts are kept.\n",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "data/work/images.parquet"),
            1,
            "cyclegrpo train: error: data/work/images.parquet: no such file or directory.\n",
        ),
        (DataError("two\nlines"), 1, "cyclegrpo train: error: two lines\n"),
        (KeyboardInterrupt(), 130, "cyclegrpo train: error: interrupted; run it again to continue.\n"),
    ],
)  # fmt: skip
def test_errors_are_one_line(calls: Calls, params: str, error: BaseException, code: int, message: str) -> None:
    calls.result = error
    result = invoke("train", "--params", params)
    assert result.exit_code == code
    assert result.stderr == message and result.stdout == ""


@pytest.mark.parametrize("command", [["train"], ["tokenizer", "evaluate"]])
def test_errors_begin_with_the_command_as_it_is_typed(command: list[str]) -> None:
    result = invoke(*command, "--params", "nowhere.yaml")
    assert result.stderr.startswith(f"cyclegrpo {' '.join(command)}: error: nowhere.yaml: no such file")


def test_a_fault_of_ours_keeps_its_traceback(calls: Calls, params: str) -> None:
    calls.result = ZeroDivisionError("ours")
    assert isinstance(invoke("train", "--params", params).exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--betta", "1"], "No such option: --betta"),
        (["prepare", "everything"], "Invalid value"),
        (["train", "--limit", "0"], "Invalid value for '--limit'"),
        (["evaluate", "--limit", "-5"], "Invalid value for '--limit'"),
        (["show", "1", "--out", "row.txt"], "row.txt is no picture"),
        (["predict", "locate", "a.jpg", "the dog", "--out", "x"], "x is no picture"),
        (["nonsense"], "No such command"),
        (["train", "--params", "missing.yaml"], "cyclegrpo train: error: missing.yaml: no such file."),
    ],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.stderr


def test_check_config_names_inputs_that_are_not_there(tmp_path: Path) -> None:
    path = write_params(tmp_path, {"base.tokenizer": "no/tokenizer", "base.policy": str(tmp_path)})
    result = invoke("check", "config", "--params", str(path))
    assert result.exit_code == 0 and "fine, but" in result.stdout
    expected = f"{path}: base.tokenizer: no/tokenizer is not there; a stage must make it, or its path is wrong."
    assert expected in result.stderr.splitlines() and "base.policy:" not in result.stderr


def test_predict_refuses_a_region_given_twice_or_never_before_anything_loads(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.touch()
    for options in ([], ["--box", "0,0,1,1", "--mask", str(picture)]):
        result = invoke("predict", "describe", str(picture), *options)
        assert result.exit_code == 2 and "give the region once" in result.stderr
    result = invoke("predict", "locate", str(tmp_path / "none.png"), "a dog")
    assert result.exit_code == 2 and "none.png" in result.stderr


def test_check_config_lists_everything(tmp_path: Path) -> None:
    assert invoke("check", "config", "--params", str(write_params(tmp_path))).exit_code == 0
    path = write_params(tmp_path, {"train.beta": -1, "crop.min_side_px": 0})
    result = invoke("check", "config", "--params", str(path))
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"{path}: crop.min_side_px is 0; expected >= 1.",
        f"{path}: train.beta is -1; expected >= 0.",
    ]
    as_json = invoke("check", "config", "--params", str(path), "--json")
    assert as_json.exit_code == 2 and len(json.loads(as_json.stdout)["problems"]) == 2


def run_process(code: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)


STAGE = "from pipeline.stage import run_stage\ndef run(params):\n {body}\nrun_stage('link', run)"


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        ("return {'num_images': 2, 'ratio': 0.25, 'skipped': {'missing': 1}, 'skips': [1]}", 0, ""),
        (
            "raise FileNotFoundError(2, 'No such file or directory', 'é.json')",
            1,
            "link: error: \\xe9.json: no such file",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", 130, "link: error: interrupted;"),
        ("print('\\u732b'); return None", 0, ""),
    ],
)
def test_a_stage_process(tmp_path: Path, body: str, code: int, stderr: str) -> None:
    write_params(tmp_path)
    run = run_process(STAGE.format(body=body), cwd=tmp_path, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert run.returncode == code and run.stderr.startswith(stderr) and len(run.stderr.splitlines()) <= 1
    if "num_images" in body:
        assert run.stdout.splitlines() == [
            "link",
            "  num_images       2",
            "  ratio            0.25",
            "  skipped.missing  1",
        ]


def test_a_stage_refuses_wrong_params_before_it_runs(tmp_path: Path) -> None:
    write_params(tmp_path, {"report.titel": "x"})
    run = run_process(STAGE.format(body="print('ran')"), cwd=tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "link: error: params.yaml: report.titel is unknown; did you mean report.title?\n"


def test_a_stage_refuses_what_dvc_would_trip_over(tmp_path: Path) -> None:
    write_params(tmp_path, remove="base.seed")
    run = run_process(STAGE.format(body="print('ran')"), cwd=tmp_path)
    assert run.returncode == 2 and "base.seed is missing, and dvc.yaml depends on it; add it." in run.stderr


def test_ctrl_c_of_a_command_is_one_line(tmp_path: Path) -> None:
    write_params(tmp_path)
    code = (
        "import os, signal, sys, types\n"
        "def run_report(params):\n os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.modules['cyclegrpo.explorer.report'] = types.SimpleNamespace(run_report=run_report)\n"
        "from cyclegrpo.cli import main\nmain()"
    )
    run = run_process(code, "report", cwd=tmp_path)
    assert run.returncode == 128 + signal.SIGINT
    assert run.stderr == "cyclegrpo report: error: interrupted; run it again to continue.\n"


def test_mistakes_of_predict_are_told_under_its_whole_name(params: str, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("no picture")
    result = invoke("predict", "locate", str(tmp_path / "a.jpg"), "a dog", "--params", params)
    assert result.exit_code == 1
    assert result.stderr.startswith("cyclegrpo predict locate: error: ")
