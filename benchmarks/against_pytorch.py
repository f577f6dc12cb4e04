"""Times the training of GPT-2 in this library and in PyTorch, and prints the ratios.

  python -m venv pytorch && pytorch/bin/pip install -r benchmarks/requirements.txt
  python benchmarks/against_pytorch.py --pytorch=pytorch/bin/python
  python benchmarks/against_pytorch.py --pytorch=... --device=cuda --compile

Run it from the root of the repository on an idle machine. The programs take turns, and
both use all cores, or one GPU. With --compile PyTorch uses torch.compile.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence


def main() -> None:
  parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
  parser.add_argument('--pytorch', required=True, help='a Python that has PyTorch')
  parser.add_argument('--sizes', default='gpt2_tiny,gpt2_small')
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument('--seconds', type=float, default=5.0)
  parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
  parser.add_argument('--compile', action='store_true')
  arguments = parser.parse_args()
  options = [f'--device={arguments.device}', *['--compile'] * arguments.compile]
  for size in arguments.sizes.split(','):
    ours, theirs = [], []
    for _ in range(arguments.repeats):
      theirs.append(_pytorch(arguments.pytorch, size, arguments.seconds, options))
      ours.append(_zoo(size, arguments.seconds, arguments.device))
    rates = [speeds['steps_per_second'] for speeds in ours]
    share = statistics.median(speeds['share_of_peak'] for speeds in ours)
    ratios = [rate / other for rate, other in zip(rates, theirs, strict=True)]
    ratio = statistics.median(ratios)
    print(
      f'{size}: {statistics.median(rates):.2f} steps/s, '
      f'PyTorch {statistics.median(theirs):.2f}; '
      f'{ratio:.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f}); '
      f'{share:.0%} of the matmul peak'
    )


def _pytorch(python: str, size: str, seconds: float, options: Sequence[str]) -> float:
  script = pathlib.Path(__file__).with_name('gpt2_pytorch.py')
  command = [python, str(script), f'--size={size}', f'--seconds={seconds}', *options]
  return float(subprocess.run(command, check=True, capture_output=True).stdout)


def _zoo(size: str, seconds: float, device: str) -> dict[str, float]:
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'found.json')
    command = [sys.executable, '-m', 'launch.benchmark', f'--models={size}']
    command += [f'--json={path}', '--repeats=1', f'--seconds={seconds}']
    environment = os.environ | {'JAX_PLATFORMS': device}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return json.loads(path.read_text())['models'][size]


if __name__ == '__main__':
  main()
