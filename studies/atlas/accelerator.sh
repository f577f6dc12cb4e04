#!/usr/bin/env bash
# Trains ten architectures on the regression tasks of the atlas with 3e12 operations for
# each seed, on one accelerator:
#
#   studies/atlas/accelerator.sh                  # ten minutes at most
#   studies/atlas/accelerator.sh                  # goes on, until all cells are trained
#   SECONDS_AT_MOST=3600 studies/atlas/accelerator.sh
#   studies/atlas/accelerator.sh --models=linear --tasks=noisy --budgets=1e9,3e9
#
# After SECONDS_AT_MOST seconds (default 570) the training is stopped, and everything is
# saved. The same command then goes on where it stopped. There are 50 cells, which need
# several calls; how many was not measured on an accelerator. The cells of `linear` come
# first, and among them those of `softmax`, with which the others are compared. The rates
# are searched at 1e11 operations with three seeds, as the kept atlas did on `prior`, and
# half and twice the best rate are tried at 3e12. Arguments are flags of launch.atlas,
# which replace those below.
set -uo pipefail
cd "$(dirname "$0")/../.."

timeout --signal=TERM --kill-after=120 "${SECONDS_AT_MOST:-570}" \
  python -m launch.atlas \
  --tasks=linear,noisy,sparse,tree,prior --guesses=zero \
  --models=softmax,fox,linear,mamba2,mamba3,gated_delta,kda,rwkv7,ttt,lstm \
  --budgets=1e11,3e12 --search_seeds=3 --out=runs/atlas_accelerator "$@"
code=$?
if ((code == 124)); then
  echo 'the time is up; run the same command again to go on'
  exit 0
fi
exit "$code"
