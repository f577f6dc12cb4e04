"""Golden vectors of mixers, by the public definitions in float64.

  python tests/data/mixers/make.py --fla=DIR --mamba=DIR

needs PyTorch, einops and clones of the two repositories, of which it reads the files at
the commits below. Only definitions are run; nothing of them is stored but numbers.
Random inputs: 1 prompt, 13 tokens, 2 heads, keys of 5 entries (6 for `mamba3`, which
turns pairs) and values of 7.
"""

import argparse
import ast
import pathlib
import re
import subprocess
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

REPOSITORIES = {
  'fla': (
    'https://github.com/fla-org/flash-linear-attention',
    'bc3b101dcb713ddc5bd8924b66754eb68b5ccf89',
  ),
  'mamba': (
    'https://github.com/state-spaces/mamba',
    'e9594ce1c732d97440f0332fdc43170a2294dbfa',
  ),
}
_LIBRARIES = 'torch', 'numpy', 'einops', 'math', 'typing'
_B, _T, _H, _K, _V = 1, 13, 2, 5, 7


def definition(clone: str, repository: str, path: str, name: str) -> Any:
  """A function of a file at the commit, computing in float64 where it says float32."""
  commit = REPOSITORIES[repository][1]
  command = 'git', '-C', clone, 'show', f'{commit}:{path}'
  text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
  # A word alone is float32, too.
  text = re.sub(r'torch\.float(32)?\b(?!64)', 'torch.float64', text)
  text = text.replace('.float()', '.double()')
  kept: list[ast.stmt] = [
    node
    for node in ast.parse(text).body
    if isinstance(node, ast.FunctionDef)
    or (isinstance(node, ast.Import) and node.names[0].name in _LIBRARIES)
    or (isinstance(node, ast.Import) and node.names[0].name == 'torch.nn.functional')
    or (isinstance(node, ast.ImportFrom) and node.module in _LIBRARIES)
  ]
  for node in kept:
    if isinstance(node, ast.FunctionDef):
      node.decorator_list = []
  space: dict[str, Any] = {}
  exec(compile(ast.Module(kept, []), path, 'exec'), space)
  return space[name]


class Draw:
  """Random arrays, the same in each run."""

  def __init__(self, seed: int):
    self._rng = np.random.default_rng(seed)

  def normal(self, *shape: int) -> torch.Tensor:
    return torch.from_numpy(self._rng.normal(size=shape))

  def uniform(self, *shape: int) -> torch.Tensor:
    return torch.from_numpy(self._rng.uniform(size=shape))

  def keys(self, *shape: int) -> torch.Tensor:
    drawn = self.normal(*shape)
    return drawn / drawn.norm(dim=-1, keepdim=True)

  def log_decay(self, *shape: int) -> torch.Tensor:
    return -torch.nn.functional.softplus(self.normal(*shape))


def of_fla(clone: str) -> dict[str, dict[str, torch.Tensor]]:
  """Inputs and outputs by mixer."""

  def ops(path: str, name: str) -> Any:
    return definition(clone, 'fla', f'fla/ops/{path}/naive.py', name)

  rows, mixers = (_B, _T, _H), {}

  def common(seed: int) -> tuple[Draw, dict[str, torch.Tensor]]:
    draw = Draw(seed)
    inputs = {'q': draw.normal(*rows, _K), 'k': draw.keys(*rows, _K)}
    return draw, {**inputs, 'v': draw.normal(*rows, _V)}

  draw, inputs = common(0)
  inputs |= {'g': draw.log_decay(*rows, _K), 'beta': draw.uniform(*rows)}
  out, state = ops('kda', 'naive_recurrent_kda')(
    **inputs, scale=1.0, output_final_state=True
  )
  mixers['kda'] = {**inputs, 'out': out, 'state': state}

  draw, inputs = common(1)
  inputs |= {'g': draw.log_decay(*rows, _K)}
  inputs |= {'b': draw.uniform(*rows, _K), 'w': draw.uniform(*rows, _V)}
  out, state = ops('gdn2', 'naive_recurrent_gdn2')(
    **inputs, scale=1.0, output_final_state=True
  )
  mixers['gdn2'] = {**inputs, 'out': out, 'state': state}

  draw, inputs = common(2)
  inputs |= {'p': draw.normal(*rows, _K) / 2, 'g': draw.log_decay(*rows)}
  inputs |= {'beta': draw.uniform(*rows)}
  # The recurrent program reads p after the decay, the chunks before it, as the paper.
  for name, program in {
    'comba': 'naive_chunk_comba',
    'comba_after_decay': 'naive_recurrent_comba',
  }.items():
    out, state = ops('comba', program)(**inputs, scale=1.0, output_final_state=True)
    mixers[name] = {**inputs, 'out': out, 'state': state}

  draw, inputs = common(3)
  inputs |= {'alpha': draw.normal(*rows, _K) / 2, 'beta': draw.normal(*rows, _K) / 2}
  inputs |= {'gk': draw.log_decay(*rows, _K)}
  out, state = ops('generalized_delta_rule/dplr', 'dplr_recurrence')(
    **{name: tensor.transpose(1, 2) for name, tensor in inputs.items()}
  )
  # It divides queries by the root of the size of a key.
  mixers['rwkv7'] = {**inputs, 'out': out.transpose(1, 2) * _K**0.5, 'state': state}

  draw, steps = Draw(4), 3
  inputs = {'q': draw.normal(*rows, _K), 'g': draw.log_decay(*rows)}
  many = _B, _T * steps, _H
  inputs |= {'k': draw.keys(*many, _K), 'v': draw.normal(*many, _V)}
  inputs |= {'beta': 2 * draw.uniform(*many)}
  out, state = ops('gated_delta_product', 'naive_recurrent_gated_delta_product')(
    **inputs, scale=1.0, cu_seqlens=None, output_final_state=True, num_householder=steps
  )
  mixers['gated_delta_product'] = {**inputs, 'out': out, 'state': state}

  draw = Draw(5)
  inputs = {name: draw.normal(*rows, _K) for name in ('q', 'k', 'v')}
  inputs |= {'g': draw.log_decay(*rows)}
  out = ops('forgetting_attn', 'naive_forgetting_attn')(**inputs)
  mixers['fox'] = {**inputs, 'out': out}

  draw = Draw(6)
  inputs = {'q': draw.normal(*rows, _K), 'k': draw.normal(*rows, _K)}
  inputs |= {'v': draw.normal(*rows, _V), 'g': draw.log_decay(*rows)}
  inputs |= {'level_scales': draw.uniform(*rows, 5)}
  out = ops('log_linear_attn', 'naive_log_linear_attn')(**inputs)
  mixers['log_linear'] = {**inputs, 'out': out}
  mixers['titans'] = titans(ops('titans', 'titans_linear'))
  return mixers


def titans(program: Any) -> dict[str, torch.Tensor]:
  """Its gradient is that of a layer norm, with a bracket of its own."""
  draw, rows = Draw(7), (_B, _H, _T)
  inputs = {name: draw.normal(*rows, _K) for name in ('q', 'k', 'v')}
  inputs |= {name: draw.uniform(*rows, 1) for name in ('theta', 'alpha', 'eta')}
  inputs['theta'] = inputs['theta'] / 10
  inputs |= {'w': 1 + draw.normal(_H, _K) / 4, 'b': draw.normal(_H, _K) / 4}
  out, state = program(
    **inputs,
    eps=1e-6,
    chunk_size=1,
    initial_state=torch.zeros(_B, _H, _K, _K, dtype=torch.float64),
    output_final_state=True,
  )
  return {**inputs, 'out': out, 'state': state}


def of_mamba(clone: str) -> dict[str, dict[str, torch.Tensor]]:
  """Inputs and outputs of Mamba-3."""
  path = 'tests/ops/triton/test_mamba3_siso.py'
  program = definition(clone, 'mamba', path, 'mamba3_siso_step_ref')
  draw, rows, size = Draw(8), (_B, _T, _H), 6
  inputs = {
    'Q': draw.normal(*rows, size),
    'K': draw.normal(*rows, size),
    'V': draw.normal(*rows, _V),
    'ADT': draw.log_decay(_B, _H, _T),
    'DT': draw.uniform(_B, _H, _T),
    'Trap': draw.normal(_B, _H, _T),
    'Q_bias': draw.normal(_H, size),
    'K_bias': draw.normal(_H, size),
    'Angles': draw.normal(*rows, 2),  # one of the three pairs does not turn
    'D': draw.normal(_H),
  }
  out, (angles, state, _, _) = program(**inputs)
  return {'mamba3': {**inputs, 'out': out, 'angles': angles, 'state': state}}


def main() -> None:
  parser = argparse.ArgumentParser()
  for name in REPOSITORIES:
    parser.add_argument(f'--{name}', required=True)
  flags = parser.parse_args()
  mixers = of_fla(flags.fla) | of_mamba(flags.mamba)
  arrays: dict[str, Any] = {
    f'{mixer}/{name}': array.numpy()
    for mixer, tensors in mixers.items()
    for name, array in tensors.items()
  }
  assert all(array.dtype == np.float64 for array in arrays.values())
  out = pathlib.Path(__file__).with_name('golden.npz')
  np.savez_compressed(out, **arrays)
  print(f'{out}: {len(arrays)} arrays, {out.stat().st_size} bytes')


if __name__ == '__main__':
  main()
