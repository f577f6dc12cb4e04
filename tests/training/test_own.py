"""Metrics, objectives and hooks of a user's own, in whole runs."""

import csv
import functools
import json
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.training.runs import (
  assert_same_bits,
  lines_of,
  of_each_launch,
  saved_arrays,
  small_config,
)
from tests.training.test_by_hand import assert_close, parameters
from zoo.config.building import build_model, build_task
from zoo.config.own import METRICS, OBJECTIVES
from zoo.config.sharding import make_mesh
from zoo.core.draws import INIT_STREAM, TRAIN_STREAM, stream_of
from zoo.objectives import batch_parts
from zoo.training import grid, run_plots, sweep
from zoo.training.compilation import make_training


@pytest.fixture(autouse=True)
def own(monkeypatch):
  """The metric, the objective and the hook of examples/distillation.py."""
  from examples import distillation

  monkeypatch.setitem(METRICS, 'norm', distillation.norm)
  monkeypatch.setitem(OBJECTIVES, 'distilled', distillation.distilled)
  return distillation


def _config(**changes):
  fields = {
    'task__noise_std': 0.5,
    'objective__name': 'distilled',
    'objective__positions': 'query',
    'eval__metrics': ('norm',),
    'optimizer__name': 'sgd',
    'optimizer__schedule': 'constant',
    'optimizer__clip_norm': None,
  }
  return small_config('transformer', **fields | changes)


def test_an_own_objective_is_that_of_a_loop_by_hand(tmp_path):
  config = _config(train__num_steps=3, train__num_parts=2)
  zoo.train(config, tmp_path)
  task, key = build_task(config), stream_of(config.seed, TRAIN_STREAM)
  model = build_model(config, nnx.Rngs(stream_of(config.seed, INIT_STREAM)))
  bayes = task.baselines()['bayes']
  optimizer = nnx.Optimizer(
    model, optax.sgd(config.optimizer.learning_rate), wrt=nnx.Param
  )

  @nnx.jit
  def step(model, optimizer, step):
    prompt = task.sample(jax.random.fold_in(key, step), config.train.batch_size)

    def loss(model):
      return jnp.mean(jnp.square(model(prompt) - bayes(prompt)))

    optimizer.update(model, nnx.grad(loss)(model))

  with jax.default_matmul_precision('highest'):
    for i in range(3):
      step(model, optimizer, i)
  assert_close(parameters(zoo.load(tmp_path).model), parameters(model))


def _norm(model):
  return np.sqrt(sum(np.sum(np.square(w)) for w in parameters(model).values()))


def test_metrics_and_hooks_are_recorded_at_each_evaluation(tmp_path, own):
  """Also by a run that was stopped and goes on, to the same bits."""
  config, calls = _config(), []

  class Watches(own.Largest):
    def on_chunk(self, event):
      calls.append(('chunk', event.step, event.metrics['loss']))

    def on_save(self, event):
      calls.append(('save', event.step))

    def on_end(self, event):
      calls.append(('end', event.summary['step']))

  zoo.train(config, tmp_path / 'whole', hooks=[Watches()])
  lines = lines_of(tmp_path / 'whole')
  # Steps are logged at 4, 8, 12, saved there, and evaluated at 6 and 12.
  assert [line['step'] for line in lines] == [4, 6, 8, 12]
  assert [line['step'] for line in lines if 'norm/weights' in line] == [6, 12]
  assert [line['step'] for line in lines if 'largest' in line] == [6, 12]
  model = zoo.load(tmp_path / 'whole').model
  np.testing.assert_allclose(lines[-1]['norm/weights'], _norm(model), rtol=1e-5)
  largest = max(np.abs(weight).max() for weight in parameters(model).values())
  assert lines[-1]['largest'] == float(largest)
  summary = json.loads((tmp_path / 'whole/summary.json').read_text())
  assert summary['metrics'] == {'norm/weights': lines[-1]['norm/weights']}
  # A metric that the summary of a finished run lacks is measured, to the same number.
  del summary['metrics']
  (tmp_path / 'whole/summary.json').write_text(json.dumps(summary))
  again = zoo.train(config, tmp_path / 'whole')
  assert again is not None
  measured: Any = again.get('metrics')
  np.testing.assert_allclose(measured['norm/weights'], lines[-1]['norm/weights'], 1e-6)
  losses = [line['loss'] for line in lines]
  assert calls == [
    *(('chunk', 4, losses[0]), ('save', 4), ('chunk', 6, losses[1])),
    *(('chunk', 8, losses[2]), ('save', 8), ('chunk', 12, losses[3]), ('save', 12)),
    ('end', 12),
  ]
  for event in zoo.training_run(config, tmp_path / 'stopped', [own.Largest()]):
    if event.step == 6:
      assert event.metrics['largest'] == lines[1]['largest']
      break
  zoo.train(config, tmp_path / 'stopped', hooks=[own.Largest()])
  stopped = lines_of(tmp_path / 'stopped')
  assert [*map(of_each_launch, stopped)] == [*map(of_each_launch, lines)]
  assert_same_bits(*(saved_arrays(tmp_path / n, 12) for n in ('stopped', 'whole')))
  axes = run_plots.plot_metric([tmp_path / 'whole'], 'norm/weights')
  np.testing.assert_array_equal(axes.lines[0].get_xdata(), [6, 12])
  for name in 'norm/other', 'curve':
    with refuses(f'has logged no number {name!r}; it has', 'norm/weights'):
      run_plots.plot_metric([tmp_path / 'whole'], name)


def test_metrics_and_objectives_are_those_of_runs_alone_in_a_sweep(tmp_path):
  config = _config()
  rows = sweep(config, grid({'seed': [0, 1]}), tmp_path / 'sweep')
  assert rows is not None
  zoo.train(config, tmp_path / 'alone')
  alone = lines_of(tmp_path / 'alone')[-1]
  np.testing.assert_allclose(
    rows[0]['metrics']['norm/weights'], alone['norm/weights'], rtol=1e-5
  )
  assert_close(
    parameters(zoo.load(rows[0]['workdir']).model),
    parameters(zoo.load(tmp_path / 'alone').model),
  )
  with (tmp_path / 'sweep/table.csv').open(newline='') as file:
    written = [float(row['norm/weights']) for row in csv.DictReader(file)]
  assert written == [row['metrics']['norm/weights'] for row in rows]


@pytest.mark.parametrize(
  'together', [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_hooks_are_called_for_each_point_of_a_sweep(tmp_path, own, together):
  """For points that one program trains, and for those that are trained alone."""
  config, calls = _config(), []

  class Watches(own.Largest):
    def on_save(self, event):
      calls.append((event.workdir, 'save', event.step))

    def on_end(self, event):
      assert event.config.seed == event.config.train.batch_size % 2
      calls.append((event.workdir, 'end', event.summary['step']))
      np.testing.assert_array_equal(
        np.concatenate([w.ravel() for w in parameters(event.model).values()]),
        np.concatenate(
          [w.ravel() for w in parameters(zoo.load(event.workdir).model).values()]
        ),
      )

  sizes = {0: 16, 1: 17}
  points = [{'seed': s, 'train.batch_size': size} for s, size in sizes.items()]
  if together:
    config.train.batch_size = 16
    points = [{'seed': 0}, {'seed': 0, 'optimizer.learning_rate': 0.02}]
  rows = sweep(config, points, tmp_path, hooks=[Watches()])
  assert rows is not None
  for row in rows:
    lines = lines_of(row['workdir'])
    assert [line['step'] for line in lines if 'largest' in line] == [6, 12]
    weights = parameters(zoo.load(row['workdir']).model)
    largest = max(np.abs(weight).max() for weight in weights.values())
    assert lines[-1]['largest'] == float(largest)
    own_calls = [call[1:] for call in calls if call[0] == row['workdir']]
    assert own_calls == [('save', 4), ('save', 8), ('save', 12), ('end', 12)]
  # A finished point calls nothing.
  calls.clear()
  assert sweep(config, points, tmp_path, hooks=[Watches()]) == rows
  assert calls == []


@pytest.mark.parametrize(
  ('metric', 'said'),
  [
    (lambda model, task, key: 1.0, ["the metric 'norm' returns a float; it must be"]),
    (
      lambda model, task, key: {'a': jnp.ones(2)},
      ["'a' as an array of the shape (2,) and the type float32; it must be a number"],
    ),
    (lambda model, task, key: {'a': 'text'}, ["'norm' returns 'a' as 'text'"]),
    (lambda model, task, key: {'a': 1j}, ["'norm' returns 'a' as 1j"]),
  ],
)
def test_a_metric_of_another_form_is_refused(metric, said, tmp_path, monkeypatch):
  monkeypatch.setitem(METRICS, 'norm', metric)
  with refuses(*said):
    zoo.train(_config(), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_an_objective_of_another_form_is_refused(tmp_path, monkeypatch):
  monkeypatch.setitem(OBJECTIVES, 'distilled', lambda *_: jnp.ones(()))
  with refuses("the objective 'distilled' returns the shape () for 16 prompts"):
    zoo.train(_config(), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
  with refuses('which itself says what is trained'):
    zoo.train(_config(objective__positions='every'), tmp_path / 'run')


class _Normalised(nnx.Module):
  """Its method `train` uses the batch's statistics, and keeps their running mean."""

  def __init__(self, num_features, *, rngs):
    self.norm = nnx.BatchNorm(num_features, use_running_average=True, rngs=rngs)
    self.out = nnx.Linear(num_features, 1, rngs=rngs)

  def __call__(self, prompt):
    return self.predict(prompt)

  def predict(self, prompt, **options):
    return self.out(self.norm(prompt.x_query, **options))[:, 0]


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_an_objective_that_changes_more_than_weights_is_refused(
  dtype, tmp_path, monkeypatch, register
):
  """A step with one part would keep the running mean, and one with two would not."""
  zoo.register_model('normalised')(_Normalised)

  def batch(model, prompt, task, key):
    return task.loss(model.predict(prompt, use_running_average=False), prompt.y_query)

  monkeypatch.setitem(OBJECTIVES, 'distilled', batch)
  config = _config(model={'name': 'normalised'}, train__compute_dtype=dtype)
  with refuses("the objective 'distilled' changes norm.mean, norm.var of the model"):
    zoo.train(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


class _Dropped(nnx.Module):
  def __init__(self, num_features, *, rngs):
    self.drop = nnx.Dropout(0.5, deterministic=True, rngs=rngs)
    self.out = nnx.Linear(num_features, 1, rngs=rngs)

  def __call__(self, prompt):
    return self.out(self.drop(prompt.x_query))[:, 0]


def test_an_objective_may_set_the_random_stream_of_its_model(
  tmp_path, monkeypatch, register
):
  zoo.register_model('dropped')(_Dropped)

  def drop(model, prompt, task, key, is_reseeded=True):
    if is_reseeded:
      nnx.reseed(model, default=key)
    hidden = model.drop(prompt.x_query, deterministic=False)
    return task.loss(model.out(hidden)[:, 0], prompt.y_query)

  config = _config(model={'name': 'dropped'}, eval__metrics=())
  monkeypatch.setitem(OBJECTIVES, 'distilled', drop)
  assert zoo.train(config, tmp_path / 'run') is not None
  own = functools.partial(drop, is_reseeded=False)
  monkeypatch.setitem(OBJECTIVES, 'distilled', own)
  with refuses('changes drop.rngs.count of the model', 'nnx.Rngs(dropout=key)'):
    zoo.train(config, tmp_path / 'other')


def test_an_objective_without_real_losses_is_refused(tmp_path, monkeypatch):
  def whole(model, prompt, task, key):
    return jnp.int32(model(prompt))

  monkeypatch.setitem(OBJECTIVES, 'distilled', whole)
  with refuses("the objective 'distilled' returns numbers of the type int32"):
    zoo.train(_config(), tmp_path / 'run')


def test_what_an_objective_draws_is_the_same_beside_other_points(tmp_path, monkeypatch):
  """Also where the work of all points is enough to divide a batch into lanes."""

  def noisy(model, prompt, task, key):
    return task.loss(
      model(prompt) + jax.random.normal(key, prompt.y_query.shape), prompt.y_query
    )

  monkeypatch.setitem(OBJECTIVES, 'distilled', noisy)
  config = _config(eval__metrics=(), train__num_steps=3, train__log_every=1)
  task, mesh = build_task(config), make_mesh(config)
  weights = make_training(config, mesh).abstract['model']
  sizes = sum(leaf.size for leaf in jax.tree.leaves(weights))
  work = sizes * config.train.batch_size * (task.context_length + 1)
  monkeypatch.setattr(batch_parts, '_LEAST_PRODUCTS', 2 * work)
  assert batch_parts.num_lanes(config, task, mesh, weights) == 1
  assert batch_parts.num_lanes(config, task, mesh, [weights] * 2) > 1
  zoo.train(config, tmp_path / 'alone')
  sweep(config, grid({'seed': [0, 1]}), tmp_path / 'both')
  alone, together = (
    [line['loss'] for line in lines_of(tmp_path / folder)]
    for folder in ('alone', 'both/points/seed=0')
  )
  np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_the_key_of_a_metric_does_not_depend_on_other_metrics(tmp_path, monkeypatch):
  def drawn(model, task, key):
    return {'number': jax.random.uniform(key)}

  for name in 'first', 'second':
    monkeypatch.setitem(METRICS, name, drawn)
  numbers = []
  for names in ('second',), ('first', 'second'):
    config = _config(eval__metrics=names)
    zoo.train(config, tmp_path / '-'.join(names))
    numbers.append(lines_of(tmp_path / '-'.join(names))[-1]['second/number'])
  assert numbers[0] == numbers[1]
  with refuses("the name of a metric is 'a/b'; it must have no slash"):
    zoo.register_metric('a/b')(drawn)
  with refuses("the name of a metric is 'curve'"):
    zoo.register_metric('curve')(drawn)


def test_a_loss_that_is_not_finite_at_first_is_no_matter_of_the_rate(
  tmp_path, monkeypatch
):
  def wrong(model, prompt, task, key):
    return jnp.log(-jnp.ones(len(prompt.x))) + model(prompt)

  monkeypatch.setitem(OBJECTIVES, 'distilled', wrong)
  with pytest.raises(
    zoo.RunError, match='not finite with the initial weights, so that'
  ):
    zoo.train(_config(), tmp_path / 'run')


def test_an_error_of_ones_own_keeps_its_traceback(tmp_path, monkeypatch, own):
  def broken(*_):
    raise KeyError('mine')

  class Broken(zoo.Hook):
    def on_evaluation(self, event):
      broken()

  for entries, name in (METRICS, 'norm'), (OBJECTIVES, 'distilled'):
    with monkeypatch.context() as patch:
      patch.setitem(entries, name, broken)
      with pytest.raises(KeyError, match='mine') as info:
        zoo.train(_config(), tmp_path / name)
    assert info.traceback[-1].name == 'broken'
    assert not (tmp_path / name).exists()
  with pytest.raises(KeyError, match='mine') as info:
    zoo.train(_config(), tmp_path / 'hook', hooks=[Broken()])
  assert info.traceback[-1].name == 'broken'
  # What was saved before stays, and the run goes on.
  zoo.train(_config(), tmp_path / 'hook', hooks=[own.Largest()])
  assert [line['step'] for line in lines_of(tmp_path / 'hook')] == [4, 6, 8, 12]


@pytest.mark.parametrize(
  ('returned', 'said'),
  [
    (3.0, 'returns a float; it must be a dict'),
    ({'loss': 1.0}, "returns 'loss', which the line of the step has already"),
    ({'wall_time': 1.0}, "returns 'wall_time', which the line of the step has"),
    ({'a': 'b'}, "returns 'a' as 'b'; it must be a number"),
    ({'a': 1j}, "returns 'a' as 1j; it must be a number"),
    ({'a': [[1.0], 2.0]}, "returns 'a' as [[1.0], 2.0]; it must be a number"),
    ({1: 2.0}, 'returns the name 1; it must be text'),
    ({'curve/0001': 2.0}, "returns the name 'curve/0001'; it must be text, and must"),
  ],
)
def test_a_hook_returns_numbers_of_its_own(returned, said, tmp_path):
  class Own(zoo.Hook):
    def on_evaluation(self, event):
      return returned

  with pytest.raises(zoo.RunError) as info:
    zoo.train(_config(eval__metrics=()), tmp_path, hooks=[Own()])
  assert 'Own.on_evaluation' in str(info.value)
  assert said in str(info.value)


def test_unknown_names_are_refused(tmp_path):
  with refuses("config.eval.metrics 'norms'", 'norm'):
    zoo.train(_config(eval__metrics=('norms',)), tmp_path / 'run')
  with refuses("config.eval.metrics is 'norm'; it must be a tuple"):
    zoo.train(_config(eval__metrics='norm'), tmp_path / 'run')


@pytest.mark.parametrize('name', ['sampled', 'nll', 'rows', 'exact'])
def test_an_objective_of_the_library_keeps_its_name(name):
  registered = OBJECTIVES.copy()
  with refuses('name of the objective of the library'):
    zoo.register_objective(name)(lambda model, prompt, task, key: model(prompt))
  assert registered == OBJECTIVES


def test_what_is_no_hook_is_refused_before_a_run_begins(tmp_path, unchecked):
  wrong: Any
  for wrong, said in (
    (zoo.Hook(), 'hooks is a Hook; it must be a list of hooks'),
    ([print], 'is not a hook: its class must be a subclass of zoo.Hook'),
    ([zoo.Hook], 'Hook is a class, not a hook; create an object of it'),
  ):
    with refuses(said):
      zoo.train(_config(eval__metrics=()), tmp_path / 'a', hooks=wrong)
    with refuses(said):
      sweep(_config(eval__metrics=()), [{'seed': 0}], tmp_path / 'a', hooks=wrong)
  assert not (tmp_path / 'a').exists()
  with refuses('the values of seed are 3; they must be a list'):
    zoo.training.grid({'seed': cast(Any, 3)})
