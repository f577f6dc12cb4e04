"""Training by the negative log likelihood of observed labels."""

# Models are known by their base class, and the types of SciPy are incomplete.
# pyright: reportAttributeAccessIssue=false

import dataclasses
import functools
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from flax import nnx

import zoo
from tests.built import model_of, task_of
from tests.training.runs import lines_of, small_config
from tests.training.test_by_hand import assert_close, parameters
from zoo.config.read import read
from zoo.core.draws import (
  CURVE_STREAM,
  EVAL_STREAM,
  INIT_STREAM,
  TRAIN_STREAM,
  stream_of,
)
from zoo.measure.predictive import with_drawn_labels
from zoo.models.heads import NUM_BARS
from zoo.objectives import build_objective, inputs_of
from zoo.training.evaluation import held_out_losses
from zoo.training.sweeps import grid, sweep

_NOISE = 0.5


def _config(name='deep_set', head='gaussian', **changes):
  return small_config(
    name,
    **{
      'model__head': head,
      'model__num_layers': 1,
      'model__width': 8,
      'objective__name': 'nll',
      'objective__positions': 'every',
      'task__noise_std': _NOISE,
      'optimizer__schedule': 'constant',
      'optimizer__warmup_steps': 0,
      'optimizer__clip_norm': None,
    }
    | changes,
  )


def _by_hand(config):
  """The parameters after training by a loop, with the density written out."""
  task = task_of(config)
  model = model_of(config, nnx.Rngs(stream_of(config.seed, INIT_STREAM)))
  own = nnx.Optimizer(model, optax.adam(config.optimizer.learning_rate), wrt=nnx.Param)
  key = stream_of(config.seed, TRAIN_STREAM)
  every = config.objective.positions == 'every'

  def nll(outputs, labels):
    if config.model.head == 'gaussian':
      mean, log_variance = outputs[..., 0], outputs[..., 1]
      squares = jnp.square(labels - mean) / jnp.exp(log_variance)
      return (squares + log_variance + math.log(2 * math.pi)) / 2
    edges, log_p = model.edges[...], jax.nn.log_softmax(outputs)
    widths = jnp.diff(edges)
    scales = widths / scipy.stats.halfnorm.median()
    bar = jnp.searchsorted(edges, labels, side='right') - 1
    bar = jnp.clip(bar, 0, NUM_BARS - 1)
    density = -jnp.log(widths)[bar]
    first = jnp.log(2) + _log_normal(labels, edges[1], scales[0])
    last = jnp.log(2) + _log_normal(labels, edges[-2], scales[-1])
    density = jnp.where(bar == NUM_BARS - 1, last, density)
    density = jnp.where(bar == 0, first, density)
    log_p = jnp.take_along_axis(log_p, bar[..., None], axis=-1)[..., 0]
    return -(log_p + density)

  @nnx.jit
  def step(model, own, step):
    step_key = jax.random.fold_in(key, step)
    prompt = task.sample(step_key, config.train.batch_size)
    prompt = with_drawn_labels(task, step_key, prompt)

    def loss_of(model):
      at = slice(None) if every else slice(-1, None)
      outputs = model.body(model.embed(prompt), at)
      labels = prompt.targets if every else prompt.y_query[:, None]
      return jnp.mean(nll(outputs, labels))

    own.update(model, nnx.grad(loss_of)(model))

  with jax.default_matmul_precision('highest'):
    for i in range(config.train.num_steps):
      step(model, own, i)
  return parameters(model)


def _log_normal(y, mean, std):
  return -jnp.square((y - mean) / std) / 2 - jnp.log(std * math.sqrt(2 * math.pi))


@pytest.fixture(scope='module')
def gaussian(tmp_path_factory):
  """A run of a mean and a variance: its config, its folder and its summary."""
  workdir, config = tmp_path_factory.mktemp('run'), _config(eval__num_compared=24)
  with jax.numpy_dtype_promotion('standard'):
    zoo.train(config, workdir, compare=True)
  return config, workdir, json.loads((workdir / 'summary.json').read_text())


def test_a_run_is_the_loop_of_the_density(gaussian):
  config, workdir, _ = gaussian
  assert_close(parameters(zoo.load(workdir).model), _by_hand(config))


@pytest.mark.slow
def test_a_run_of_bars_is_the_loop_of_the_density(tmp_path):
  config = _config(head='bars', objective__positions='query')
  zoo.train(config, tmp_path)
  saved = zoo.load(tmp_path)
  assert_close(parameters(saved.model), _by_hand(config))
  edges = zoo.models.quantile_edges(task_of(config))
  # The program that makes the state may round the last digit of a label otherwise.
  np.testing.assert_allclose(saved.model.edges[...], edges, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('head', ['gaussian', 'bars'])
def test_so_are_runs_side_by_side(head, tmp_path):
  config = _config(head=head)
  rows = sweep(config, grid({'seed': [0, 1]}), tmp_path)
  assert rows is not None
  trained = zoo.load(rows[0]['workdir']).model
  assert_close(parameters(trained), _by_hand(config))


def test_a_run_reports_the_likelihood_of_held_out_labels(gaussian):
  config, workdir, summary = gaussian
  model, task = zoo.load(workdir).model, task_of(config).held_out()
  key, means = stream_of(config.eval.seed, EVAL_STREAM), []
  for batch in range(config.eval.num_batches):
    own = jax.random.fold_in(key, batch)
    prompt, labels = _drawn(task, own, config.train.batch_size)
    said = model.distribution(prompt)
    means.append(-scipy.stats.norm(said.mean, said.std).logpdf(labels).mean())
  assert summary['eval_nll'] == pytest.approx(np.mean(means), rel=1e-5)
  assert lines_of(workdir)[-1]['eval_nll'] == summary['eval_nll']
  alone = zoo.training.summary.table({**summary, 'comparison': None})
  assert 'its negative log likelihood, nats' in alone


@functools.partial(jax.jit, static_argnums=2)
def _drawn(task, key, number):
  """Prompts, and labels that are drawn for their queries."""
  prompt = task.sample(key, number)
  return prompt, with_drawn_labels(task, key, prompt).y_query


def test_a_run_compares_its_likelihood_with_that_of_the_posterior(gaussian):
  """Both are measured on the same labels of the prompts of the comparison."""
  config, workdir, summary = gaussian
  model, task = zoo.load(workdir).model, task_of(config)
  assert 'nll ± t·s.e., nats' in zoo.training.summary.table(summary)
  comparison = summary['comparison']
  with_nll = [name for name in comparison if 'nll' in comparison[name]]
  assert with_nll == ['model', 'bayes']
  key = jax.random.fold_in(stream_of(config.eval.seed, CURVE_STREAM), 0)
  prompt, labels = _drawn(task, key, 24)
  x, y = (np.asarray(array, np.float64) for array in (prompt.x, prompt.y))
  query, said = np.asarray(prompt.x_query, np.float64), model.distribution(prompt)
  precision = np.einsum('bci,bcj->bij', x, x) / _NOISE**2 + np.eye(3)[None]
  covariance = np.linalg.inv(precision)
  weights = np.einsum('bij,bcj,bc->bi', covariance, x, y) / _NOISE**2
  std = np.sqrt(_NOISE**2 + np.einsum('bi,bij,bj->b', query, covariance, query))
  mean = np.sum(weights * query, axis=1)
  for name, of_label in {
    'model': scipy.stats.norm(said.mean, said.std),
    'bayes': scipy.stats.norm(mean, std),
  }.items():
    nll = -of_label.logpdf(labels)
    assert comparison[name]['nll'] == pytest.approx(nll.mean(), rel=1e-4)
    stderr = nll.std(ddof=1) / math.sqrt(24)
    assert comparison[name]['nll_stderr'] == pytest.approx(stderr, rel=1e-3)


def test_a_model_without_a_distribution_has_no_likelihood():
  key = jax.random.key(0)
  for head in 'point', 'gaussian':
    config = _config(head=head)
    task = task_of(config)
    graph, state = nnx.split(nnx.eval_shape(lambda c=config: model_of(c, nnx.Rngs(0))))

    def losses(state, task=task, graph=graph):
      model, prompt = nnx.merge(graph, state), task.sample(key, 4)
      return held_out_losses(model, task, prompt, None, key)

    assert ('nll' in jax.eval_shape(losses, state)) == (head == 'gaussian')


@pytest.mark.slow
def test_labels_of_classes_have_the_log_loss_of_observed_labels():
  """The objective is that of `sampled` with observed labels, bit for bit."""
  fields: dict[str, Any] = {'model__num_layers': 1, 'model__width': 8}
  fields['task'] = {'name': 'markov_chain', 'num_symbols': 3, 'context_length': 4}
  config = small_config('transformer', **fields, objective__name='nll')
  observed = small_config('transformer', **fields, objective__labels='observed')
  task = task_of(config)
  model, key = model_of(config, nnx.Rngs(0)), jax.random.key(1)

  def loss(config):
    objective = build_objective(read(config), task, model)
    return jax.jit(
      lambda state: objective.loss_of_step(nnx.merge(graph, state), key, numbers)
    )(state)

  (graph, state), numbers = nnx.split(model), inputs_of(task)
  mesh = jax.make_mesh((1,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
  with jax.set_mesh(mesh):
    assert loss(config) == loss(observed)


@pytest.mark.slow
def test_edges_stay_apart_where_a_model_computes_in_bfloat16():
  """The loss is near that in float32: bfloat16 has two to three digits."""
  config = _config(head='bars', train__batch_size=64)
  task = task_of(config)
  model, key = model_of(config, nnx.Rngs(0)), jax.random.key(1)
  (graph, state), numbers = nnx.split(model), inputs_of(task)
  losses = []
  mesh = jax.make_mesh((1,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
  for dtype in 'float32', 'bfloat16':
    config.train.compute_dtype = dtype
    objective = build_objective(read(config), task, model)
    with jax.set_mesh(mesh):
      losses.append(
        jax.jit(
          lambda s, f=objective.loss_of_step: f(nnx.merge(graph, s), key, numbers)
        )(state)
      )
  assert losses[1] == pytest.approx(float(losses[0]), abs=0.02)


def _exact_nll(task, prompt):
  """½ log(2πe s²) of the posterior predictive, in float64, from the equation."""
  x, query = (np.asarray(array, np.float64) for array in (prompt.x, prompt.x_query))
  precision = np.einsum('bci,bcj->bij', x, x) / _NOISE**2 + np.eye(x.shape[-1])[None]
  spread = np.einsum('bi,bij,bj->b', query, np.linalg.inv(precision), query)
  return float(np.mean(np.log(2 * np.pi * np.e * (_NOISE**2 + spread))) / 2)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('head', ['gaussian', 'bars'])
def test_training_comes_near_the_likelihood_of_the_posterior(head, tmp_path):
  """The excess of the trained model, a mean KL divergence, is small.

  Without examples the label is N(0, |x|² + σ²), and so a model that ignores its
  examples has a mean NLL at least 0.6 nats above the posterior's, as is computed here.
  Training for 600 steps leaves less than a third of that.
  """
  config = _config(
    'deep_set',
    head,
    **{'task__num_features': 2, 'task__context_length': 8},
    **{'model__num_layers': 2, 'model__width': 64},
    **{'train__num_steps': 600, 'train__batch_size': 128, 'train__log_every': 300},
    **{'eval__every': 600, 'eval__num_batches': 32, 'checkpoint__every': 600},
    optimizer__learning_rate=2e-3,
  )
  zoo.train(config, tmp_path)
  task = task_of(config)
  summary = json.loads((tmp_path / 'summary.json').read_text())
  exact = _exact_nll(task, task.sample(jax.random.key(9), 8192))
  alone = dataclasses.replace(task, context_length=1)
  prompt = alone.sample(jax.random.key(9), 8192)
  nothing = _exact_nll(alone, prompt.prefix(0))
  assert nothing - exact > 0.6
  excess = summary['eval_nll'] - exact
  # The model cannot be better than the posterior, but for the errors of both means.
  assert -4 * summary['eval_nll_stderr'] - 0.01 < excess < 0.2
