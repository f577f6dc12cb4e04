"""Each mixer against the loop that defines it, in `tests/mixers/reference`."""

import importlib
import pathlib

import jax
import numpy as np
import pytest

from tests.compare import assert_close
from tests.marks import SLOW, mostly_slow
from tests.mixers.drawn import H, N, call, parameters, tokens, warm
from zoo.core.registry import MIXERS

_FOLDER = pathlib.Path(__file__).with_name('reference')
_SHARED = {'__init__', 'parts', 'recurrence'}  # files that are no mixer
# Only those of zoo, since other tests register mixers of their own.
_NAMES = sorted(name for name in MIXERS if MIXERS[name].__module__.startswith('zoo.'))

# Options other than the defaults, such that states are small and chunks are cut short.
_OPTIONS = {
  'gated_delta_product': {'num_householder': 3},
  'gdn2': {'negative_eigenvalues': True},
  'hyena': {'horizon': 10.0},
  'log_linear': {'state_size': 4, 'num_levels': 3},
  'longhorn': {'state_size': 3},
  'mamba': {'state_size': 3},
  'mamba2': {'state_size': 4},
  'mamba3': {'state_size': 10},
  'retention': {'rotary': True},
  's4d': {'state_size': 4},
  'softmax': {'rotary': True},
  'ttt': {'mini_batch_size': 3},
}
# Quickly compared with others' numbers in `test_golden.py` and `test_blocks.py`, or a
# case of one that is compared here.
_ELSEWHERE = [
  *('comba', 'delta', 'fox', 'gated_delta_product', 'gdn2', 'kda', 'log_linear'),
  *('mamba2', 'mamba3', 'rwkv7', 'titans'),
]
# The other branches of some mixers.
_BRANCHES = [
  ('linear', {'causal': False}, N),
  ('linear', {'causal': False}, 1),
  ('relu', {'causal': False, 'rotary': True}, N),
  ('softmax', {'causal': False}, N),
  *(
    pytest.param(*values, marks=SLOW)
    for values in (
      ('gated_delta', {'negative_eigenvalues': True}, N),
      ('linear', {}, 1),
      ('mamba', {'state_size': 3, 'convolution': False}, N),
      ('retention', {}, N),
      ('ttt', {'mini_batch_size': 1}, N),
      ('ttt', {'mini_batch_size': 16}, N),
    )
  ),
]


@pytest.mark.parametrize(
  ('name', 'options', 'n'),
  [
    *mostly_slow(
      [(name, _OPTIONS.get(name, {}), N) for name in _NAMES if name not in _ELSEWHERE],
      [(name, _OPTIONS.get(name, {}), N) for name in _ELSEWHERE],
    ),
    *_BRANCHES,
  ],
)
def test_a_mixer_is_its_loop(name, options, n):
  """All weights are random, so that none is 0 or 1."""
  reference = importlib.import_module(f'tests.mixers.reference.{name}')
  with jax.enable_x64(True):
    mixer, x = warm(name, **options), tokens(n)
    p = parameters(mixer)
    expected = [reference.outputs(p, np.asarray(prompt), H, **options) for prompt in x]
    # Some thousand operations, each rounded by 1e-16, without much cancellation.
    assert_close(call(mixer, x), expected, 1e-12)


def test_each_mixer_has_a_short_loop_to_which_its_docstring_points():
  files = {path.stem: path for path in _FOLDER.glob('*.py')}
  assert sorted(files.keys() - _SHARED) == _NAMES
  for name in _NAMES:
    assert len(files[name].read_text().splitlines()) <= 40
    assert f'tests/mixers/reference/{name}.py' in (MIXERS[name].__doc__ or '')
