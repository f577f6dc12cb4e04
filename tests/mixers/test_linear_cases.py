"""Weights for which mixers are linear, and what they predict of a regression then.

Tokens `[x_i; y_i]` and `[x_q; 0]`: keys and queries are the features, and values the
labels. Then a mixer is the model `sequential`, whose curve theory knows.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.compare import assert_close
from tests.compiled import predict
from tests.settings import general
from tests.weights import drawn
from zoo.core import registry
from zoo.mixers import Site
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
  mixer: Any = _zero(
    lambda: registry.mixers.create(name, site=Site(D + 1, 1), rngs=nnx.Rngs(0))
  )
  small, unit = 1.0 if name == 'linear' else _SMALL, np.eye(D + 1)
  features = small * np.diag([1.0] * D + [0.0])
  _set(mixer.query.kernel, features)
  _set(mixer.key.kernel, features)
  _set(mixer.value.kernel, small * np.outer(unit[D], unit[0]))
  _set(mixer.out.kernel, unit)
  for convolution in mixer.convolutions.values():
    kernel = np.zeros(convolution.kernel.shape)
    kernel[-1] = 1.0
    _set(convolution.kernel, kernel)
  if mixer.norm is not None:
    _set(mixer.norm.scale, np.ones(D + 1))
  if mixer.gate is not None:
    _set(mixer.gate.bias, np.ones(D + 1))
  if name == 'gated_delta':
    _set(mixer.rate.bias, np.log(np.expm1(np.full(1, _RATE))))
  return mixer


def _learner(rule: str, decay: float) -> SequentialLearner:
  learner: Any = _zero(lambda: SequentialLearner(D, C, rule, 'zero', rngs=nnx.Rngs(0)))
  _set(learner.write, np.full(C, 0.1))
  if rule == 'retention':
    _set(learner.log_decay, np.full(C, np.log(decay)))
  return learner


def _zero(build: Callable[[], nnx.Module]) -> nnx.Module:
  """A module whose parameters are all 0, in float64."""
  return drawn(build, scale=0.0)


def _set(parameter: Any, value: np.ndarray) -> None:
  parameter[...] = jnp.asarray(value)


@nnx.jit
def _read(mixer: Any, prompt: Any) -> Any:
  labels = jnp.pad(prompt.y, ((0, 0), (0, 1)))[..., None]
  tokens = jnp.concatenate([prompt.features, labels], axis=-1)
  return mixer(tokens)[:, -1, 0]


def _prompts(task: Any, seed: int, number: int) -> Any:
  sample = jax.jit(task.sample, static_argnums=1)
  return jax.device_get(sample(jax.random.key(seed), number))


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
  prompt = _prompts(task, 0, 6)
  expected = np.asarray(predict(learner, prompt))
  found = np.asarray(_read(_mixer(name), prompt))
  # One factor for all prompts, that of the output's weights.
  found = found * (expected @ expected) / (expected @ found)
  assert_close(found, expected, 1e-7)
