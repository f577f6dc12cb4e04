"""Each architecture is trained, resumed, opened and probed like any other."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

import configs
import zoo
from tests.built import model_of, task_of
from tests.compiled import built
from tests.marks import FULL
from tests.training.runs import CONFIGS, assert_same_bits, saved_arrays, small_config
from zoo.reports.probe import summary
from zoo.training import train

pytestmark = [*FULL]

_LINEAR = 'lsa', 'multi_head_lsa', 'yq_lsa', 'ltb', 'scale'
# Images need data; tests/training/test_images.py has some. Urns have no features.
_NAMES = [name for name in CONFIGS if name not in (*_LINEAR, 'omniglot', 'strategies')]


def _small(name, **changes):
  config = small_config(name, checkpoint__every=8, **changes)
  if 'width' in config.model:
    config.model.width = 8
  return config


def _resumed(config, workdir):
  """The summary of a run that was killed after its checkpoint of step 8."""
  shutil.rmtree(workdir / 'checkpoints' / '12')
  (workdir / 'summary.json').unlink()
  return train(config, workdir)


@pytest.mark.parametrize('name', _NAMES)
def test_it_is_trained_resumed_and_opened(name, tmp_path, unchecked):
  config = _small(name, eval__num_compared=16)
  summary = train(config, tmp_path, compare=True)
  assert summary is not None
  assert summary.get('comparison') is not None
  whole = saved_arrays(tmp_path, 12)
  again = _resumed(config, tmp_path)
  assert again is not None
  assert_same_bits(saved_arrays(tmp_path, 12), whole)
  assert again['eval_risk'] == summary['eval_risk']
  saved = zoo.load(tmp_path)
  prompt = saved.task.sample(jax.random.key(0), 3)
  assert np.isfinite(saved.model(prompt)).all()
  copy = tmp_path / 'copy'
  zoo.save(saved.model, copy, saved.config)
  np.testing.assert_array_equal(zoo.load(copy).model(prompt), saved.model(prompt))


@pytest.mark.parametrize('name', _NAMES)
def test_it_is_probed(name, unchecked):
  config = _small(name)
  task = task_of(config)
  model = built(lambda: model_of(config, nnx.Rngs(0)))
  report = zoo.probing.probe(model, task, num_prompts=64)
  content = json.loads(report.to_json())
  assert content['comparison']['model']['num_prompts'] == 64
  layered = 'transformer', 'deep_lsa', 'clusters'
  assert (content['lens'] is not None) == (name in layered)
  assert ('after layer' in summary(report)) == (report.lens is not None)


def test_options_of_mixers_come_from_the_config_and_back(tmp_path):
  config = configs.get_config('transformer', 'smoke')
  with config.unlocked():
    config.model.mixer_options = {'state_size': 4}
    config.model.mixer = 'mamba2,softmax'
  config.model.width, config.model.num_layers = 8, 2
  config.train.num_steps = config.checkpoint.every = 2
  config.eval.num_batches, config.mesh.data = 0, 1
  assert train(config, tmp_path) is not None
  model = zoo.load(tmp_path).model
  first, second = (type(layer.mixer).__name__ for layer in model.layers)
  assert (first, second) == ('Mamba2', 'SoftmaxAttention')
  # Keys and queries of four features.
  assert model.layers[0].mixer.key_query.kernel.shape == (8, 8)
