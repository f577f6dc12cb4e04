"""Weights for which mixers are linear, and what they predict of a regression then.

Tokens `[x_i; y_i]` and `[x_q; 0]`: keys and queries are the features, and values the
labels. Then a mixer is the model `sequential`, whose curve theory knows.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.compare import assert_close
from tests.settings import general
from zoo import registry, theory
from zoo.models.sequential import SequentialLearner

D, C = 3, 5
# SiLU, norms and keys of length 1 are linear near 0, to a relative error of this order.
_SMALL = 1e-9
_RATE = 0.05  # −log of the decay of gated_delta


def _mixer(name: str) -> Any:
  """A mixer of one head whose first output is `x_q·Σ_i K_i x_i y_i` to some factor.

  What is not linear, SiLU, norms and keys of length 1, is computed near 0; gates, rates
  and strengths are constants.
  """
  mixer: Any = registry.mixers.create(name, width=D + 1, num_heads=1, rngs=nnx.Rngs(0))
  _zero(mixer)
  small = 1.0 if name == 'linear' else _SMALL
  features = small * jnp.diag(jnp.array([1.0] * D + [0.0]))
  mixer.query.kernel[...] = mixer.key.kernel[...] = features
  mixer.value.kernel[...] = small * jnp.zeros((D + 1, D + 1)).at[D, 0].set(1.0)
  mixer.out.kernel[...] = jnp.eye(D + 1)
  for convolution in mixer.convolutions.values():
    convolution.kernel[...] = convolution.kernel[...].at[-1].set(1.0)
  if mixer.norm is not None:
    mixer.norm.scale[...] = jnp.ones(D + 1)
  if mixer.gate is not None:
    mixer.gate.bias[...] = jnp.ones(D + 1)
  if name == 'gated_delta':
    mixer.rate.bias[...] = jnp.log(jnp.expm1(jnp.full(1, _RATE)))
  return mixer


def _learner(rule: str, decay: float) -> SequentialLearner:
  learner = SequentialLearner(D, C, rule, 'zero', rngs=nnx.Rngs(0))
  _zero(learner)
  learner.write[...] = jnp.full(C, 0.1)
  if rule == 'retention':
    learner.log_decay[...] = jnp.full(C, np.log(decay))
  return learner


def _zero(model: Any) -> None:
  """Sets all parameters to 0, in float64."""
  state = nnx.state(model, nnx.Param)
  nnx.update(model, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), state))


def _read(mixer: Any, prompt: Any) -> np.ndarray:
  labels = jnp.pad(prompt.y, ((0, 0), (0, 1)))[..., None]
  tokens = jnp.concatenate([prompt.features, labels], axis=-1)
  return np.asarray(mixer(tokens))[:, -1, 0]


@pytest.mark.parametrize(
  ('name', 'rule', 'decay'),
  [
    ('linear', 'linear', 1.0),
    ('retention', 'retention', 1 - 2.0**-5),
    # Their keys are at most of length 1, and so of no effect on what they erase where
    # they are linear: of the two, their write and decay remain.
    ('delta', 'linear', 1.0),
    ('gated_delta', 'retention', np.exp(-_RATE)),
  ],
)
def test_mixers_in_their_linear_case_are_sequential(float64, name, rule, decay):
  task = general(D, C, noise_std=0.4)
  learner = _learner(rule, decay)
  prompt = task.sample(jax.random.key(0), 6)
  expected, found = np.asarray(learner(prompt)), _read(_mixer(name), prompt)
  # One factor for all prompts, that of the output's weights.
  found = found * (expected @ expected) / (expected @ found)
  assert_close(found, expected, 1e-7)


def test_the_curve_of_theory_is_that_of_the_mixer(float64):
  """Retention, from the risk of the mixer's own predictions on prompts."""
  task = general(D, C, noise_std=0.4)
  learner = _learner('retention', 1 - 2.0**-5)
  mixer = _mixer('retention')
  few = task.sample(jax.random.key(0), 6)
  factor = float(np.mean(learner(few) / _read(mixer, few)))
  prompt = task.sample(jax.random.key(1), 100_000)
  losses = (factor * _read(mixer, prompt) - np.asarray(prompt.y_query)) ** 2
  error = losses.std() / np.sqrt(losses.size)
  assert error < 0.02 * losses.mean()
  curve = theory.exact_curve(learner, task)
  assert abs(losses.mean() - curve[-1]) < 4 * error
