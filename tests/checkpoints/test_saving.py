"""What `zoo.save` writes, `zoo.load` makes again: the same model, or an error."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.checkpoints.states import disk
from tests.checkpoints.test_loading import assert_same
from tests.compare import refuses
from tests.compiled import built, predict
from tests.marks import mostly_full
from tests.settings import config_for, general, isotropic
from zoo.theory import constructions


class Scaled(nnx.Module):
  """Predicts w·x_q / temperature, with hyper-parameters that are no attributes."""

  def __init__(
    self, num_features, layers=(), temperature=1.0, activation=jnp.tanh, *, rngs
  ):
    self._temperature = temperature
    self._activation = activation
    self.w = nnx.Param(jax.random.normal(rngs.params(), (num_features,)))
    self.extra = nnx.List(
      nnx.Param(jnp.full(layer['size'], layer['value'])) for layer in layers
    )

  def __call__(self, prompt):
    total = prompt.x_query @ self.w[...] / self._temperature
    return self._activation(total + sum(v[...].sum() for v in self.extra))


TASK = isotropic(3, 4)
LAYERS = [{'size': 2, 'value': 0.25}, {'size': 1, 'value': 0.5}]


def KEYS():
  return {'num_features': 3, 'rngs': nnx.Rngs(0)}


@pytest.mark.slow
def test_a_hyper_parameter_that_is_no_attribute_comes_back(register, tmp_path):
  register('scaled')(Scaled)
  built_by_hand = Scaled(3, LAYERS, temperature=10, rngs=nnx.Rngs(0))
  created = zoo.create_model(
    'scaled', num_features=3, layers=LAYERS, temperature=10, rngs=nnx.Rngs(0)
  )
  config = config_for('scaled', layers=LAYERS, temperature=10)
  zoo.save(built_by_hand, tmp_path / 'given', config)
  loaded = zoo.load(tmp_path / 'given').model
  models: list[Any] = [created, nnx.merge(*nnx.split(built_by_hand)), loaded]
  for count, model in enumerate(models):
    zoo.save(model, tmp_path / str(count), config)
    saved = zoo.load(tmp_path / str(count))
    assert saved.model._temperature == 10
    wanted = {'name': 'scaled', 'layers': LAYERS, 'temperature': 10}
    assert saved.config.model.to_dict() == wanted
    assert_same(saved.model, model)
    prompt = TASK.sample(jax.random.key(1), 5)
    np.testing.assert_array_equal(predict(saved.model, prompt), predict(model, prompt))


GUESS = {'initial_guess': np.array([0.3, -0.5, 1.0]), 'initial_bias': 0.4}


def test_models_and_tasks_of_several_kinds_come_back(tmp_path):
  task = general(noise_std=0.7)
  fields = {
    'context_length': 5,
    'prior_mean': 1.0,
    'prior_covariance': task.prior_covariance,
    'feature_covariance': task.feature_covariance,
    'noise_std': 0.7,
  }
  of_heads: dict[str, Any] = {'num_heads': 2, **GUESS}
  models = [
    (constructions.gd_transformer(np.array([0.5, -1.0, 2.0]), 0.3), 'yq_lsa', {}),
    (
      built(lambda: zoo.create_model('multi_head_lsa', **of_heads, **KEYS())),
      'multi_head_lsa',
      of_heads,
    ),
  ]
  for count, (model, name, arguments) in enumerate(models):
    config = config_for(name, task=fields, **arguments)
    zoo.save(model, tmp_path / 'deep' / str(count), config, step=count)
    saved = zoo.load(tmp_path / 'deep' / str(count))
    assert type(saved.model) is type(model)
    assert saved.step == count
    assert saved.task == task
    assert_same(saved.model, model)
  saved = zoo.load(tmp_path / 'deep' / '1')
  assert saved.config.model.to_dict() == {
    'name': 'multi_head_lsa',
    'num_heads': 2,
    'initial_guess': GUESS['initial_guess'].tolist(),
    'initial_bias': 0.4,
  }
  zoo.save(saved.model, tmp_path / 'again', saved.config, step=7)
  assert zoo.load(tmp_path / 'again').config == saved.config
  assert not [path for path in tmp_path.iterdir() if path.name not in ('deep', 'again')]


def test_a_model_that_would_predict_otherwise_is_refused(register, tmp_path):
  register('scaled')(Scaled)
  changed = Scaled(3, rngs=nnx.Rngs(0))
  changed._temperature = 10
  with refuses('Scaled', 'predicts', 'the config must have the arguments that'):
    zoo.save(changed, tmp_path / 'model', config_for('scaled'))
  changed.w[...] = 0.0 * changed.w[...]  # it predicts 0 at any temperature
  with refuses('Scaled', 'predicts', 'the config must have the arguments that'):
    zoo.save(changed, tmp_path / 'model', config_for('scaled'))
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_model_with_random_keys_comes_back_and_the_save_draws_none(
  register, tmp_path
):
  @register('dropping')
  class Dropping(Scaled):
    def __init__(self, num_features, rate=0.5, *, rngs):
      super().__init__(num_features, rngs=rngs)
      self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, prompt):
      return self.dropout(super().__call__(prompt))

  model = Dropping(3, rngs=nnx.Rngs(0))
  zoo.save(model, tmp_path / 'model', config_for('dropping'))
  prompt = TASK.sample(jax.random.key(1), 8)
  saved = zoo.load(tmp_path / 'model').model
  for _ in range(2):  # each call draws anew
    np.testing.assert_array_equal(saved(prompt), model(prompt))


def test_what_json_cannot_hold_is_named(register, tmp_path):
  register('scaled')(Scaled)
  model = Scaled(3, activation=jnp.sin, rngs=nnx.Rngs(0))
  with refuses('config.model.activation is', 'config.json cannot hold'):
    zoo.save(model, tmp_path / 'model', config_for('scaled', activation=jnp.sin))
  layers = [{'size': 1, 'value': 1.0, 'a.b': 1}]  # in a list, names are left alone
  model = Scaled(3, layers, rngs=nnx.Rngs(0))
  zoo.save(model, tmp_path / 'model', config_for('scaled', layers=layers))

  @register('with_options')
  class WithOptions(Scaled):
    def __init__(self, num_features, options, *, rngs):
      super().__init__(num_features, rngs=rngs)

  with refuses("config.model.options has the key 'a.b'"):
    model = WithOptions(3, {'a.b': 1}, rngs=nnx.Rngs(0))
    config = config_for('with_options', options={'a.b': 1})
    zoo.save(model, tmp_path / 'dotted', config)
  assert [path.name for path in tmp_path.iterdir()] == ['model']


def test_what_cannot_be_saved_is_named(tmp_path, unchecked):
  model = constructions.gd_transformer(np.zeros(3), 0.3)
  config = config_for('yq_lsa')
  with refuses("the config has no field 'task.name'; it is needed"):
    zoo.save(model, tmp_path / 'new', {'model': config['model']})
  task: Any = TASK
  with refuses('the config is a LinearRegression; it must be a ConfigDict'):
    zoo.save(model, tmp_path / 'new', task)
  with refuses('exists already'):
    (tmp_path / 'file').touch()
    zoo.save(model, tmp_path, config)
  with refuses("config.model: unknown model 'unknown'"):
    zoo.save(model, tmp_path / 'new', config_for('unknown'))
  with refuses('the config makes another model', 'w_k (1, 5, 5)', 'w_k (1, 4, 4)'):
    zoo.save(model, tmp_path / 'new', config_for('yq_lsa', d=4))
  with refuses('step is -1'):
    zoo.save(model, tmp_path / 'new', config, step=-1)
  with refuses('the home folder of an unknown user'):
    zoo.save(model, '~nosuchuser/model', config)
  with refuses('the name longlong', '… has 4000 bytes; a file or a folder may have at'):
    zoo.save(model, tmp_path / ('long' * 1000), config)
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize(
  'options',
  mostly_full(
    ['size=24k'], ['size=4k', 'size=10m,nr_inodes=4', 'size=10m,nr_inodes=15']
  ),
)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, capfd, options):
  model = constructions.gd_transformer(np.zeros(3), 0.3)
  with disk(tmp_path / 'disk', options) as folder:
    with pytest.raises(zoo.RunError, match='cannot be written') as info:
      zoo.save(model, folder / 'model', config_for('yq_lsa'))
    assert '\n' not in str(info.value)
    assert 'No space left' in str(info.value)
    assert not list(folder.iterdir())
    assert capfd.readouterr() == ('', '')


def test_a_folder_of_save_tells_nothing_of_the_machine(tmp_path):
  model = constructions.gd_transformer(np.zeros(3), 0.3)
  zoo.save(model, tmp_path / 'model', config_for('yq_lsa'))
  for path in (tmp_path / 'model').rglob('*'):
    if path.is_file():
      assert str(tmp_path).encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_weights_of_another_precision_keep_it_where_jax_has_it(tmp_path):
  # Not by jax.enable_x64: Orbax reads in threads of its own, which it does not reach.
  jax.config.update('jax_enable_x64', True)
  try:
    model = constructions.gd_transformer(np.zeros(3), 0.3)
    assert model.w_p.dtype == jnp.float64
    zoo.save(model, tmp_path / 'model', config_for('yq_lsa'))
    assert_same(zoo.load(tmp_path / 'model').model, model)
  finally:
    jax.config.update('jax_enable_x64', False)
  assert zoo.load(tmp_path / 'model').model.w_p.dtype == jnp.float32
