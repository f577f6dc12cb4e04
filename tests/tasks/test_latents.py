"""What prompts were drawn from, for probes."""

from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import softmax

import zoo
from tests.marks import FULL
from tests.tasks import host

_D, _C = 3, 4


def _linear(w, x):
  return np.einsum('btd,bd->bt', x, w)


def _clusters(means, x):
  squares = np.square(x[:, :, None] - means[:, None]).sum(axis=-1)
  return softmax(-squares / 2, axis=-1)


def _chain(matrix, x):
  return np.einsum('bts,bsk->btk', x, matrix)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(
  ('name', 'sizes', 'targets'),
  [
    ('linear_regression', {'num_features': _D, 'noise_std': 0.5}, _linear),
    pytest.param(
      *('gaussian_clusters', {'num_features': _D, 'num_classes': 2}, _clusters),
      marks=FULL,
    ),
    pytest.param('markov_chain', {'num_symbols': _D}, _chain, marks=FULL),
  ],
)
def test_targets_follow_from_the_latents_and_the_bits_do_not(name, sizes, targets):
  task: Any = zoo.create_task(name, context_length=_C, **sizes)
  prompt = jax.device_get(task.sample(jax.random.key(0), 16, latents=True))
  expected = targets(prompt.latents, host.features(prompt))
  np.testing.assert_allclose(host.targets(prompt), expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(prompt.prefix(2).latents, prompt.latents)
  without = task.sample(jax.random.key(0), 16)
  assert without.latents is None
  for part in ('x', 'y', 'x_query', 'y_query', 'context_targets'):
    np.testing.assert_array_equal(vars(without)[part], vars(prompt)[part])
