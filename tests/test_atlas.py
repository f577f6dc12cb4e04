"""The atlas chooses learning rates on held-out prompts, and tells what cells lack."""

import csv

import pytest

from configs import atlas as cells
from zoo import atlas
from zoo.atlas import Cell, Result
from zoo.errors import UserError

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')


def _row(rate, held_out, loss, **baselines):
  def measured(mean):
    return {'mean': [mean], 'standard_error': [0.3]}

  comparison = {'model': measured(loss)}
  comparison |= {name: measured(mean) for name, mean in baselines.items()}
  return {
    'optimizer.learning_rate': rate,
    'eval_risk': held_out,
    'num_params': 7,
    'comparison': comparison,
  }


def test_the_learning_rate_is_chosen_on_held_out_prompts():
  """Not by the losses that the table has, which would favour luck."""
  rows = [
    _row(0.1, 1.0, 5.0, zero=9.0, gd=2.0),
    _row(0.1, 2.0, 7.0, zero=8.0, gd=4.0),
    _row(0.2, 2.0, 0.0, zero=9.0, gd=2.0),
    _row(0.2, 2.0, 0.0, zero=8.0, gd=4.0),
    _row(0.3, None, 0.0),  # it diverged
    _row(0.3, 0.0, 0.0),
  ]
  cell = Cell('gru', 'linear', 'zero')
  found = atlas._result(cell, rows)
  assert isinstance(found, Result)
  assert found.learning_rate == 0.1
  assert found.losses == [5.0, 7.0]
  assert found.loss == 6.0
  assert found.stderr == pytest.approx(0.3 / 2**0.5)
  assert found.baselines == {'zero': 8.5, 'gd': 3.0}


def _tiny(model, task, guess):
  config = cells.get_config(model, task, guess)
  config.task.num_features, config.task.context_length = 2, 3
  config.train.batch_size, config.train.log_every = 8, 2
  config.eval.num_batches, config.eval.num_compared = 2, 16
  return config


def test_cells_are_trained_once_and_written(tmp_path, monkeypatch):
  grid = [
    Cell('deep_set', 'linear', 'linear'),
    Cell('multi_head_lsa', 'nowhere', None),
  ]
  arguments = grid, _tiny, tmp_path, 2, (0.01, 0.02), 4
  found = atlas.run(*arguments)
  assert found is not None
  result = found[grid[0]]
  assert isinstance(result, Result)
  assert len(result.losses) == 2
  assert 'bayes' in result.baselines
  assert 'nowhere' in str(found[grid[1]])
  with (tmp_path / 'atlas.csv').open() as file:
    first, second = csv.DictReader(file)
  assert float(first['loss']) == result.loss
  assert second['reason'].startswith("unknown task 'nowhere'")
  assert (tmp_path / 'atlas_linear.png').read_bytes().startswith(b'\x89PNG')
  text = atlas.table(found)
  assert 'deep_set,linear,linear' in text
  assert "multi_head_lsa,nowhere: unknown task 'nowhere'" in text
  monkeypatch.setattr('zoo.training.sweeps._train_stacked', None)  # nothing is trained
  assert atlas.run(*arguments) == found


@pytest.mark.parametrize('task', cells.list_tasks())
def test_every_cell_has_a_config(task):
  for model in cells.list_models():
    guesses = cells.GUESSES if cells.has_guess(model) else [None]
    for guess in guesses:
      config = cells.get_config(model, task, guess)
      assert config.train.num_steps == 3000


def test_what_is_unknown_is_named():
  for names in (('gpt5', 'linear'), ('gru', 'poker'), ('gru', 'linear', 'wild')):
    with pytest.raises(UserError, match=f'unknown .* {names[-1]!r}|gpt5|poker'):
      cells.get_config(*names)
