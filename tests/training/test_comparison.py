"""Training on every example, and the comparison with the baselines at the end."""

import dataclasses
import importlib
import json
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from configs import common
from tests.compare import assert_close, refuses
from tests.compiled import built
from tests.marks import mostly_full
from tests.settings import curve_key
from tests.training.runs import small_config
from zoo import sharding
from zoo.config.read import read, to_json
from zoo.core import draws, registry
from zoo.host.files import read_json
from zoo.measure.comparison import compare
from zoo.objectives import build_objective, inputs_of
from zoo.objectives.losses import predicted
from zoo.reports.style import drawing_of
from zoo.sharding import make_mesh, replicated
from zoo.training import against_baselines, sweep, table, train
from zoo.training.against_baselines import compare_models, num_compared
from zoo.training.experiment import build
from zoo.training.records import read_lines
from zoo.training.run_plots import plot_examples
from zoo.training.summary import read_summary, write_summary


class Causal(nnx.Module):
  """f = w·x_q + a·(mean of the labels so far)."""

  def __init__(self, num_features, *, rngs):
    self.w = nnx.Param(0.3 * jax.random.normal(rngs.params(), (num_features,)))
    self.a = nnx.Param(jnp.full((), 0.4))

  def __call__(self, prompt):
    mean = jnp.sum(prompt.y, axis=1) / max(prompt.y.shape[1], 1)
    return prompt.x_query @ self.w[...] + self.a[...] * mean

  def predictions(self, prompt):
    x = prompt.features
    sums = jnp.cumsum(jnp.pad(prompt.y, ((0, 0), (1, 0))), axis=1)
    counts = jnp.maximum(jnp.arange(x.shape[1]), 1).astype(x.dtype)
    return x @ self.w[...] + self.a[...] * sums / counts[None]


def _config(task='quadratic_regression', **changes) -> Any:
  """A run of `Causal` on a task that exact theory does not cover."""
  config = small_config(train__num_steps=4, eval__every=4, checkpoint__every=4)
  with config.unlocked():
    del config.model['num_heads'], config.model['init_scale']
    config.task = common.task_section(task)
    config.task.num_features, config.task.context_length = 3, 4
    config.task.noise_std = 0.5
  config.model.name = 'causal'
  for field, value in changes.items():
    section, leaf = field.split('__')
    config[section][leaf] = value
  return config


@pytest.fixture(autouse=True)
def causal(monkeypatch):
  monkeypatch.setitem(registry.MODELS, 'causal', Causal)


def _task() -> Any:
  return zoo.create_task(
    'quadratic_regression', num_features=3, context_length=4, noise_std=0.5
  )


def _gradient(positions: str, model: Any) -> tuple[float, Any]:
  config, task = _config(objective__positions=positions), _task()
  objective = build_objective(read(config), task, model)
  graph, state = nnx.split(model)

  def loss(state):
    return objective.loss_of_step(
      nnx.merge(graph, state), jax.random.key(3), inputs_of(task)
    )

  with jax.set_mesh(make_mesh(read(config))):
    value, gradient = jax.jit(jax.value_and_grad(loss))(state)
  return float(value), jax.device_get(jax.tree.leaves(gradient))


def test_the_loss_at_every_example_is_the_mean_over_prefixes():
  model, task = built(lambda: Causal(3, rngs=nnx.Rngs(0))), _task()

  @jax.jit
  def losses(key):
    prompt = task.sample(key, _config().train.batch_size)
    prefixes = [prompt.prefix(k) for k in range(5)]
    by_prefix = [jnp.square(model(p) - p.y_query) for p in prefixes]
    at_all, at_query = (task.loss(*predicted(model, prompt, e)) for e in (True, False))
    return by_prefix, at_all, at_query

  by_prefix, at_all, at_query = losses(jax.random.key(3))
  # Sums of a few float32 numbers, in another order.
  assert_close(at_all, np.stack(by_prefix, axis=1), 1e-5)
  every, gradient = _gradient('every', model)
  assert_close(every, np.mean(by_prefix), 1e-5)
  query, other = _gradient('query', model)
  assert_close(query, np.mean(at_query), 1e-5)
  for leaf, other_leaf in zip(gradient, other, strict=True):
    assert not np.any(np.isclose(leaf, other_leaf, rtol=1e-3))


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A finished run that was trained on every example: summary and last event."""
  workdir, ended = tmp_path_factory.mktemp('run'), []

  class Ends(zoo.Hook):
    def on_end(self, event):
      ended.append(event)

  config = _config(objective__positions='every', eval__num_compared=32)
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(registry.MODELS, 'causal', Causal)
    with jax.numpy_dtype_promotion('standard'):
      summary = train(config, workdir, [Ends()], compare=True)
  assert summary is not None
  (event,) = ended
  return workdir, summary, event


def test_the_curve_is_in_the_log_and_on_the_board(finished):
  proto: Any = importlib.import_module('tensorboardX.proto.event_pb2')
  workdir, summary, _ = finished
  line = read_lines(workdir)[-1]
  assert len(line['curve']) == 5
  assert_close(line['curve'][-1], summary['eval_risk'], 1e-6)
  (path,) = (workdir / 'tensorboard').glob('events*')
  events, content = [], path.read_bytes()
  while content:  # the length in 8 bytes, a checksum, the event, and a checksum
    size = int.from_bytes(content[:8], 'little')
    events.append(proto.Event.FromString(content[12 : 12 + size]))
    content = content[16 + size :]
  values = {v.tag: v.simple_value for e in events for v in e.summary.value}
  curve = [values[f'curve/{k:04}'] for k in range(5)]
  np.testing.assert_allclose(curve, line['curve'], rtol=1e-6)


def test_the_comparison_is_in_the_summary_and_the_table(finished):
  workdir, summary, event = finished
  read = read_summary(workdir)
  assert read == event.summary == summary
  comparison = summary.get('comparison')
  assert [*comparison] == ['model', *_task().baselines()]
  assert comparison['model']['num_prompts'] == 32
  assert comparison == compare(zoo.load(workdir).model, _task(), 32)
  text = table(summary)
  assert text.startswith('after step 4')
  for said in ('on the same 32 prompts', 'bayes, the least possible', 'zero', 'median'):
    assert said in text
  # The loss of the model stands there once.
  assert text.count('loss ± t·s.e.') == 1
  assert text.split('\n')[1].split()[:2] == [
    'causal',
    f'{comparison["model"]["mean"][-1]:.4f}',
  ]
  json.loads((workdir / 'summary.json').read_text(), parse_constant=lambda name: 1 / 0)


@pytest.mark.slow
def test_classes_have_an_accuracy_everywhere(tmp_path):
  config = _config(objective__positions='every', eval__num_compared=32)
  with config.unlocked():
    config.task = common.task_section('sparse_parity')
    config.task.num_features, config.task.context_length = 3, 4
  with jax.numpy_dtype_promotion('standard'):
    summary: Any = train(config, tmp_path, compare=True)
  saved = zoo.load(tmp_path)
  model: Any = saved.model
  w, a = (np.asarray(weight[...], np.float64) for weight in (model.w, model.a))

  def accuracies(key, count):
    prompt = jax.device_get(saved.task.sample(key, count))
    x, target = np.asarray(prompt.features, np.float64), np.asarray(prompt.targets)
    right = np.empty(target.shape)
    for k in range(5):
      mean = prompt.y[:, :k].sum(axis=1) / max(k, 1)
      right[:, k] = np.where(x[:, k] @ w + a * mean > 0, target[:, k], 1 - target[:, k])
    return right

  held_out = draws.stream_of(config.eval.seed, draws.EVAL_STREAM)
  keys = [jax.random.fold_in(held_out, i) for i in range(2)]
  right = np.concatenate([accuracies(key, 16)[:, -1] for key in keys])
  assert_close(summary['eval_accuracy'], right.mean(), 1e-6)
  stderr = right.std(ddof=1) / np.sqrt(32)
  assert_close(summary['eval_accuracy_stderr'], stderr, 1e-4)
  line = read_lines(tmp_path)[-1]
  assert line['eval_accuracy'] == summary['eval_accuracy']
  comparison = summary['comparison']
  expected = accuracies(curve_key(config.eval.seed), 32).mean(axis=0)
  assert_close(comparison['model']['accuracy'], expected, 1e-6)
  curve: Any = zoo.curve(saved.model, saved.task, 32)
  assert_close(curve.accuracy, expected, 1e-6)
  assert comparison['zero']['accuracy'] == [0.5] * 5
  assert table(summary).count('accuracy') == 1
  loss, accuracy = plot_examples([tmp_path])
  assert (len(accuracy.lines), accuracy.get_ylabel()) == (4, 'accuracy')
  assert loss.get_ylabel() == 'log loss (log scale)'


def test_it_is_drawn_when_finished_and_before(finished, tmp_path):
  workdir, _, _ = finished
  assert len(plot_examples([workdir])[0].lines) > 4
  # A run that has not ended has the curve of its last evaluation.
  for name in ('config.json', 'metrics.jsonl'):
    (tmp_path / name).write_bytes((workdir / name).read_bytes())
  (line,) = plot_examples([tmp_path])[0].lines
  np.testing.assert_allclose(
    np.asarray(line.get_ydata(), float),
    read_lines(tmp_path)[-1]['curve'],
  )
  both = plot_examples([tmp_path, workdir])
  drawing_of(both).canvas.draw()


def test_a_run_without_a_curve_is_told_so(tmp_path):
  (tmp_path / 'config.json').write_text(to_json(small_config()))
  with refuses('has no loss by number of examples yet'):
    plot_examples([tmp_path])
  with refuses('holds no run'):
    plot_examples([tmp_path / 'none'])


@pytest.mark.slow
def test_no_comparison_if_none_is_wanted(tmp_path):
  config = _config(eval__num_compared=1, train__num_steps=2)
  summary = train(config, tmp_path)
  assert summary is not None
  assert summary.get('comparison') is None
  assert 'the same' not in table(summary)


def test_a_comparison_has_as_many_prompts_as_are_asked_for():
  config = _config(eval__num_compared=5000, eval__num_batches=1)
  assert num_compared(read(config)) == 5000
  config.eval.num_batches = 0  # no losses are sampled
  assert num_compared(read(config)) == 0


@pytest.mark.slow
def test_it_is_the_same_on_meshes_of_one_device_and_of_eight(tmp_path):
  model = Causal(3, rngs=nnx.Rngs(0))
  graph, state = nnx.split(model)
  comparisons = []
  for devices in (1, 8):
    config = _config(eval__num_compared=16)
    config.mesh.data = devices
    experiment = dataclasses.replace(build(config), graphs={'model': graph})
    with jax.set_mesh(experiment.mesh):
      there = jax.device_put(state, replicated(experiment.mesh))
      comparisons += compare_models([experiment], there, is_stacked=False)
  assert comparisons[0] is not None
  assert comparisons[0] == comparisons[1] == compare(model, _task(), 16)


@pytest.mark.slow
def test_the_baselines_of_a_split_model_are_measured_on_one_device(monkeypatch):
  devices = {}

  class Noting(Causal):
    def predictions(self, prompt):
      devices['model'] = jax.sharding.get_abstract_mesh().size
      return super().predictions(prompt)

  def zero(prompt):
    devices['zero'] = jax.sharding.get_abstract_mesh().size
    return jnp.zeros_like(prompt.y_query)

  task = _task()
  monkeypatch.setattr(type(task), 'baselines', lambda _: {'zero': zero})
  with jax.set_mesh(make_mesh(read(_config(mesh__data=2)))):
    assert compare(Noting(3, rngs=nnx.Rngs(0)), task, 16)
  assert devices == {'model': 2, 'zero': 1}


@pytest.mark.slow
def test_a_summary_of_a_task_with_unknown_risks_can_be_read(tmp_path):
  """The exact risk of least squares from d + 1 examples is infinite, so None."""
  config = small_config(eval__num_compared=8, task__noise_std=0.5)
  summary = train(config, tmp_path, compare=True)
  assert summary is not None
  comparison = summary.get('comparison')
  assert comparison is not None
  assert comparison['ols']['exact'] is None
  assert read_summary(tmp_path) == summary
  assert (
    read_json(tmp_path / 'summary.json', dict)['comparison'].keys() == comparison.keys()
  )


@pytest.fixture
def no_gather(monkeypatch):
  """No device has the memory for a whole model; a CPU cannot show it otherwise."""

  def gather(*_):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 9')

  monkeypatch.setattr(sharding, '_on_one_device', gather)


_NO_COMPARISON = 'no comparison with the baselines of the task, for which the memory is'


@pytest.mark.slow
@pytest.mark.usefixtures('no_gather')
@pytest.mark.full
def test_a_run_whose_memory_is_not_enough_has_a_result_without_comparison(
  tmp_path, caplog
):
  config = small_config(train__num_steps=2, mesh__data=8, eval__num_compared=8)
  summary = train(config, tmp_path, compare=True)
  assert summary is not None
  assert summary['eval_risk'] is not None
  assert summary['comparison'] is None
  (said,) = [message for message in caplog.messages if _NO_COMPARISON in message]
  assert said.endswith('not enough: RESOURCE_EXHAUSTED: Out of memory allocating 9')
  assert train(config, tmp_path) == summary


@pytest.mark.usefixtures('shared_programs')
def test_a_launch_compares_a_finished_run_where_a_comparison_is_missing(
  finished, tmp_path, monkeypatch, caplog
):
  """Since a launch was killed, the memory was too small, or others are asked for."""
  config = small_config(eval__num_compared=8)
  counts, form = [], finished[1]['comparison']['model']

  def exhausted(*arguments, **options):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 9')

  def compared(models, task, num_prompts, seed, is_checked):
    (model,) = models
    counts.append(num_prompts)
    return [of_weights(model, min(num_prompts, 12))]  # The task is too large for more.

  def of_weights(model, num_prompts):
    weights = np.ravel(model.w_k[...]).tolist()
    return {'model': {**form, 'num_prompts': num_prompts, 'mean': weights}}

  monkeypatch.setattr(against_baselines, 'compare_all', exhausted)
  before = train(config, tmp_path, compare=True)
  assert before is not None
  assert before['eval_risk'] is not None
  assert before['comparison'] is None
  (said,) = [message for message in caplog.messages if _NO_COMPARISON in message]
  assert said.endswith('not enough: RESOURCE_EXHAUSTED: Out of memory allocating 9')
  monkeypatch.setattr(against_baselines, 'compare_all', compared)
  assert train(config, tmp_path) == before
  model = zoo.load(tmp_path).model
  for asked, num in (8, 8), (12, 12), (20, 12):
    config.eval.num_compared = asked
    summary: Any = train(config, tmp_path, compare=True)
    assert summary == {**before, 'comparison': of_weights(model, num)}
    assert summary == read_summary(tmp_path)
    assert train(config, tmp_path, compare=True) == train(config, tmp_path) == summary
  assert counts == [8, 12, 20]  # None is measured again.
  # Without the model it stays, and a warning says that there is no other.
  for step in (tmp_path / 'checkpoints').iterdir():
    shutil.rmtree(step)
  caplog.clear()
  assert train(config, tmp_path, compare=True) == summary
  assert 'there is no comparison' not in caplog.text
  config.eval.num_compared = 11
  assert train(config, tmp_path, compare=True) == summary
  assert 'the baselines of the task on 11 prompts' in caplog.text
  write_summary(tmp_path, before)
  caplog.clear()
  assert train(config, tmp_path, compare=True) == before
  assert 'no comparison with the baselines of the task' in caplog.text
  assert counts == [8, 12, 20]


# A model that is split by its layers over `model`, and one that is fully sharded.
SPLIT = [
  ('multi_head_lsa', {'model__num_heads': 6, 'mesh__model': 2, 'mesh__data': 4}),
  ('transformer', {'model__num_layers': 1, 'mesh__data': 8, 'mesh__fsdp': True}),
]


@pytest.mark.slow
@pytest.mark.usefixtures('no_gather')
@pytest.mark.parametrize(('name', 'changes'), mostly_full(SPLIT[:1], SPLIT))
def test_a_split_model_is_compared_without_gathering_it(tmp_path, name, changes):
  config = small_config(name, train__num_steps=2, eval__num_compared=8, **changes)
  summary = train(config, tmp_path, compare=True)
  assert summary is not None
  comparison = summary['comparison']
  assert comparison is not None
  model = zoo.load(tmp_path)  # on one device
  alone = compare(model.model, model.task, 8)
  assert alone is not None
  assert comparison.keys() == alone.keys()
  for predictor, measured in comparison.items():
    expected = alone[predictor]
    for field in 'mean', 'stderr', 'median':
      # Sums of float32 are added in another order.
      np.testing.assert_allclose(
        np.array(measured[field], float), np.array(expected[field], float), rtol=1e-4
      )
    assert measured['exact'] == pytest.approx(expected['exact'])


@pytest.mark.slow
@pytest.mark.usefixtures('no_gather')
@pytest.mark.full
def test_models_side_by_side_that_one_device_cannot_hold_have_results(tmp_path, caplog):
  config = small_config('deep_set', train__num_steps=2, eval__num_compared=8)
  rows = sweep(config, [{'seed': 0}, {'seed': 1}], tmp_path)
  assert rows is not None
  assert [row['comparison'] for row in rows] == [None, None]
  assert caplog.text.count(_NO_COMPARISON) == 1
