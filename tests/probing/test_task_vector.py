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
from tests.marks import SLOW
from tests.probing.models import assert_within, sample
from tests.settings import isotropic
from tests.weights import drawn
from zoo.probing import Tap, task_vectors
from zoo.tasks.base import LinearFunctions

_D, _C = 2, 4
_FUNCTIONS, _PROMPTS = 128, 3


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
class _Units(_Constants):
  """Labels w·x; the first examples are unit vectors, so that their labels are w."""

  def sample_features(self, key):
    return super().sample_features(key).at[:_D].set(jnp.eye(_D))

  def sample_function(self, key):
    return jax.random.normal(key, (_D,))

  def evaluate(self, function, x):
    return x @ function


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


def _first_labels() -> Any:
  """Knows w from the labels of the unit vectors."""

  def learn(tokens, prompt):
    return tokens.at[:, 0, _D:].add(prompt.y[:, :_D])

  return _ByHand(learn, lambda state: (state[:, :_D] * state[:, _D:]).sum(axis=1), _D)


def _assert_null(row, vectors):
  """No example has reached the state, so that there is nothing in the vector."""
  for gain in (row.set_gain, row.added_gain):
    assert gain.mean == gain.stderr == 0
  for loss in (row.added, row.added_other):
    assert loss.mean == pytest.approx(vectors.without.mean, rel=1e-6)


def test_the_state_holds_a_constant_after_the_layer_that_finds_it():
  vectors = task_vectors(_mean_label(), _Constants(), _FUNCTIONS, _PROMPTS)
  assert [row.site for row in vectors.rows] == ['layers.0.tokens', 'layers.1.tokens']
  before, after = vectors.rows
  _assert_null(before, vectors)
  # The constants are N(0, 1). The prediction from mixed labels is their mean m, with
  # the variance 1/C.
  assert_within(vectors.without, 1 + 1 / _C)
  np.testing.assert_allclose(vectors.in_context.mean, 0, atol=1e-12)
  # Set is the constant. Added is the constant and m minus its mean over prompts.
  np.testing.assert_allclose(after.set.mean, 0, atol=1e-12)
  assert_within(after.added, (1 + 1 / _PROMPTS) / _C)
  for gain in (after.set_gain, after.added_gain):
    assert_within(gain, 2.0)
  assert_within(after.set_other, 2.0)


def test_weights_are_worth_nothing_without_the_query_beside_them():
  """Setting the state replaces x_q by its mean; adding to it keeps x_q."""
  vectors = task_vectors(_first_labels(), _Units(), _FUNCTIONS, _PROMPTS)
  before, after = vectors.rows
  _assert_null(before, vectors)
  np.testing.assert_allclose(vectors.in_context.mean, 0, atol=1e-6)
  # With added, the weights are w + v − v̄, where v are those of mixed labels in this
  # prompt, and v̄ is their mean over as many others.
  assert_within(after.added, _D * (1 + 1 / _PROMPTS))
  assert_within(after.added_gain, 2 * _D)
  # With set, the loss is (w·(x̄ − x_q))² with a mean x̄ over other queries.
  assert_within(after.set, _D * (1 + 1 / _PROMPTS))


@pytest.mark.slow
def test_a_state_that_no_example_has_reached_has_no_vector_whatever_its_position():
  """The query of a transformer with positions is at the same one in all prompts."""
  task = isotropic(_D, _C)
  model = drawn(
    lambda: zoo.models.Transformer(_D, _C, num_layers=2, width=8, rngs=nnx.Rngs(0)),
    dtype='float32',
  )
  vectors = task_vectors(model, task, _FUNCTIONS, 1)
  before, after = vectors.rows
  _assert_null(before, vectors)
  assert after.added_gain.mean != 0 != after.set_gain.mean


@pytest.mark.slow
def test_losses_are_those_of_the_task_and_of_the_model():
  """A transformer's, against prompts of one function that are drawn anew."""
  task = isotropic(_D, _C, prior_mean=1.0, prior_covariance=np.zeros((_D, _D)))
  model = built(
    lambda: zoo.models.Transformer(
      _D, _C, num_layers=1, width=8, feed_forward='none', rngs=nnx.Rngs(0)
    )
  )
  vectors = task_vectors(model, task, 128, 4)
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
    pytest.param(
      *('looped', isotropic(_D, _C), "calls 'layers.0.tokens' in a loop"), marks=SLOW
    ),
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
