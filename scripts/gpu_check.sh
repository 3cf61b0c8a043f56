#!/bin/sh
# All checks that need a GPU, in one command: scripts/gpu_check.sh
set -eu
cd "$(dirname "$0")/.."
python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "no GPU here")'
python -m pytest -m gpu -p no:cacheprovider "$@"
