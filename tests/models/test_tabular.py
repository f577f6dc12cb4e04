"""The transformer of rows: what it reads, what it predicts, and its objective."""

# The kind of a distribution follows from the labels.
# pyright: reportAttributeAccessIssue=false

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special, stats

import configs
import zoo
from tests.compare import refuses
from zoo.core.distributions import Classes, NumberOrClass
from zoo.models import Tabular
from zoo.objectives import Rows

_CLASSES = 4


def _model(**changes) -> Tabular:
  sizes = {'num_features': 5, 'num_outputs': 1 + _CLASSES, 'num_classes': _CLASSES}
  sizes |= {'num_layers': 1, 'num_loops': 2, 'num_heads': 2, 'width': 8, 'num_bars': 6}
  model = zoo.create_model('tabular', **(sizes | changes), rngs=nnx.Rngs(0))
  assert isinstance(model, Tabular)
  return model


def _table(rng, c=9, d=3, kind='numbers', b=2, missing=False):
  """Prompts with rows that vary, in odd units."""
  x = 3 + 10 * rng.standard_normal((b, c + 1, d))
  if missing:
    x[rng.random(x.shape) < 0.2] = np.nan
  if kind == 'numbers':
    y = -5 + 7 * rng.standard_normal((b, c + 1))
  else:
    y = np.eye(3)[rng.integers(3, size=(b, c + 1))]
  x, y = x.astype(np.float32), y.astype(np.float32)
  return zoo.Prompt(
    x=jnp.asarray(x[:, :-1]),
    y=jnp.asarray(y[:, :-1]),
    x_query=jnp.asarray(x[:, -1]),
    y_query=jnp.asarray(y[:, -1]),
  )


def _weights(layer) -> tuple[np.ndarray, np.ndarray]:
  kernel = np.asarray(layer.kernel[...], np.float64)
  bias = layer.bias
  return kernel, np.zeros(kernel.shape[1]) if bias is None else np.asarray(bias[...])


def _rms(norm, z):
  scale = np.asarray(norm.scale[...], np.float64)
  return scale * z / np.sqrt(np.mean(z * z) + norm.epsilon)


def _by_hand(model, x, y, x_query):
  """The outputs of one query in NumPy and float64, a head and a row at a time."""
  x = np.concatenate([x, x_query[None]]).astype(np.float64)
  c, d = len(x) - 1, x.shape[1]
  inputs = np.zeros((c + 1, 2 * model.num_features))
  varying = [j for j in range(d) if np.nanstd(x[:c, j]) > 0]
  factor = math.sqrt(model.num_features / len(varying))
  for j in varying:
    mean, std = np.nanmean(x[:c, j]), np.nanstd(x[:c, j])
    column = np.clip((x[:, j] - mean) / std, -5, 5) * factor
    inputs[:, j] = np.where(np.isnan(column), 0, column)
    inputs[:, model.num_features + j] = np.isnan(column)
  shown = np.zeros((c + 1, 2 + model.num_classes))
  shown[:c, -1] = 1
  mean, std = 0.0, 1.0
  if y.ndim == 1:
    mean, std = y.mean(dtype=np.float64), y.std(dtype=np.float64)
    shown[:c, 0] = (y - mean) / std
  else:
    shown[:c, 1 : 1 + y.shape[1]] = y
  kernel, bias = _weights(model.read_in)
  of_labels, bias_of_labels = _weights(model.read_labels)
  z = inputs @ kernel + bias + shown @ of_labels + bias_of_labels
  for _ in range(model.num_loops):
    for layer in model.layers:
      normed = np.stack([_rms(layer.norm_1, row) for row in z])
      mixer, mixed = layer.mixer, np.zeros_like(z)
      size = z.shape[1] // mixer.num_heads
      parts = {}
      for name in ('query', 'key', 'value'):
        kernel, bias = _weights(getattr(mixer, name))
        parts[name] = normed @ kernel + bias
      for h in range(mixer.num_heads):
        at = slice(h * size, (h + 1) * size)
        for t in range(c + 1):
          scores = parts['key'][:c, at] @ parts['query'][t, at] / math.sqrt(size)
          mixed[t, at] = special.softmax(scores) @ parts['value'][:c, at]
      kernel, bias = _weights(mixer.out)
      z = z + mixed @ kernel + bias
      normed = np.stack([_rms(layer.norm_2, row) for row in z])
      up, bias = _weights(layer.feed_forward.up)
      hidden = normed @ up + bias
      # jax.nn.gelu is the approximation by tanh.
      inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
      hidden = hidden * (1 + np.tanh(inner)) / 2
      out, bias = _weights(layer.feed_forward.out)
      z = z + hidden @ out + bias
  kernel, bias = _weights(model.read_out)
  outputs = _rms(model.norm, z[-1]) @ kernel + bias
  return outputs[: model.num_classes], outputs[model.num_classes :], mean, std


@pytest.mark.parametrize('missing', [False, True])
def test_the_model_is_what_its_docstring_says(missing):
  """Against loops in float64; float32 keeps six digits over a few layers."""
  rng, model = np.random.default_rng(0), _model()
  prompt = _table(rng, missing=missing)
  label = model.distribution(prompt)
  for i in range(2):
    arrays = (np.asarray(array)[i] for array in (prompt.x, prompt.y, prompt.x_query))
    _, bars, mean, std = _by_hand(model, *arrays)
    np.testing.assert_allclose(label.logits[i], bars, rtol=1e-4, atol=1e-4)
    shares = np.array([0.5, *range(1, 6), 5.5]) / 6
    edges = stats.t.ppf(shares, 5) / math.sqrt(5 / 3)  # the variance is 5 / (5 − 2)
    np.testing.assert_allclose(label.edges[i], mean + std * edges, rtol=1e-5, atol=1e-4)
  prompt = _table(rng, kind='classes', missing=missing)
  logits = model(prompt)
  for i in range(2):
    arrays = (np.asarray(array)[i] for array in (prompt.x, prompt.y, prompt.x_query))
    classes, *_ = _by_hand(model, *arrays)
    np.testing.assert_allclose(logits[i], classes[:3], rtol=1e-4, atol=1e-4)


def test_neither_order_nor_units_nor_padding_matter():
  rng, model = np.random.default_rng(1), _model()
  prompt = _table(rng, c=12)
  expected = model(prompt)
  order = rng.permutation(12)
  moved = dataclasses.replace(prompt, x=prompt.x[:, order], y=prompt.y[:, order])
  np.testing.assert_allclose(model(moved), expected, rtol=1e-4)
  scale, shift = jnp.array([1e-3, 1.0, 1e3]), jnp.array([1.0, -2.0, 30.0])
  scaled = dataclasses.replace(
    prompt,
    x=prompt.x * scale[None, None] + shift[None, None],
    x_query=prompt.x_query * scale[None] + shift[None],
    y=100 * prompt.y - 7,
  )
  np.testing.assert_allclose(model(scaled), 100 * expected - 7, rtol=1e-3)
  constant = jnp.full((2, 12, 1), 4.0)
  padded = dataclasses.replace(
    prompt,
    x=jnp.concatenate([prompt.x, constant], axis=2),
    # A column that is constant in the context says nothing, whatever the query has.
    x_query=jnp.concatenate([prompt.x_query, jnp.full((2, 1), 9.0)], axis=1),
  )
  np.testing.assert_allclose(model(padded), expected, rtol=1e-5)


@pytest.mark.parametrize('kind', ['numbers', 'classes'])
def test_many_queries_take_one_pass_and_do_not_see_each_other(kind):
  rng, model = np.random.default_rng(2), _model()
  prompt = _table(rng, kind=kind)
  queries = jnp.asarray(3 + 10 * rng.standard_normal((2, 4, 3)), jnp.float32)
  together = model.predict_rows(prompt.x, prompt.y, queries)
  label = model.distribution_of_rows(prompt.x, prompt.y, queries)
  for i in range(4):
    alone = dataclasses.replace(prompt, x_query=queries[:, i])
    np.testing.assert_allclose(together[:, i], model(alone), rtol=1e-4, atol=1e-5)
    of_query = model.distribution(alone)
    np.testing.assert_allclose(
      label.logits[:, i], of_query.logits, rtol=1e-4, atol=1e-5
    )


def test_labels_of_both_kinds_are_read_as_those_of_one():
  """A vector with a number and a class of 0 is a number; and the other way round."""
  rng, model = np.random.default_rng(3), _model()
  for kind in ('numbers', 'classes'):
    prompt = _table(rng, kind=kind)
    whole = {}
    for name in ('y', 'y_query'):
      y = np.asarray(getattr(prompt, name))
      if kind == 'numbers':
        y = np.concatenate([y[..., None], np.zeros((*y.shape, _CLASSES))], axis=-1)
      else:
        y = np.concatenate(
          [np.zeros((*y.shape[:-1], 1)), y, np.zeros((*y.shape[:-1], 1))], axis=-1
        )
      whole[name] = jnp.asarray(y, jnp.float32)
    both = dataclasses.replace(prompt, **whole)
    found, expected = model(both), model(prompt)
    at = found[:, 0] if kind == 'numbers' else found[:, 1:4]
    np.testing.assert_allclose(at, expected, rtol=1e-5)
    label = model.distribution(both)
    assert isinstance(label, NumberOrClass)
    alone = model.distribution(prompt)
    log_p = alone.log_prob(prompt.y_query)
    if isinstance(alone, Classes):  # the fourth class may be the label, too
      log_p = label.classes.log_prob(both.y_query[:, 1:])
    np.testing.assert_allclose(label.log_prob(both.y_query), log_p, rtol=1e-5)


def test_the_objective_is_the_mean_over_rows_behind_the_context():
  """Against one prompt for each query, whose context is cut by hand."""
  task = zoo.create_task(
    'tabular', num_features=4, context_length=33, num_classes=_CLASSES
  )
  model, prompt = _model(num_features=4), task.sample(jax.random.key(0), 2)
  key = jax.random.key(5)
  losses = Rows(configs.get_config('tabular'), task, model).losses(model, prompt, key)
  places = jax.random.randint(key, (2,), 2, 30)  # a sixteenth, to seven eighths
  x, y = np.asarray(prompt.features), np.asarray(prompt.targets)
  for i, place in enumerate(np.asarray(places)):
    found = []
    for t in (place, 33):
      one = zoo.Prompt(
        *map(jnp.asarray, (x[i, None, :place], y[i, None, :place])),
        *map(jnp.asarray, (x[i, None, t], y[i, None, t])),
      )
      found.append(-float(model.distribution(one).log_prob(one.y_query)[0]))
    at = np.asarray(model.losses_of_rows(prompt, places, 29)[i])
    np.testing.assert_allclose(at[np.array([place, 33])], found, rtol=1e-4, atol=1e-5)
    assert float(losses[i]) == pytest.approx(float(at[place:].mean()), rel=1e-5)


def test_its_layers_may_have_no_network():
  model = Tabular(
    3,
    num_layers=1,
    num_heads=2,
    width=8,
    feed_forward='none',
    norm='none',
    rngs=nnx.Rngs(0),
  )
  assert model.layers[0].feed_forward is None


def test_outliers_are_clipped():
  model, prompt = _model(), _table(np.random.default_rng(7))
  far, farther = (
    dataclasses.replace(prompt, x_query=jnp.full_like(prompt.x_query, value))
    for value in (1e3, 1e6)
  )
  np.testing.assert_array_equal(model(far), model(farther))


def test_what_is_too_much_is_refused_in_one_line():
  rng, model = np.random.default_rng(4), _model()
  with refuses('the model is for 5 features; the prompt has 6'):
    model(_table(rng, d=6))
  prompt = _table(rng)
  with refuses('has 6 classes; the model takes at most 4'):
    model(
      dataclasses.replace(prompt, y=jnp.zeros((2, 9, 6)), y_query=jnp.zeros((2, 6)))
    )
  with refuses('has 1,025 examples; the model takes at most 1,024'):
    jax.eval_shape(model, _table(rng, c=1025, b=1))
  task = zoo.create_task('linear_regression', num_features=2, context_length=4)
  other = zoo.create_model('lsa', num_features=2, rngs=nnx.Rngs(0))
  config = configs.get_config('tabular')
  with refuses("objective.name is 'rows', and LSA has no losses_of_rows"):
    Rows(config, task, other)
  classes = zoo.create_task('tabular', num_features=5, num_classes=5, kind='classes')
  with refuses('config.task has 5 classes; config.model.num_classes is 4'):
    Rows(config, classes, model)
  with refuses('num_outputs is 6'):
    _model(num_outputs=6)


def test_without_examples_or_with_equal_ones_predictions_are_finite():
  model, rng = _model(), np.random.default_rng(5)
  for c in (0, 1):
    assert jnp.isfinite(model(_table(rng, c=c))).all()
  prompt = _table(rng)
  equal = dataclasses.replace(
    prompt, x=jnp.full_like(prompt.x, 0.1), y=jnp.full_like(prompt.y, 0.1)
  )
  label = model.distribution(equal)
  assert jnp.isfinite(label.mean).all()
  unknown = dataclasses.replace(prompt, x=jnp.full_like(prompt.x, jnp.nan))
  assert jnp.isfinite(model(unknown)).all()


def test_instruments_find_the_sites_of_its_layers():
  model, prompt = _model(), _table(np.random.default_rng(6))
  values = zoo.probing.capture(model, prompt)
  assert {
    'embed',
    'layers.0.mixer.pattern',
    'final.stream',
    'read_out',
  } <= values.keys()
  states = model.layer_tokens(prompt)
  assert len(states) == 1 + 2  # one layer, twice
  np.testing.assert_allclose(
    model.read(states[-1], prompt)[:, -1], model(prompt), rtol=1e-4
  )
