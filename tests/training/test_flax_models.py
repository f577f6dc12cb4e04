"""What Flax's own loop trains must train here, or be refused with nothing written.

The models are those of tests/flax_models.py, in the forms that the guides of Flax show.
"""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import zoo
from tests.built import task_of
from tests.compare import refuses
from tests.flax_models import FORMS, REFUSED, register_all
from tests.marks import mostly_full
from tests.training.runs import assert_same_bits, saved_arrays, small_config
from tests.training.test_by_hand import assert_close, config_of, loop_of, parameters
from zoo.core.draws import INIT_STREAM, stream_of
from zoo.core.roles import parameter_roles, shared_paths
from zoo.training import grid, sweep

# Arrays that are not trained, and a shared weight; with --full, all.
_SLOW = ['Tied']


@pytest.fixture(autouse=True)
def registered(register):
  """The models are registered for these tests alone."""
  register_all(register)


def _model(name):
  cls = FORMS[name] if name in FORMS else REFUSED[name][0]
  return cls(task_of(config_of(name)).num_features, rngs=nnx.Rngs(0))


@pytest.mark.parametrize('name', mostly_full([], FORMS, slow=_SLOW))
def test_a_model_of_flax_is_checked_saved_loaded_and_exported(name, tmp_path):
  config, model = config_of(name), _model(name)
  task = task_of(config)
  zoo.check_model(model, task)
  zoo.save(model, tmp_path / 'saved', config)
  zoo.export(model, tmp_path / 'model.safetensors', config)
  prompt = task.sample(jax.random.key(1), 4)
  expected = zoo.predict(model, prompt)
  for path in tmp_path / 'saved', tmp_path / 'model.safetensors':
    np.testing.assert_array_equal(zoo.predict(zoo.load(path).model, prompt), expected)


@pytest.mark.usefixtures('shared_programs')
@pytest.mark.parametrize('name', mostly_full(['KeepsRngs'], FORMS, slow=_SLOW))
def test_a_model_of_flax_is_trained_stopped_and_goes_on(name, tmp_path):
  """To the weights of Flax's own loop, and to the bits of a run that never stopped."""
  config = config_of(name)
  for event in zoo.training_run(config, tmp_path / 'stopped'):
    if event.step == 4:
      break
  zoo.train(config, tmp_path / 'stopped')
  zoo.train(config, tmp_path / 'whole')
  whole = saved_arrays(tmp_path / 'whole', 8)
  assert_same_bits(saved_arrays(tmp_path / 'stopped', 8), whole)
  trained = parameters(zoo.load(tmp_path / 'whole').model)
  if name != 'OtherTypes':  # bfloat16 rounds a step of 5e-3 to 4e-3 or 8e-3
    assert_close(trained, loop_of(config, optax.adam(5e-3)).weights[-1])


@pytest.mark.slow
@pytest.mark.parametrize('name', mostly_full(['KeepsRngs'], FORMS))
def test_models_of_flax_are_trained_side_by_side(name, tmp_path):
  config = config_of(name)
  rows = sweep(config, grid({'seed': [0, 1]}), tmp_path)
  assert rows is not None
  for row in rows if name != 'OtherTypes' else ():
    config.seed = row['seed']
    expected = loop_of(config, optax.adam(5e-3)).weights[-1]
    assert_close(parameters(zoo.load(row['workdir']).model), expected)


@pytest.mark.parametrize(
  'name', mostly_full(['SameNames'], REFUSED, slow=['DropoutOn'])
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(name, tmp_path):
  _, reason, by = REFUSED[name]
  config = config_of(name)
  with refuses(reason):
    zoo.train(config, tmp_path / 'run')
  with refuses(reason):
    sweep(config, grid({'seed': [0, 1]}), tmp_path / 'sweep')
  if by == 'save':
    with refuses(reason):
      zoo.save(_model(name), tmp_path / 'saved', config)
  else:
    with refuses(reason):
      zoo.check_model(_model(name), task_of(config))
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.full
def test_layers_that_are_computed_again_train_as_others(tmp_path):
  """The field `model.remat` of transformers, alone and side by side.

  With SGD, which moves a weight by its gradient: Adam would divide small gradients, and
  the rounding errors in them, by their size.
  """
  fields = {
    **{'model__num_layers': 1, 'model__width': 8, 'optimizer__name': 'sgd'},
    **{'train__num_steps': 4, 'eval__num_batches': 0},
  }
  weights = []
  for remat in False, True:
    config = small_config('transformer', model__remat=remat, **fields)
    zoo.train(config, tmp_path / f'{remat}')
    weights.append(parameters(zoo.load(tmp_path / f'{remat}').model))
  assert_close(*weights)
  rows = sweep(config, grid({'seed': [0, 1]}), tmp_path / 'sweep')
  assert rows is not None
  assert_close(parameters(zoo.load(rows[0]['workdir']).model), weights[0])


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('name', FORMS)
def test_models_of_flax_are_trained_in_parts_of_a_batch(name, tmp_path):
  """Flax's own loop takes the gradient of the whole batch, which is the same mean."""
  config = config_of(name, train__num_parts=2)
  zoo.train(config, tmp_path)
  if name != 'OtherTypes':
    trained = parameters(zoo.load(tmp_path).model)
    assert_close(trained, loop_of(config_of(name), optax.adam(5e-3)).weights[-1])


@pytest.mark.slow
@pytest.mark.full
def test_weights_of_bfloat16_are_trained_in_parts_of_a_batch(tmp_path):
  """The mean of the gradients of the parts is that of the whole batch.

  A gradient is rounded to 8 bits, 0.4 %, and SGD moves a weight by it.
  """
  weights = []
  for parts in 1, 2:
    config = config_of(
      'OtherTypes', train__num_parts=parts, optimizer__name='sgd', train__num_steps=2
    )
    zoo.train(config, tmp_path / f'{parts}')
    weights.append(parameters(zoo.load(tmp_path / f'{parts}').model))
  for path, weight in weights[0].items():
    np.testing.assert_allclose(
      weight.astype('f'), weights[1][path].astype('f'), rtol=0.01, atol=1e-3
    )


@pytest.mark.parametrize('name', mostly_full([], ['SharedLayer'], slow=['Tied']))
def test_a_shared_weight_is_named_by_each_of_its_paths(name, tmp_path):
  """A pattern that names its second path freezes it, as one of the first does."""
  path = {'Tied': 'write/linear/kernel', 'SharedLayer': 'second'}[name]
  config = config_of(name, optimizer__scales={path: 0.0}, train__num_steps=2)
  zoo.train(config, tmp_path)
  before = parameters(_started(config))
  after = parameters(zoo.load(tmp_path).model)
  kept = {'Tied': 'read/linear/kernel', 'SharedLayer': 'first/linear/kernel'}[name]
  np.testing.assert_array_equal(after[kept], before[kept])
  assert np.all(after['read_in/kernel'] != before['read_in/kernel'])


def _started(config):
  rngs = nnx.Rngs(stream_of(config.seed, INIT_STREAM))
  return FORMS[config.model.name](task_of(config).num_features, rngs=rngs)


def test_a_shared_weight_gets_the_role_of_its_second_path():
  class Says(nnx.Module):
    roles = {'*': 'embedding'}

    def __init__(self, kernel):
      self.kernel = kernel

  class Model(nnx.Module):
    def __init__(self, rngs):
      self.first = nnx.Linear(3, 3, rngs=rngs)
      self.second = Says(self.first.kernel)

  model = Model(nnx.Rngs(0))
  assert parameter_roles(model)['first/kernel'] == 'embedding'
  assert shared_paths(model) == {'first/kernel': ('first/kernel', 'second/kernel')}

  class Other(Model):
    roles = {'first/*': 'hidden'}

  # Of two roles the one at the first path counts.
  assert parameter_roles(Other(nnx.Rngs(0)))['first/kernel'] == 'hidden'
