"""The Jacobian lens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.settings import isotropic
from zoo.probing import Tap, jacobian_lens

_D, _C = 2, 4


class LinearLayers(nnx.Module):
  """Tokens (x, mean y of the examples) and layers h → h + A_l h, read in one entry."""

  def __init__(self, maps):
    self.maps = nnx.Param(jnp.asarray(maps, 'float32'))
    self.layers = nnx.List([nnx.Module() for _ in maps])
    for layer in self.layers:
      layer.tokens_tap = Tap(axes='b n w', kind='stream')  # pyright: ignore

  def layer_tokens(self, prompt):
    mean = jnp.broadcast_to(
      jnp.mean(prompt.y, axis=1)[:, None], prompt.features.shape[:2]
    )
    states = [jnp.concatenate([prompt.features, mean[..., None]], axis=2)]
    for layer, matrix in zip(self.layers, self.maps[...], strict=True):
      tokens = layer.tokens_tap(states[-1])  # pyright: ignore
      states.append(tokens + tokens @ matrix.T)
    return states

  def read(self, tokens, prompt):
    return tokens[..., 0]

  def __call__(self, prompt):
    return self.read(self.layer_tokens(prompt)[-1], prompt)[:, -1]


def test_of_a_linear_model_it_is_the_product_of_the_maps():
  maps = np.random.default_rng(0).normal(size=(3, _D + 1, _D + 1)) / 2
  found = jacobian_lens(LinearLayers(maps), isotropic(_D, _C), 64)
  eye = np.eye(_D + 1)
  expected = [
    (eye + maps[2]) @ (eye + maps[1]) @ (eye + maps[0]),
    (eye + maps[2]) @ (eye + maps[1]),
    eye + maps[2],
    eye,
  ]
  np.testing.assert_allclose(found.jacobians, expected, atol=1e-6 * np.max(expected))
  # The later layers are linear, so that every layer says what the last one says.
  for row in found.rows:
    assert row.jacobian.mean == pytest.approx(found.rows[-1].logit.mean, rel=1e-5)
  assert found.rows[0].logit.mean != pytest.approx(found.rows[-1].logit.mean, rel=0.1)


@pytest.mark.slow
def test_of_a_transformer_it_is_the_mean_of_central_differences():
  task = isotropic(_D, _C)
  model = zoo.models.Transformer(
    _D, _C, num_layers=2, num_heads=1, width=4, rngs=nnx.Rngs(0)
  )
  found = jacobian_lens(model, task, 2).jacobians
  prompt = task.held_out().sample(_key(), 4)
  averaged = jax.tree.map(lambda array: array[2:], prompt)

  def last(entry, by):
    add = np.zeros(4, 'float32')
    add[entry] = by

    def move(tokens):
      return tokens.at[:, -1].add(jnp.asarray(add, tokens.dtype))

    copy = zoo.probing.edited(model, {'layers.1.tokens': move})
    return np.mean(np.asarray(copy.layer_tokens(averaged)[-1][:, -1], float), axis=0)

  by = 2.0**-6  # The cube of the step and the rounding of float32 are about alike.
  columns = [(last(i, by) - last(i, -by)) / (2 * by) for i in range(4)]
  np.testing.assert_allclose(found[1], np.stack(columns, axis=1), atol=2e-3)
  np.testing.assert_array_equal(found[2], np.eye(4))


def _key():
  """The key of the first batch of prompts of the seed 0."""
  from zoo.core.draws import CURVE_STREAM, stream_of

  return jax.random.fold_in(stream_of(0, CURVE_STREAM), 0)


def test_a_model_that_ignores_its_context_is_read_as_its_query_alone():
  task = isotropic(_D, _C)
  model = LinearLayers(np.zeros((1, _D + 1, _D + 1)))
  found = jacobian_lens(model, task, 256)
  prompt = task.held_out().sample(_key(), 256)
  errors = np.asarray(prompt.x_query)[:, 0] - np.asarray(prompt.y_query)
  expected = np.mean(errors.astype(float) ** 2)
  assert found.rows[0].jacobian.mean == pytest.approx(expected, rel=1e-5)
  assert found.rows[0].jacobian == found.rows[0].logit


def test_models_without_a_site_for_each_layer_are_refused():
  task = isotropic(_D, _C)
  looped = zoo.models.Transformer(
    _D, _C, num_layers=1, num_loops=2, width=8, rngs=nnx.Rngs(0)
  )
  with refuses('Transformer has 1 sites of its stream', 'num_loops=1'):
    jacobian_lens(looped, task, 2)
  with refuses('has no layers to read'):
    jacobian_lens(zoo.models.DeepSet(_D, rngs=nnx.Rngs(0)), task, 2)
