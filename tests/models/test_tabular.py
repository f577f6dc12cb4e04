"""The transformer of rows: what it reads, what it predicts, and its objective."""

# The kind of a distribution follows from the labels.
# pyright: reportAttributeAccessIssue=false

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special, stats

import configs
import zoo
from tests.compare import refuses
from tests.compiled import built
from tests.marks import mostly_full
from zoo.config.read import read
from zoo.core.distributions import Bars, Classes, NumberOrClass
from zoo.models import Tabular
from zoo.objectives import Rows

_CLASSES = 4
_KINDS = 'numbers', 'classes'


@functools.cache
def _model(**changes) -> Tabular:
  sizes = {'num_features': 5, 'num_outputs': 1 + _CLASSES, 'num_classes': _CLASSES}
  sizes |= {'num_layers': 1, 'num_loops': 2, 'num_heads': 2, 'width': 8, 'num_bars': 6}
  return built(
    lambda: zoo.create_model('tabular', **(sizes | changes), rngs=nnx.Rngs(0))
  )


@nnx.jit
def _says(model, prompt):
  """The prediction, the distribution, and the log density of the query's label."""
  label = model.distribution(prompt)
  return model(prompt), label, label.log_prob(prompt.y_query)


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
  _, label, _ = _says(model, prompt)
  for i in range(2):
    arrays = (np.asarray(array)[i] for array in (prompt.x, prompt.y, prompt.x_query))
    _, bars, mean, std = _by_hand(model, *arrays)
    np.testing.assert_allclose(label.logits[i], bars, rtol=1e-4, atol=1e-4)
    shares = np.array([0.5, *range(1, 6), 5.5]) / 6
    edges = stats.t.ppf(shares, 5) / math.sqrt(5 / 3)  # the variance is 5 / (5 − 2)
    np.testing.assert_allclose(label.edges[i], mean + std * edges, rtol=1e-5, atol=1e-4)
  prompt = _table(rng, kind='classes', missing=missing)
  logits, *_ = _says(model, prompt)
  for i in range(2):
    arrays = (np.asarray(array)[i] for array in (prompt.x, prompt.y, prompt.x_query))
    classes, *_ = _by_hand(model, *arrays)
    np.testing.assert_allclose(logits[i], classes[:3], rtol=1e-4, atol=1e-4)


def test_neither_order_nor_units_nor_padding_matter():
  rng, model = np.random.default_rng(1), _model()
  prompt = _table(rng, c=9)
  expected, *_ = _says(model, prompt)
  order = rng.permutation(9)
  moved = dataclasses.replace(prompt, x=prompt.x[:, order], y=prompt.y[:, order])
  np.testing.assert_allclose(_says(model, moved)[0], expected, rtol=1e-4)
  scale, shift = np.array([1e-3, 1, 1e3], 'f'), np.array([1, -2, 30], 'f')
  scaled = dataclasses.replace(
    prompt,
    x=jnp.asarray(np.asarray(prompt.x) * scale + shift),
    x_query=jnp.asarray(np.asarray(prompt.x_query) * scale + shift),
    y=jnp.asarray(100 * np.asarray(prompt.y) - 7),
  )
  np.testing.assert_allclose(_says(model, scaled)[0], 100 * expected - 7, rtol=1e-3)
  padded = dataclasses.replace(
    prompt,
    x=jnp.asarray(np.pad(prompt.x, ((0, 0), (0, 0), (0, 1)), constant_values=4)),
    # A column that is constant in the context says nothing, whatever the query has.
    x_query=jnp.asarray(np.pad(prompt.x_query, ((0, 0), (0, 1)), constant_values=9)),
  )
  np.testing.assert_allclose(_says(model, padded)[0], expected, rtol=1e-5)


@pytest.mark.parametrize('kind', mostly_full(['numbers'], ['classes']))
def test_many_queries_take_one_pass_and_do_not_see_each_other(kind):
  rng, model = np.random.default_rng(2), _model()
  prompt = _table(rng, kind=kind)
  queries = jnp.asarray(3 + 10 * rng.standard_normal((2, 4, 3)), jnp.float32)

  @nnx.jit
  def each(model, x, y, queries):
    found = model.distribution_of_rows(x, y, queries)
    return model.predict_rows(x, y, queries), found.logits

  together, logits = jax.device_get(each(model, prompt.x, prompt.y, queries))
  for i in range(4):
    alone = dataclasses.replace(prompt, x_query=jnp.asarray(np.asarray(queries)[:, i]))
    expected, label, _ = _says(model, alone)
    np.testing.assert_allclose(together[:, i], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(logits[:, i], label.logits, rtol=1e-4, atol=1e-5)


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
    found, label, found_log_p = _says(model, both)
    expected, alone, log_p = _says(model, prompt)
    found = np.asarray(found)
    at = found[:, 0] if kind == 'numbers' else found[:, 1:4]
    np.testing.assert_allclose(at, expected, rtol=1e-5)
    assert isinstance(label, NumberOrClass)
    if isinstance(alone, Classes):  # the fourth class may be the label, too
      log_p = (special.log_softmax(found[:, 1:], axis=1) * whole['y_query'][:, 1:]).sum(
        1
      )
    np.testing.assert_allclose(found_log_p, log_p, rtol=1e-5)


def test_the_objective_is_the_mean_over_rows_behind_the_context():
  """Against the equations for each query, whose context is cut by hand."""
  rng, model, key = np.random.default_rng(8), _model(), jax.random.key(5)
  numbers, classes = (_table(rng, c=33, kind=kind, b=1) for kind in _KINDS)
  x = np.concatenate([prompt.features for prompt in (numbers, classes)])
  y = np.zeros((2, 34, 1 + _CLASSES), 'f')
  y[0, :, 0], y[1, :, 1:4] = numbers.targets[0], classes.targets[0]
  prompt = zoo.Prompt(*map(jnp.asarray, (x[:, :-1], y[:, :-1], x[:, -1], y[:, -1])))
  task = zoo.create_task('tabular', num_features=3, num_classes=_CLASSES)
  objective = Rows(read(configs.get_config('tabular')), task, model)

  @nnx.jit
  def run(model, prompt):
    places = jax.random.randint(key, (2,), 2, 30)  # a sixteenth, to seven eighths
    losses = model.losses_of_rows(prompt, places, 29)
    return places, losses, objective.losses(model, prompt, key)

  places, found, losses = jax.device_get(run(model, prompt))
  for i, place in enumerate(places):
    shown = y[0, :place, 0] if i == 0 else y[1, :place, 1:]
    outputs = [_by_hand(model, x[i, :place], shown, x[i, t]) for t in (place, 33)]
    logits, bars, means, stds = map(np.array, zip(*outputs, strict=True))
    if i == 0:
      edges = means[:, None] + stds[:, None] * np.asarray(model.edges[...])
      label = Bars(jnp.asarray(bars, 'f'), jnp.asarray(edges, 'f'))
      log_p = jax.jit(label.log_prob)(y[0, [place, 33], 0])
    else:
      log_p = (special.log_softmax(logits, axis=1) * y[1, [place, 33], 1:]).sum(axis=1)
    at = found[i, [place, 33]]
    np.testing.assert_allclose(at, -np.asarray(log_p), rtol=1e-4, atol=1e-4)
    assert losses[i] == pytest.approx(found[i, place:].mean(), rel=1e-5)


def test_its_layers_may_have_no_network():
  bare: Any = {'feed_forward': 'none', 'norm': 'none'}
  model = nnx.eval_shape(lambda: Tabular(3, num_layers=1, **bare, rngs=nnx.Rngs(0)))
  assert model.layers[0].feed_forward is None


def test_outliers_are_clipped():
  model, prompt = _model(), _table(np.random.default_rng(7))
  far, farther = (
    dataclasses.replace(prompt, x_query=jnp.full_like(prompt.x_query, value))
    for value in (1e3, 1e6)
  )
  np.testing.assert_array_equal(_says(model, far)[0], _says(model, farther)[0])


def test_what_is_too_much_is_refused_in_one_line():
  rng, model = np.random.default_rng(4), _model()
  with refuses('the model is for 5 features; the prompt has 6'):
    jax.eval_shape(model, _table(rng, d=6))
  prompt = _table(rng)
  six = dataclasses.replace(prompt, y=np.zeros((2, 9, 6)), y_query=np.zeros((2, 6)))
  with refuses('has 6 classes; the model takes at most 4'):
    jax.eval_shape(model, six)
  with refuses('has 1,025 examples; the model takes at most 1,024'):
    jax.eval_shape(model, _table(rng, c=1025, b=1))
  task = zoo.create_task('linear_regression', num_features=3, context_length=9)
  other = nnx.eval_shape(
    lambda: zoo.create_model('lsa', num_features=3, rngs=nnx.Rngs(0))
  )
  config = read(configs.get_config('tabular'))
  with refuses("objective.name is 'rows', and LSA has no losses_of_rows"):
    Rows(config, task, other)
  classes = zoo.create_task('tabular', num_features=5, num_classes=5, kind='classes')
  with refuses('config.task has 5 classes; config.model.num_classes is 4'):
    Rows(config, classes, model)
  with refuses('num_outputs is 6'):
    _model(num_outputs=6)


def test_without_examples_or_with_equal_ones_predictions_are_finite():
  model, rng = _model(), np.random.default_rng(5)
  assert np.isfinite(_says(model, _table(rng, c=0))[0]).all()
  prompt = _table(rng)
  equal = dataclasses.replace(
    prompt, x=np.full_like(prompt.x, 0.1), y=np.full_like(prompt.y, 0.1)
  )
  assert np.isfinite(_says(model, equal)[0]).all()
  unknown = dataclasses.replace(prompt, x=np.full_like(prompt.x, np.nan))
  assert np.isfinite(_says(model, unknown)[0]).all()


@pytest.mark.slow
@pytest.mark.full
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
