import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests import oracle
from tests.compare import assert_close, refuses
from tests.marks import mostly_slow

_B, _C, _D = 3, 5, 2


@pytest.fixture
def prompt():
  with jax.enable_x64(True):
    draw = np.random.default_rng(0).normal
    return zoo.Prompt(
      x=jnp.asarray(draw(size=(_B, _C, _D))),
      y=jnp.asarray(draw(size=(_B, _C))),
      x_query=jnp.asarray(draw(size=(_B, _D))),
      y_query=jnp.asarray(draw(size=_B)),
    )


def test_a_prompt_is_printed_by_the_types_and_shapes_of_its_arrays(prompt):
  whole = dataclasses.replace(prompt, latents={'w': prompt.x_query, 'kind': 'a'})
  assert repr(whole) == (
    'Prompt(x=float64[3, 5, 2], y=float64[3, 5], x_query=float64[3, 2], '
    "y_query=float64[3], latents={'kind': 'a', 'w': float64[3, 2]})"
  )
  said = []
  jax.jit(lambda prompt: said.append(repr(prompt)))(prompt.prefix(0))
  jax.tree.structure(prompt)  # JAX makes one of placeholders.
  assert said[0].startswith('Prompt(x=float')


def test_features_and_labels_are_those_of_the_examples_and_the_query(prompt):
  with jax.enable_x64(True):
    features, labels = jax.jit(lambda p: (p.features, p.labels))(prompt)
  prompt, features, labels = jax.device_get((prompt, features, labels))
  assert labels.shape == (_B, _C, 1)
  np.testing.assert_array_equal(labels[..., 0], prompt.y)
  for b in range(_B):
    np.testing.assert_array_equal(features[b], [*prompt.x[b], prompt.x_query[b]])
  classes = np.repeat(prompt.y[..., None], 3, axis=2)
  whole = dataclasses.replace(prompt, y=classes)
  np.testing.assert_array_equal(whole.labels, classes)


def test_tokens_are_the_embedding_matrix_of_eq_2_a_token_a_row(prompt):
  guess = np.asarray([0.5, -1.0, 2.0])
  with jax.enable_x64(True):
    tokens = jax.jit(zoo.Prompt.tokens)(prompt, guess)
  prompt, tokens = jax.device_get((prompt, tokens))
  assert tokens.shape == (_B, _C + 1, _D + 1)
  for b in range(_B):
    embedding = oracle.embed(prompt.x[b], prompt.y[b], prompt.x_query[b], guess[b])
    np.testing.assert_array_equal(tokens[b].T, embedding)


def test_second_moment_is_the_mean_outer_product_of_the_examples(prompt):
  with jax.enable_x64(True):
    moment = jax.jit(zoo.Prompt.second_moment)(prompt)
  prompt, moment = jax.device_get((prompt, moment))
  assert moment.shape == (_B, _D + 1, _D + 1)
  for b in range(_B):
    # A sum of five products in two orders: a few roundings apart.
    assert_close(moment[b], oracle.second_moment(prompt.x[b], prompt.y[b]), 1e-14)


def test_parts_of_prompts_of_classes():
  task = zoo.create_task('gaussian_clusters', num_features=2, context_length=3)
  prompt = jax.device_get(task.sample(jax.random.key(0), 4))
  k = prompt.y.shape[-1]
  prefix = prompt.prefix(1)
  assert (prefix.x.shape, prefix.y.shape) == ((4, 1, 2), (4, 1, k))
  np.testing.assert_array_equal(prefix.x_query, prompt.x[:, 1])
  np.testing.assert_array_equal(prefix.y_query, prompt.targets[:, 1])
  np.testing.assert_array_equal(prompt.targets[:, -1], prompt.y_query)
  assert prompt.prefix(3) is prompt
  tokens = np.asarray(jax.jit(zoo.Prompt.tokens)(prompt, np.full((4, k), 0.5, 'f')))
  examples = np.concatenate([prompt.x, prompt.y], axis=2)
  np.testing.assert_array_equal(tokens[:, :-1], examples)
  np.testing.assert_array_equal(tokens[:, -1, 2:], 0.5)
  for bad in (-1, 4):
    with refuses(f'k is {bad}; it must be from 0 to 3'):
      prompt.prefix(bad)


@pytest.mark.parametrize('dtype', mostly_slow([np.int32], [np.uint8, bool]))
def test_prompts_of_integers_predict_what_floats_do(dtype, unchecked):
  task = zoo.create_task(
    'linear_regression',
    num_features=2,
    context_length=4,
    prior_mean=0.5,
    noise_std=0.5,
  )
  draw = np.random.default_rng(0).integers
  shapes = (3, 4, 2), (3, 4), (3, 2), (3,)
  arrays: Any = [draw(0, 2, shape).astype(dtype) for shape in shapes]
  whole = zoo.Prompt(*arrays)
  floats = jax.tree.map(lambda array: array.astype('f'), whole)
  gd: Any = task.baselines()['gd']
  rule = gd.learning_rule()
  models = [zoo.create_model('yq_lsa', num_features=2, rngs=nnx.Rngs(0))]
  for predictor in (gd, task.baselines()['bayes'], rule, *models):
    expected = np.asarray(predictor(floats))
    np.testing.assert_array_equal(predictor(whole), expected, str(predictor))
  np.testing.assert_array_equal(gd.weights(whole), gd.weights(floats))


def test_models_of_numbers_refuse_prompts_of_classes(unchecked):
  task = zoo.create_task('gaussian_clusters', num_features=2, context_length=3)
  prompt = task.sample(jax.random.key(0), 4)
  for name in ('lsa', 'multi_head_lsa', 'yq_lsa', 'ltb', 'sequential'):
    sizes = {'sequential': {'context_length': 3}, 'multi_head_lsa': {'num_heads': 1}}
    arguments = {'num_features': 2, **sizes.get(name, {})}
    model = zoo.create_model(name, **arguments, rngs=nnx.Rngs(0))
    with refuses('predicts one number', 'prompt.y has shape (4, 3, ', 'num_outputs'):
      model(prompt)
