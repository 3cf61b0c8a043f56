"""What is kept of a training that is not finished, so that it goes on after a kill: its states, in a folder.

A state is what accelerate saves (weights, optimizer, random states and whatever is registered with the accelerator),
in `step-<n>`. Each appears whole, and the one before goes after it. `run.json` holds a digest of all that a run must
share with its continuation.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from pickle import UnpicklingError

import torch
from accelerate import Accelerator
from torch import nn

from cyclegrpo.errors import DataError
from cyclegrpo.files import digest, write_json

RUN_FILE = "run.json"
WRONG_CONTENT = (AttributeError, KeyError, TypeError, UnpicklingError, ValueError)
"""What loading a state that is none may raise."""


class UnfinishedRun:
    """The states of a training in a folder; with several processes, each calls the methods.

    Args:
        folder: where they are kept; None keeps nothing.
        accelerator: what is prepared and registered with it is saved and loaded.
        run: digest of all that a run must share with its continuation.
    """

    def __init__(self, folder: Path | None, accelerator: Accelerator, run: str) -> None:
        self.folder, self.accelerator, self.run = folder, accelerator, run

    def resume(self) -> None:
        """Load the newest state, if there is one; DataError where it is of another run, or damaged."""
        if self.folder is None:
            return
        if self.accelerator.is_main_process:
            shutil.rmtree(self._going, ignore_errors=True)
        if not self.folder.is_dir():
            return
        others = [path.name for path in self.folder.iterdir() if path not in self._ours()]
        if others:
            raise DataError(f"holds {others[0]}, which is no state of a training; move it away.", file=self.folder)
        if not self._saved():
            return
        try:
            run = json.loads((self.folder / RUN_FILE).read_text(encoding="utf-8"))["run"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            run = None
        if run != self.run:
            raise DataError(
                "holds an unfinished training with other parameters, first weights, data, code or number of processes; "
                "delete the folder to start anew, or restore them to continue",
                file=self.folder,
            )
        newest = self._saved()[-1]
        try:
            for file in newest.glob("custom_checkpoint_*.pkl"):  # accelerate itself would run what a pickle holds
                torch.load(file, map_location="cpu", weights_only=True)
            self.accelerator.load_state(str(newest))
        except (OSError, EOFError, RuntimeError, *WRONG_CONTENT) as error:
            raise DataError(f"a damaged state ({error}); delete it to go on from nothing.", file=newest) from error
        if self.accelerator.is_main_process:
            sys.stderr.write(f"going on from {newest}\n")

    def save(self, step: int) -> None:
        """Keep the state as it is after so many steps."""
        if self.folder is None:
            return
        path = self.folder / f"step-{step:08d}"
        temporary = path.with_name(f".{path.name}.tmp")
        if self.accelerator.is_main_process:
            shutil.rmtree(temporary, ignore_errors=True)
            write_json(self.folder / RUN_FILE, {"run": self.run})
        self.accelerator.wait_for_everyone()
        # Not safetensors, of which accelerate warns whenever weights are tied.
        self.accelerator.save_state(str(temporary), safe_serialization=False)
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            earlier = self._saved()
            temporary.rename(path)
            for old in earlier:
                shutil.rmtree(old)

    def clear(self) -> None:
        """Remove the states of a run that is finished."""
        self.accelerator.wait_for_everyone()
        if self.folder is not None and self.folder.is_dir() and self.accelerator.is_main_process:
            shutil.rmtree(self._going, ignore_errors=True)
            self.folder.rename(self._going)  # at once, so that a kill leaves no half of a state under its name
            shutil.rmtree(self._going)

    @property
    def _going(self) -> Path:
        assert self.folder is not None
        return self.folder.with_name(f".{self.folder.name}.tmp")

    def _saved(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob("step-*"))

    def _ours(self) -> set[Path]:
        return set() if self.folder is None else {self.folder / RUN_FILE, *self._saved(), *self.folder.glob(".*.tmp*")}


def digest_weights(module: nn.Module) -> str:
    """The SHA-256 of a module's weights, byte for byte, and of their names; 64 hex digits."""
    flat = {name: weight.detach().cpu().reshape(-1) for name, weight in module.state_dict().items()}
    return digest({name: hashlib.sha256(weight.view(torch.uint8).numpy()).hexdigest() for name, weight in flat.items()})


def require_finite(module: nn.Module) -> None:
    """DataError where a weight is no number, before it is kept."""
    if not all(bool(weight.isfinite().all()) for weight in module.parameters()):
        raise DataError("weights are no numbers any more; lower the learning rate and start anew.")
