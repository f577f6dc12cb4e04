"""The atlas measures its cells on the same prompts, and tells what they lack."""

import csv
import itertools
import json
import math
from typing import Any

import jax
import numpy as np
import pytest

import zoo
from configs import atlas as cells
from tests.marks import mostly_full
from tests.training import fake_program
from zoo.config.validation import build_task
from zoo.core.errors import UserError
from zoo.host.files import names_below, workdir_path
from zoo.measure.curves import curve
from zoo.studies import atlas
from zoo.studies.atlas import Cell, Grid, Result, measure, pictures, report, training
from zoo.studies.atlas import results as results_
from zoo.theory import isotropic_head_limit

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def _result(losses, baselines):
  """A result of prompts of two examples; the losses are [s, p, n] after 0, 2, 4."""
  return Result(
    Cell('gru', 'linear', 'zero'),
    num_params=7,
    learning_rate=0.1,
    num_steps=10,
    seconds=1.0,
    still_falls=False,
    context_length=2,
    lengths=(0, 2, 4),
    losses=np.asarray(losses, np.float64),
    baselines={name: np.asarray(one, np.float64) for name, one in baselines.items()},
  )


def test_losses_are_those_of_as_many_examples_as_in_training():
  losses = [[[9, 1, 0], [9, 3, 0]], [[9, 5, 0], [9, 11, 0]]]  # two seeds, two prompts
  lines = {'zero': [[20] * 3] * 2, 'bayes': [[8, 1, 0], [6, 2, 0]], 'gd': [[0] * 3]}
  result = _result(losses, lines)
  assert result.by_seed == [2.0, 8.0]
  assert result.loss.mean == 5.0
  # The seeds' 2 and 8 are moved apart by √¾ of 2 each way: the prompts' means 3 and 7
  # have the variance 8, of which 2 is due to the rest. Student's t is 12.7062 at 1 d.f.
  assert result.loss.half == pytest.approx(12.7062 * (3 + 3**0.5), rel=1e-5)
  assert result.longest == (0.0, 0.0, 0.0)
  assert result.best_baseline == 'bayes'  # although gd had more luck
  assert result.excess == pytest.approx((5 - 1.5) / (7 - 1.5))
  # Without Bayes the best line is the lowest.
  lines = {'zero': [[4, 4, 4]] * 2, 'gd': [[6, 2, 1]] * 2}
  result = _result([[[4, 3, np.nan]] * 2], lines)
  assert result.best_baseline == 'gd'
  assert result.excess == pytest.approx((3 - 2) / (4 - 2))
  assert result.longest is None


def test_differences_are_paired_by_prompts_and_include_the_seeds():
  rng = np.random.default_rng(0)
  prompts = 10 * rng.random((1, 50, 1))  # what the prompts have in common cancels
  one, other = (
    prompts + rng.normal(size=(3, 1, 1)) + 0.1 * rng.normal(size=(3, 50, 3))
    for _ in range(2)
  )
  found = results_.difference(_result(one, {}), _result(other, {}))
  gaps = one[:, :, 1] - other[:, :, 1]
  assert found.mean == pytest.approx(gaps.mean())
  # The rest is small, so this is nearly the paired t test over the seeds' means.
  half = 4.302653 * gaps.mean(axis=1).std(ddof=1) / math.sqrt(3)
  assert found.half == pytest.approx(half, rel=0.05)


def test_exact_risks_take_the_place_of_sampled_losses():
  sampled = [[[9, 1, 0]] * 2, [[9, 5, 0]] * 2]
  lines = {'zero': [[20, 21, 22]] * 2, 'bayes': [[8, 1, 0.5]] * 2}
  result = _result(sampled, lines)._replace(
    exact=np.array([[np.nan, 2.0, 1.0], [np.nan, 4.0, 1.0]]),
    exact_baselines={'zero': np.full(3, 25.0), 'bayes': np.array([5.0, 0.0, np.nan])},
  )
  assert result.by_seed == [2.0, 4.0]
  assert result.loss.mean == 3.0
  assert result.loss.half == pytest.approx(12.7062, rel=1e-5)  # of 2 and 4, 1 d.f.
  assert result.at(0).mean == 9.0  # not known exactly
  assert result.longest == (1.0, 1.0, 1.0)
  assert (result.baseline('zero'), result.baseline('bayes', 2)) == (25.0, 0.5)
  assert result.excess == 3 / 5
  assert results_.difference(result, result) == (0.0, 0.0, 0.0)
  assert results_.cells_table([result]).rows[0][3] == '3.0000 ± 12.7062, exact risk'


def test_baselines_with_a_closed_form_are_exact():
  lines = measure.exact_baseline_losses(cells.get_config('gru', 'prior', 'zero'))
  assert measure.lengths_of(5) == (0, 1, 2, 5, 7, 10)
  np.testing.assert_allclose(lines['zero'], 25.0)  # |w*|² + d
  assert lines['bayes'][0] == lines['gd'][0] == 5.0  # the prior mean
  # d(d + 1)/(C + d + 1) at the best step (docs/theory.md, section 3).
  np.testing.assert_allclose(
    lines['gd'][1:], [30 / 7, 30 / 8, 30 / 11, 30 / 13, 30 / 16]
  )
  np.testing.assert_allclose(lines['gd_beta'], lines['gd'])  # a multiple of I is best
  np.testing.assert_allclose(lines['bayes'][1:], [4, 3, 0, 0, 0], atol=1e-9)  # d − C
  noisy = cells.get_config('gru', 'noisy', 'zero')
  assert measure._exact_baseline('bayes', noisy, 6) == pytest.approx(0.268, abs=2e-4)
  logistic = cells.get_config('gru', 'logistic', 'zero')
  assert measure.exact_baseline_losses(logistic) == {}


def _row(rate, held_out, folder):
  row = {'optimizer.learning_rate': rate, 'eval_risk': held_out, 'num_params': 7}
  rest = {'eval_risk_stderr': 0.5, 'step': 10, 'wall_time': 3.0, 'workdir': folder}
  return row | rest


def test_the_learning_rate_is_chosen_on_held_out_prompts(tmp_path):
  rates = [(0.1, 1.0), (0.1, 2.0), (0.2, 2.0), (0.2, 2.0), (0.3, None), (0.3, 0.0)]
  rows = [_row(rate, risk, tmp_path / str(i)) for i, (rate, risk) in enumerate(rates)]
  assert training._at_best_rate(rows, 2) == rows[:2]
  assert training._at_best_rate(rows[1:], 2) == rows[2:4]  # a seed of 0.1 diverged
  assert training._at_best_rate(rows[1:2], 2) == []


def test_a_cell_says_whether_its_loss_still_falls(tmp_path):
  for risks, falls in (
    ({5: 9.0, 9: 3.0, 10: 2.0}, True),  # by 1, with an error of 0.5
    ({5: 9.0, 9: 2.4, 10: 2.0}, False),
    ({9: 1.0, 10: 2.0}, False),  # it rises
    ({10: 2.0}, False),  # not known
  ):
    lines = [
      json.dumps({'step': step, 'eval_risk': risk, 'loss': 1.0, 'wall_time': 1.0})
      for step, risk in risks.items()
    ]
    (tmp_path / 'metrics.jsonl').write_text('\n'.join(lines) + '\n')
    assert training._still_falls([_row(0.1, risks[10], tmp_path)]) is falls, risks


def test_what_was_measured_is_kept_with_its_config(tmp_path):
  config = cells.get_config('gru', 'linear', 'zero')
  path, calls = tmp_path / 'new' / 'losses.npz', []

  def kept():
    found = measure.kept(path, config, lambda: calls.append(0) or {'a': np.arange(3.0)})
    np.testing.assert_array_equal(found['a'], np.arange(3.0))
    return len(calls)

  assert (kept(), kept()) == (1, 1)
  config.task.context_length += 1
  assert kept() == 2
  path.write_bytes(path.read_bytes()[:100])  # damaged
  assert kept() == 3
  assert [file.name for file in path.parent.iterdir()] == ['losses.npz']


def _tiny(model, task, guess, context_length):
  config = cells.get_config(model, task, guess, context_length or 3)
  config.task.num_features = 2
  config.train.batch_size, config.train.log_every = 8, 2
  config.eval.num_batches = 2
  config.mesh.data = 1
  return config


_GRID = Grid(
  [
    Cell('mlp', 'linear', 'zero'),
    Cell('mlp', 'linear', 'residual'),
    Cell('multi_head_lsa', 'nowhere', None),
  ],
  num_seeds=2,
  learning_rates=(0.01, 0.02),
  num_steps=4,
)


def _few_baselines(patch, kind):
  every = kind.baselines
  few = lambda task: {name: every(task)[name] for name in ('zero', 'bayes')}  # noqa: E731
  patch.setattr(kind, 'baselines', few)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """The folder and the results of a small atlas."""
  folder = tmp_path_factory.mktemp('atlas')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(measure, 'NUM_PROMPTS', 64)
    # What is trained here does not matter, only that it is measured.
    fake_program.patch(patch, orbax=True)
    _few_baselines(patch, zoo.tasks.LinearRegression)
    yield folder, atlas.run(_GRID, _tiny, folder, 'python -m launch.atlas --seeds=2')


@pytest.fixture
def no_report(monkeypatch):
  """Draws no picture, where only the results are looked at."""
  monkeypatch.setattr(report, 'write', lambda *given: None)


def _losses(found, cell):
  result = found[cell]
  assert isinstance(result, Result)
  return result.losses


def cell_of(model, guess, losses, **changes):
  """A result of one seed with the same loss at every number of examples."""
  losses = np.repeat(np.asarray(losses, np.float64)[None, :, None], 3, axis=2)
  result = _result(losses, {'zero': [[9.0] * 3] * 2, 'bayes': [[5.0, 1.0, 1.0]] * 2})
  return result._replace(cell=Cell(model, 'prior', guess), **changes)


def test_a_guess_is_compared_with_the_guess_zero():
  zero, other = cell_of('gru', 'zero', [4, 8]), cell_of('gru', 'residual', [3, 6])
  lsa, yq_lsa = cell_of('lsa', None, [2, 2]), cell_of('yq_lsa', None, [1, 1])
  alone = cell_of('lstm', 'residual', [1, 1])
  first, second = results_.changes([other, zero, yq_lsa, alone, lsa])
  assert (first.result, first.reference) == (other, zero)
  assert first.label == 'guess: residual'
  assert first.loss == (-1.5, -math.inf, math.inf)  # one seed has no interval
  assert first.share == (-0.25, -math.inf, math.inf)
  assert (second.result, second.reference) == (yq_lsa, lsa)
  assert second.label == 'guess: linear'
  row = ['gru,prior,residual', '6.0000', '-1.5000 (one seed)', '-25.0 (one seed)']
  assert results_.changes_table([first]).rows == [row]
  found = {one.cell: one for one in (zero, other)}
  assert '-25.0 (one seed)' in atlas.table(found)
  (_, written) = csv.DictReader(results_.to_csv(found).splitlines())
  assert (written['minus_guess_0'], written['minus_guess_0_low']) == ('-1.5', '')


def test_the_lowest_known_risk_of_linear_attention_is_found():
  lowest = [
    measure.lowest_known(cells.get_config(model, 'prior', None, 10))
    for model in ('yq_lsa', 'lsa')
  ]
  assert lowest[0] == pytest.approx(5 * 6 / 16)  # docs/theory.md, section 3
  # The search over one angle; w* has the norm √20.
  one_head = isotropic_head_limit(5, 10, 1, math.sqrt(20))
  assert lowest[1] == pytest.approx(one_head, rel=1e-6)
  config = cells.get_config('yq_lsa', 'quadratic_prior', None)
  assert measure.lowest_known(config) is None


def test_models_are_drawn_by_the_context_length_of_training():
  lengths = {'lengths': (0, 2, 4)}
  results = []
  for c, factor in ((2, 1), (4, 0.5)):
    for model, guess, losses, lowest in (
      ('lsa', None, [4, 8], 5.0),
      ('yq_lsa', None, [3, 6], 4.0),
      ('gru', 'zero', [4, 8], None),
      ('gru', 'residual', [2, 2], None),
    ):
      one = cell_of(model, guess, factor * np.array(losses), **lengths)
      cell = one.cell._replace(context_length=c)
      lowest = lowest and factor * lowest
      results.append(one._replace(cell=cell, context_length=c, lowest_known=lowest))
  figures = report._figures(results)
  assert {'contexts_prior', 'guess_prior_c2', 'losses_prior_c4'} <= figures.keys()
  drawing = pictures.contexts(results[::-1])
  losses, _, ratios, gru_ratios = drawing.axes
  lines = [line.get_ydata() for line in losses.get_lines()]
  for lowest in ([5.0, 2.5], [4.0, 2.0]):
    assert any(np.array_equal(line, lowest) for line in lines)
  for axes, label, share in (
    (ratios, 'yq_lsa', 0.75),
    (gru_ratios, 'guess: residual', 1 / 3),
  ):
    (drawn,) = [line for line in axes.get_lines() if line.get_label() == label]
    drawn = np.asarray(drawn.get_ydata(), np.float64)
    np.testing.assert_allclose(drawn, [share, share])
  exact = [line.get_ydata() for line in ratios.get_lines()]
  assert any(np.array_equal(line, [0.8, 0.8]) for line in exact)


def test_what_came_out_is_written(trained):
  folder, found = trained
  with (folder / 'atlas.csv').open() as file:
    first, second, third = csv.DictReader(file)
  result = found[_GRID.cells[0]]
  assert float(first['loss']) == result.loss.mean
  assert float(first['loss_after_3']) == result.loss.mean
  assert first['loss_after_6'] == ''
  assert second['guess'] == 'residual'
  assert third['reason'].startswith("unknown task 'nowhere'")
  names = 'atlas', 'guess_linear', 'losses_linear', 'curves_linear'
  page = (folder / 'report.html').read_text()
  for name in names:
    assert (folder / f'{name}.png').read_bytes().startswith(b'\x89PNG')
    assert f'id="{name}"' in page
  command = (
    'python -m launch.atlas --seeds=2 --models=mlp --tasks=linear --guesses=zero'
  )
  assert command in page
  longer = result._replace(cell=result.cell._replace(context_length=4))
  assert report._command('x', longer).endswith(' --context_lengths=4 --out=runs/cell')
  assert longer.cell.name == 'mlp,linear,zero,4'
  text = atlas.table(found)
  assert 'mlp,linear,residual' in text
  assert "multi_head_lsa,nowhere: unknown task 'nowhere'" in text


def test_losses_are_those_of_the_saved_models(trained):
  folder, found = trained
  result = found[_GRID.cells[0]]
  assert result.lengths == (0, 1, 3, 4, 6)
  path = folder / 'cells' / 'mlp,linear,zero' / 'points'
  rate = f'seed=1,optimizer.learning_rate={result.learning_rate}'
  saved = zoo.load(path / rate)
  task = zoo.tasks.LinearRegression(2, 6)  # its prompts are twice as long
  expected = curve(saved.model, task, 64, lengths=[0, 3])
  np.testing.assert_allclose(
    result.losses[1].mean(axis=0)[[0, 2]], expected.mean, rtol=1e-6
  )
  assert np.isnan(result.losses[:, :, 3:]).all()  # an MLP has places for three examples
  bayes = result.baselines['bayes'].mean(axis=0)
  assert bayes[result.trained] < 1e-6


def test_finished_cells_are_not_trained_again(trained, monkeypatch, no_report):
  folder, found = trained
  for name in ('_train_stacked', '_train_alone'):
    monkeypatch.setattr(f'zoo.training.sweeps.{name}', None)
  monkeypatch.setattr(measure, 'model_losses', None)
  again = atlas.run(_GRID, _tiny, folder, '')
  assert again is not None
  for cell in _GRID.cells[:2]:
    np.testing.assert_array_equal(_losses(again, cell), _losses(found, cell))


def test_a_learning_rate_that_diverges_is_left_out(tmp_path, trained, no_report):
  cell = Cell('mlp', 'linear', 'zero')

  def with_sgd(*fields):
    config = _tiny(*fields)
    config.optimizer.name = 'sgd'
    return config

  def train(rates, out):
    grid = training.Grid([cell], 2, rates, 4)
    found = atlas.run(grid, with_sgd, out, 'command')
    assert found is not None
    return found[cell]

  found = train((1e30, 0.01), tmp_path / 'one')
  assert isinstance(found, Result)
  assert found.learning_rate == 0.01
  reason = train((1e30,), tmp_path / 'none')
  assert reason == 'a seed stopped being finite at each learning rate'


@pytest.mark.slow
def test_in_a_bucket_are_the_same_files(trained, bucket):
  folder, found = trained
  grid = _GRID._replace(cells=_GRID.cells[:1])
  again = atlas.run(grid, _tiny, bucket, 'python -m launch.atlas --seeds=2')
  assert again is not None
  (cell,) = again
  np.testing.assert_array_equal(_losses(again, cell), _losses(found, cell))
  names = names_below(workdir_path(bucket))
  assert {'atlas.csv', 'report.html', 'atlas.png', 'atlas.svg'} < {*names}
  points = {path.name for path in (folder / 'cells' / cell.name / 'points').iterdir()}
  assert {name.split('/')[3] for name in names if '/points/' in name} == points


@pytest.mark.slow
def test_every_cell_has_a_config():
  for name, scale in cells.scales().items():
    for task, model in itertools.product(scale.guesses, scale.models):
      for guess in scale.guesses[task] if cells.has_guess(model) else [None]:
        config = cells.get_config(model, task, guess, scale=name)
        assert config.train.num_steps == scale.num_steps


@pytest.mark.parametrize(
  'task', mostly_full(['quadratic'], ['relu_network', 'sinusoid'])
)
def test_no_linear_guess_is_near_an_even_prior_mean(task):
  """E yx = 0: docs/beyond_linear.md says that w·x is of no use there."""
  config = cells.get_config('gru', f'{task}_prior', 'zero')
  prompt = build_task(config).sample(jax.random.key(0), 20_000)
  products = np.asarray(prompt.y_query[:, None] * prompt.x_query)
  errors = products.std(axis=0) / np.sqrt(len(products))
  assert np.all(np.abs(products.mean(axis=0)) <= 4 * errors)


@pytest.mark.slow
@pytest.mark.parametrize('model', mostly_full(['deep_set'], cells.list_models()))
def test_every_config_is_valid(model):
  """With each task and guess for a laptop, and with one of each at the full scale."""
  sizes = cells.scales()['laptop']
  for task, guesses in sizes.guesses.items():
    for guess in guesses if cells.has_guess(model) else [None]:
      zoo.training.validate(cells.get_config(model, task, guess))
  guess = 'residual' if cells.has_guess(model) else None
  zoo.training.validate(cells.get_config(model, 'prior', guess, scale='full'))


def test_the_full_scale_has_the_sizes_of_the_field():
  config = cells.get_config('softmax', 'prior', 'residual', scale='full')
  model = config.model
  assert (model.num_layers, model.width, model.num_heads) == (12, 256, 8)
  assert (config.task.num_features, config.task.context_length) == (20, 40)
  config = cells.get_config('softmax', 'prior', 'residual', 7, 'full')
  assert (config.task.num_features, config.task.context_length) == (20, 7)


@pytest.mark.parametrize(
  'task', mostly_full(['logistic'], ['quadratic', 'relu_network', 'sinusoid'])
)
def test_a_prior_has_a_mean_and_its_control_has_none(task):
  """In the mean over prompts of the labels, or probabilities, at given features."""
  x = np.random.default_rng(0).uniform(0.5, 2, (4, 5))
  for name, is_zero in ((task, True), (f'{task}_prior', False)):
    made: Any = build_task(cells.get_config('gru', name, 'zero'))
    functions = jax.vmap(made.sample_function)(
      jax.random.split(jax.random.key(0), 10_000)
    )
    at = jax.numpy.asarray(x[:, : made.num_features], 'float32')
    values = np.asarray(jax.vmap(made.evaluate, (0, None))(functions, at))
    means = values.mean(axis=0) - (0.5 if task == 'logistic' else 0)
    errors = values.std(axis=0) / np.sqrt(len(values))
    assert np.all((np.abs(means) <= 4 * errors) == is_zero), name


def test_what_is_unknown_is_named():
  unknown: list[Any] = [('gpt5', 'linear'), ('gru', 'poker'), ('gru', 'linear', 'wild')]
  for names in unknown:
    with pytest.raises(UserError, match=f'unknown .* {names[-1]!r}|gpt5|poker'):
      cells.get_config(*names)


def test_what_guesses_change_is_drawn_in_percent():
  results = [
    cell_of(model, guess, losses)
    for model, guess, losses in (
      ('gru', 'zero', [4, 8]),
      ('gru', 'residual', [2, 2]),
      ('lsa', None, [4, 4]),
      ('yq_lsa', None, [1, 1]),
    )
  ]
  other = [one._replace(cell=one.cell._replace(task='linear')) for one in results[:2]]
  figures = report._figures(results + other)
  assert {'guesses', 'guess_prior', 'guess_linear'} <= figures.keys()
  panels = pictures.shares(results_.changes(results + other)).axes
  drawn = [
    {
      drawn.get_label(): [*map(float, drawn[0].get_xdata())]
      for drawn in axes.containers
    }
    for axes in panels
  ]
  residual, linear = pytest.approx([-200 / 3]), pytest.approx([-75.0])
  assert drawn[0] == {'guess: residual': residual, 'guess: linear': linear}
  assert drawn[1] == {'guess: residual': residual}
