"""Training on images of a data set of TensorFlow: it learns, and resumes."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import configs
import zoo
from tests.compare import refuses
from tests.compiled import predict
from tests.digits import write_digits
from tests.training.runs import assert_same_bits, saved_arrays
from zoo.config.read import read
from zoo.training import train
from zoo.training.experiment import validate
from zoo.training.sweeps.points import build_points, config_of_all


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  return write_digits(tmp_path_factory.mktemp('tfds'))


def _config(data_dir) -> Any:
  config: Any = configs.get_config('transformer', 'smoke,task=labelled_clusters')
  config.task.update(
    source='tfds',
    dataset='digits',
    data_dir=data_dir,
    image_size=8,
    context_length=4,
    num_classes=6,
    num_labels=2,
    held_out_classes=4,
  )
  config.model.update(num_layers=1, width=16, read_in='convolutional')
  config.objective.positions = 'query'
  config.train.num_steps, config.train.batch_size, config.mesh.data = 6, 32, 1
  config.train.log_every, config.checkpoint.every = 2, 2
  config.eval.num_batches, config.eval.num_compared = 0, 0
  return config


@pytest.mark.slow
@pytest.mark.usefixtures('shared_programs')
@pytest.mark.full
def test_a_run_resumes_and_its_checkpoint_has_the_name_of_its_data(
  data_dir, tmp_path, stop_at
):
  config, folder = _config(data_dir), pathlib.Path(data_dir)
  stop_at(None)
  train(config, tmp_path / 'whole')
  stop_at(4)
  assert train(config, tmp_path / 'cut') is None
  stop_at(None)
  assert train(config, tmp_path / 'cut') is not None
  whole = saved_arrays(tmp_path / 'whole', 6)
  assert_same_bits(saved_arrays(tmp_path / 'cut', 6), whole)

  saved: Any = zoo.load(tmp_path / 'cut')
  assert (saved.task.data_dir, saved.task.dataset) == (data_dir, 'digits:1.0.0')
  # The images, of 460 kB, are nowhere in it.
  sizes = [file.stat().st_size for file in (tmp_path / 'cut').rglob('*')]
  assert max(sizes) < saved.task._images.pixels.nbytes / 2

  moved = folder.rename(tmp_path / 'moved')
  with refuses('the data set digits:1.0.0 is not in', 'tfds build digits:1.0.0'):
    zoo.load(tmp_path / 'cut')
  moved.rename(folder)


@pytest.mark.slow
def test_points_of_a_sweep_have_the_full_path_and_the_version_as_runs_do(
  data_dir, monkeypatch
):
  monkeypatch.chdir(data_dir)
  points = [{'task.dataset': 'digits', 'seed': seed} for seed in (0, 1)]
  points += [{'task.data_dir': '.'}]
  config = read(_config(data_dir))
  experiments = build_points(config, points)
  configs = [experiment.config for experiment in experiments]
  for whole in (*configs, config_of_all(config, points, experiments[0].task)):
    assert whole.task.arguments['dataset'] == 'digits:1.0.0'
    assert whole.task.arguments['data_dir'] == data_dir
    assert validate(whole) == whole  # as `train` changes it


@pytest.mark.slow
@pytest.mark.full
def test_six_classes_are_learned_in_weights(data_dir, tmp_path):
  """Their labels are learned, and the context is not read.

  Without bursts it says nothing of the query's label.
  """
  config = _config(data_dir)
  config.train.num_steps = config.train.log_every = config.checkpoint.every = 200
  config.task.burstiness, config.optimizer.learning_rate = 0, 5e-3
  train(config, tmp_path / 'run')
  saved: Any = zoo.load(tmp_path / 'run')
  accuracies = {}
  for test, task in {'training': saved.task, **saved.task.shifts()}.items():
    if not test.startswith('context'):
      prompt = task.sample(jax.random.key(7), 1024)
      right = task.accuracy(predict(saved.model, prompt), prompt.y_query)
      accuracies[test] = float(jnp.mean(right))
  assert accuracies.keys() == {'training', 'in_context', 'swapped', 'in_weights'}
  assert accuracies['training'] > 0.95
  assert accuracies['in_weights'] > 0.95
  # Chance, to five standard errors of 1024 prompts.
  assert abs(accuracies['swapped'] - 0.5) < 0.08
  assert abs(accuracies['in_context'] - 0.5) < 0.08
