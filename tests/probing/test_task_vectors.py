"""Task vectors: of models by hand, in which it is known where the function is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, struct

import zoo
from tests.compare import refuses
from tests.compiled import built, predict
from tests.probing.models import sample
from tests.settings import isotropic
from tests.weights import drawn
from zoo.probing import Tap, task_vectors
from zoo.tasks.base import LinearFunctions

_D, _C = 2, 4
_FUNCTIONS, _PROMPTS = 5, 6


@struct.dataclass(eq=False, repr=False)
class _Constants(LinearFunctions):
  """Labels that are the same for all features of a prompt."""

  num_features: int = struct.field(pytree_node=False, default=_D)
  context_length: int = struct.field(pytree_node=False, default=_C)

  def sample_function(self, key):
    return jax.random.normal(key, ())

  def evaluate(self, function, x):
    return jnp.full(len(x), function)


@struct.dataclass(eq=False, repr=False)
class _OwnDraws(_Constants):
  """The same with prompts that are drawn in another way."""

  def sample_one(self, key):
    return super().sample_one(key)


class _Step(nnx.Module):
  """Adds what a function returns to the query's token, which is the only one."""

  def __init__(self, change):
    self.tokens_tap, self.change = Tap(), change

  def __call__(self, tokens, prompt):
    return self.change(self.tokens_tap(tokens), prompt)


class _ByHand(nnx.Module):
  """The query's features, and then what was learned of its function."""

  def __init__(self, learn, read, size):
    self.read, self.size = read, size
    self.layers = nnx.List([_Step(learn), _Step(lambda tokens, prompt: tokens)])

  def __call__(self, prompt):
    learned = jnp.zeros((len(prompt.x), self.size))
    tokens = jnp.concatenate([prompt.x_query, learned], axis=1)[:, None]
    for layer in self.layers:
      tokens = layer(tokens, prompt)
    return self.read(tokens[:, 0])


def _mean_label() -> Any:
  def learn(tokens, prompt):
    mean = prompt.y.sum(axis=1) / max(prompt.y.shape[1], 1)
    return tokens.at[:, 0, _D].add(mean)

  return _ByHand(learn, lambda state: state[:, _D], 1)


def _least_squares() -> Any:
  def learn(tokens, prompt):
    if not prompt.y.shape[1]:
      return tokens
    w = jnp.einsum('bdc,bc->bd', jnp.linalg.pinv(prompt.x), prompt.y)
    return tokens.at[:, 0, _D:].add(w)

  return _ByHand(learn, lambda state: (state[:, :_D] * state[:, _D:]).sum(axis=1), _D)


def _losses(rows, kind):
  return [getattr(row, kind).mean for row in rows]


def test_the_state_holds_a_constant_after_the_layer_that_finds_it():
  vectors = task_vectors(_mean_label(), _Constants(), _FUNCTIONS, _PROMPTS)
  assert [row.site for row in vectors.rows] == ['layers.0.tokens', 'layers.1.tokens']
  # Without examples the prediction is 0, and before the first layer nothing is known.
  without = vectors.without.mean
  assert without > 0.1
  np.testing.assert_allclose(vectors.in_context.mean, 0, atol=1e-12)
  for kind in 'set', 'added':
    np.testing.assert_allclose(_losses(vectors.rows, kind), [without, 0], atol=1e-6)
  for kind in 'set_other', 'added_other':
    before, after = _losses(vectors.rows, kind)
    np.testing.assert_allclose(before, without, rtol=1e-5)
    assert after > 0.1
  assert vectors.rows[1].set_other.stderr > 0


def test_weights_are_worth_nothing_without_the_query_beside_them():
  """Setting the state replaces x_q by its mean; adding to it keeps x_q."""
  task = isotropic(_D, _C)
  vectors = task_vectors(_least_squares(), task, _FUNCTIONS, _PROMPTS)
  without = vectors.without.mean
  np.testing.assert_allclose(vectors.in_context.mean, 0, atol=1e-6)
  np.testing.assert_allclose(_losses(vectors.rows, 'added'), [without, 0], atol=1e-5)
  before, after = _losses(vectors.rows, 'set')
  np.testing.assert_allclose(before, without, rtol=1e-5)
  # w·(x̄ − x_q), with a mean x̄ over six queries.
  assert 0.3 * without < after < 3 * without
  assert vectors.rows[1].added_other.mean > without


@pytest.mark.slow
def test_losses_are_those_of_the_task_and_of_the_model():
  """A transformer's, against prompts of one function that are drawn anew."""
  task = isotropic(_D, _C, prior_mean=1.0, prior_covariance=np.zeros((_D, _D)))
  model = built(
    lambda: zoo.models.Transformer(
      _D, _C, num_layers=1, width=8, feed_forward='none', rngs=nnx.Rngs(0)
    )
  )
  vectors = task_vectors(model, task, 8, 64)
  assert [row.site for row in vectors.rows] == ['layers.0.tokens']
  prompt = sample(task, jax.random.key(0), 512)
  losses = np.square(np.asarray(predict(model, prompt)) - prompt.y_query)
  error = np.hypot(losses.std() / np.sqrt(512), vectors.in_context.stderr)
  assert abs(losses.mean() - vectors.in_context.mean) < 4 * error


@pytest.mark.parametrize(
  ('model', 'task', 'said'),
  [
    (_mean_label(), _OwnDraws(), '_OwnDraws has a sample_one of its own'),
    (_mean_label(), 'markov_chain', 'task vectors need prompts that share a function'),
    ('yq_lsa', isotropic(_D, _C), 'YqLSA has no sites that end in .tokens'),
    ('looped', isotropic(_D, _C), "calls 'layers.0.tokens' in a loop"),
  ],
)
def test_what_has_no_task_vectors_is_refused(model, task, said):
  if model == 'yq_lsa':
    model = drawn(lambda: zoo.models.YqLSA(_D, rngs=nnx.Rngs(0)), dtype='float32')
  if model == 'looped':
    model = drawn(
      lambda: zoo.models.Transformer(
        _D, _C, num_layers=1, width=8, num_loops=2, rngs=nnx.Rngs(0)
      ),
      dtype='float32',
    )
  if isinstance(task, str):
    task = zoo.create_task(task)
  with refuses(said):
    task_vectors(model, task, _FUNCTIONS, _PROMPTS)
