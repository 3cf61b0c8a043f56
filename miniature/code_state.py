"""Which state of the code a training of the miniature is of, so that none goes on under another one."""

from __future__ import annotations

from pathlib import Path

from cyclegrpo.dataset.shards import code_digest
from cyclegrpo.files import digest, sha256_file


def miniature_code() -> str:
    """A digest of the miniature's source files and of those of the package that its trainings depend on."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    package = code_digest("policy.py", "tokenizer/*.py", "unfinished.py", "vision.py")
    return digest(package, [[path.name, sha256_file(path)] for path in files])
