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
from tests.built import model_of, task_of
from tests.compare import refuses
from tests.contracts.classes import Linear
from tests.marks import FULL
from tests.training.runs import (
  assert_same_bits,
  lines_of,
  of_each_launch,
  saved_arrays,
  small_config,
)
from tests.training.test_by_hand import assert_close, parameters
from zoo.config.read import read
from zoo.core.draws import INIT_STREAM, TRAIN_STREAM, stream_of
from zoo.core.registry import MODELS
from zoo.objectives import build_objective, lanes
from zoo.objectives.functions import OBJECTIVES
from zoo.training import run_plots, sweep
from zoo.training.experiment import build, validate
from zoo.training.hooks import Event, numbers_of_hooks
from zoo.training.metrics import METRICS, own_metrics


@pytest.fixture(autouse=True)
def own(register):
  """The metric, the objective and the hook of examples/distillation.py.

  The model is linear, so that its programs are quickly traced. `register` is here
  before the example is imported, which registers what it has, and takes it all away
  again.
  """
  from examples import distillation

  METRICS['norm'] = distillation.norm
  OBJECTIVES['distilled'] = distillation.distilled
  MODELS['linear'] = Linear
  return distillation


def _config(**changes):
  fields = {
    'model': {'name': 'linear'},
    'task__noise_std': 0.5,
    'objective__name': 'distilled',
    'objective__positions': 'query',
    'eval__metrics': ('norm',),
    'optimizer__name': 'sgd',
    'optimizer__schedule': 'constant',
    'optimizer__clip_norm': None,
  }
  return small_config('yq_lsa', **fields | changes)


def _by_hand(config):
  """The parameters after training by a loop, with the objective written out."""
  task, key = task_of(config), stream_of(config.seed, TRAIN_STREAM)
  model = model_of(config, nnx.Rngs(stream_of(config.seed, INIT_STREAM)))
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
    for i in range(config.train.num_steps):
      step(model, optimizer, i)
  return parameters(model)


def _norm(model):
  return np.sqrt(sum(np.sum(np.square(w)) for w in parameters(model).values()))


@pytest.mark.usefixtures('shared_programs')
def test_own_metrics_and_hooks_are_recorded_at_each_evaluation(tmp_path, own):
  """Of a run with an own objective, which ends at the weights of a loop by hand.

  And by a run that was stopped and goes on, to the same bits.
  """
  config, calls = _config(train__num_parts=2), []

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
  assert_close(parameters(model), _by_hand(config))
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


# Two points of one program; with --full, another that is trained alone.
_POINTS = [{'seed': 0}, {'seed': 1}]
_ONE_MORE = pytest.param([*_POINTS, {'seed': 1, 'train.batch_size': 17}], marks=FULL)


@pytest.mark.parametrize('points', [_POINTS, _ONE_MORE])
def test_points_of_a_sweep_have_the_metrics_draws_and_hooks_of_runs_alone(
  points, tmp_path, own, monkeypatch
):
  """The work of two points would divide a batch into lanes; that of one does not."""
  calls = []

  def noisy(model, prompt, task, key):
    noise = jax.random.normal(key, prompt.y_query.shape)
    return task.loss(model(prompt) + noise, prompt.y_query)

  class Watches(own.Largest):
    def on_save(self, event):
      calls.append((event.workdir, 'save', event.step))

    def on_end(self, event):
      assert f'seed={event.config.seed}' in event.workdir.name
      calls.append((event.workdir, 'end', event.summary['step']))
      saved = parameters(zoo.load(event.workdir).model)
      for path, weight in parameters(event.model).items():
        np.testing.assert_array_equal(weight, saved[path])

  monkeypatch.setitem(OBJECTIVES, 'distilled', noisy)
  config = _config()
  experiment = build(config)
  task, mesh, weights = experiment.task, experiment.mesh, experiment.abstract['model']
  run = experiment.config
  sizes = sum(leaf.size for leaf in jax.tree.leaves(weights))
  work = sizes * config.train.batch_size * (task.context_length + 1)
  monkeypatch.setattr(lanes, '_LEAST_PRODUCTS', 2 * work)
  assert lanes.num_lanes(run, task, mesh, weights) == 1
  assert lanes.num_lanes(run, task, mesh, [weights] * 2) > 1
  rows = sweep(config, points, tmp_path / 'sweep', hooks=[Watches()])
  assert rows is not None
  zoo.train(config, tmp_path / 'alone')
  logged = [lines_of(folder) for folder in (rows[0]['workdir'], tmp_path / 'alone')]
  for name in 'loss', 'norm/weights':
    numbers, expected = ([line.get(name, 0) for line in lines] for lines in logged)
    np.testing.assert_allclose(numbers, expected, rtol=1e-5)
  np.testing.assert_allclose(
    rows[0]['metrics']['norm/weights'], logged[1][-1]['norm/weights'], rtol=1e-5
  )
  assert_close(
    parameters(zoo.load(rows[0]['workdir']).model),
    parameters(zoo.load(tmp_path / 'alone').model),
  )
  with (tmp_path / 'sweep/table.csv').open(newline='') as file:
    written = [float(row['norm/weights']) for row in csv.DictReader(file)]
  assert written == [row['metrics']['norm/weights'] for row in rows]
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
  assert sweep(config, points, tmp_path / 'sweep', hooks=[Watches()]) == rows
  assert calls == []


def _metrics(*names):
  """The numbers of metrics of a model."""
  graph, state = nnx.split(Linear(rngs=nnx.Rngs(0)))
  return own_metrics(graph, names, task_of(_config()), jax.random.key(0), state)


def test_a_metric_of_another_form_is_refused(tmp_path, monkeypatch):
  array = "'a' as an array of the shape (2,) and the type float32; it must be a number"
  for returned, said in (
    (1.0, "the metric 'norm' returns a float; it must be"),
    ({'a': jnp.ones(2)}, array),
    ({'a': 'text'}, "'norm' returns 'a' as 'text'"),
    ({'a': 1j}, "'norm' returns 'a' as 1j"),
  ):
    monkeypatch.setitem(METRICS, 'norm', lambda *_, returned=returned: returned)
    with refuses(said):
      _metrics('norm')
  with refuses(said):
    zoo.train(_config(), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_an_objective_of_another_form_is_refused(monkeypatch):
  def refused(returned):
    monkeypatch.setitem(OBJECTIVES, 'distilled', lambda *_: returned)
    model, config = Linear(rngs=nnx.Rngs(0)), _config()
    objective: Any = build_objective(read(config), task_of(config), model)
    objective.check_variables(model)

  with refuses("the objective 'distilled' returns the shape () for 16 prompts"):
    refused(jnp.ones(()))
  with refuses("the objective 'distilled' returns numbers of the type int32"):
    refused(jnp.ones(16, jnp.int32))
  with refuses('which itself says what is trained'):
    validate(_config(objective__positions='every'))


class _Normalised(nnx.Module):
  """Its method `train` uses the batch's statistics, and keeps their running mean."""

  def __init__(self, num_features, *, rngs):
    self.norm = nnx.BatchNorm(num_features, use_running_average=True, rngs=rngs)
    self.out = nnx.Linear(num_features, 1, rngs=rngs)

  def __call__(self, prompt):
    return self.predict(prompt)

  def predict(self, prompt, **options):
    return self.out(self.norm(prompt.x_query, **options))[:, 0]


def test_an_objective_that_changes_more_than_weights_is_refused(
  tmp_path, monkeypatch, register
):
  """A step with one part would keep the running mean, and one with two would not."""
  zoo.register_model('normalised')(_Normalised)

  def batch(model, prompt, task, key):
    return task.loss(model.predict(prompt, use_running_average=False), prompt.y_query)

  monkeypatch.setitem(OBJECTIVES, 'distilled', batch)
  config = _config(model={'name': 'normalised'})
  with refuses("the objective 'distilled' changes norm.mean, norm.var of the model"):
    zoo.train(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


class _Dropped(nnx.Module):
  def __init__(self, num_features, *, rngs):
    self.drop = nnx.Dropout(0.5, deterministic=True, rngs=rngs)
    self.out = nnx.Linear(num_features, 1, rngs=rngs)

  def __call__(self, prompt):
    return self.out(self.drop(prompt.x_query))[:, 0]


@pytest.mark.slow
def test_an_objective_may_set_the_random_stream_of_its_model(
  tmp_path, monkeypatch, register
):
  zoo.register_model('dropped')(_Dropped)

  def drop(model, prompt, task, key, is_reseeded=True):
    if is_reseeded:
      nnx.reseed(model, default=key)
    hidden = model.drop(prompt.x_query, deterministic=False)
    return task.loss(model.out(hidden)[:, 0], prompt.y_query)

  fields = {'eval__metrics': (), 'eval__num_batches': 0}
  config = _config(model={'name': 'dropped'}, **fields)
  monkeypatch.setitem(OBJECTIVES, 'distilled', drop)
  assert zoo.train(config, tmp_path / 'run') is not None
  own = functools.partial(drop, is_reseeded=False)
  monkeypatch.setitem(OBJECTIVES, 'distilled', own)
  with refuses('changes drop.rngs.count of the model', 'nnx.Rngs(dropout=key)'):
    zoo.train(config, tmp_path / 'other')


def test_the_key_of_a_metric_does_not_depend_on_other_metrics(monkeypatch):
  for name in 'first', 'second':
    monkeypatch.setitem(
      METRICS, name, lambda model, task, key: {'number': jax.random.uniform(key)}
    )
  alone, both = _metrics('second'), _metrics('first', 'second')
  assert alone['second/number'] == both['second/number'] != both['first/number']
  with refuses("the name of a metric is 'a/b'; it must have no slash"):
    zoo.register_metric('a/b')(abs)
  with refuses("the name of a metric is 'curve'"):
    zoo.register_metric('curve')(abs)


@pytest.mark.slow
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


def _broken(*_):
  raise KeyError('mine')


def test_an_error_of_a_metric_or_an_objective_keeps_its_traceback(
  tmp_path, monkeypatch
):
  for entries, name in (METRICS, 'norm'), (OBJECTIVES, 'distilled'):
    with monkeypatch.context() as patch:
      patch.setitem(entries, name, _broken)
      with pytest.raises(KeyError, match='mine') as info:
        zoo.train(_config(), tmp_path / name)
    assert info.traceback[-1].name == '_broken'
    assert not (tmp_path / name).exists()


@pytest.mark.usefixtures('shared_programs')
def test_an_error_of_a_hook_keeps_its_traceback_and_the_run_goes_on(tmp_path, own):
  class Broken(zoo.Hook):
    def on_evaluation(self, event):
      return _broken()

  with pytest.raises(KeyError, match='mine') as info:
    zoo.train(_config(), tmp_path, hooks=[Broken()])
  assert info.traceback[-1].name == '_broken'
  # What was saved before stays.
  zoo.train(_config(), tmp_path, hooks=[own.Largest()])
  assert [line['step'] for line in lines_of(tmp_path)] == [4, 6, 8, 12]


def test_a_hook_returns_numbers_of_its_own(tmp_path):
  line = {'loss': 0.5, 'wall_time': 1.0}
  event = Event(
    read(_config()), tmp_path, 6, line, None, lambda: Linear(rngs=nnx.Rngs(0))
  )
  for returned, said in (
    (3.0, 'returns a float; it must be a dict'),
    ({'loss': 1.0}, "returns 'loss', which the line of the step has already"),
    ({'a': 'b'}, "returns 'a' as 'b'; it must be a number"),
    ({'a': 1j}, "returns 'a' as 1j; it must be a number"),
    ({'a': [[1.0], 2.0]}, "returns 'a' as [[1.0], 2.0]; it must be a number"),
    ({1: 2.0}, 'returns the name 1; it must be text'),
    ({'curve/0001': 2.0}, "returns the name 'curve/0001'; it must be text, and must"),
  ):

    class Own(zoo.Hook):
      def on_evaluation(self, event, returned: Any = returned):
        return returned

    with pytest.raises(zoo.RunError) as info:
      numbers_of_hooks([Own()], event)
    assert str(info.value).startswith('Own.on_evaluation ')
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
