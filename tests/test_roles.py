"""The role of each weight of a model, as modules say it or as its shape does."""

import jax.numpy as jnp
import pytest
from flax import nnx

import zoo
from tests.compare import refuses
from tests.marks import mostly_slow
from zoo.core.roles import parameter_roles


class Own(nnx.Module):
  """A user's module that says nothing."""

  def __init__(self):
    rngs = nnx.Rngs(0)
    self.layer, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.LayerNorm(4, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
    self.words = nnx.Embed(5, 4, rngs=rngs)
    self.matrix, self.log_decay = (
      nnx.Param(jnp.ones((3, 4))),
      nnx.Param(jnp.ones((3, 4))),
    )
    self.guess, self.number = nnx.Param(jnp.ones((5, 1))), nnx.Param(jnp.ones(()))
    self.count = nnx.Variable(jnp.ones((3, 4)))  # is not trained


class Holder(nnx.Module):
  """One that says something of itself and of what it holds."""

  roles = {'read': 'embedding', 'parts/*/kernel': 'vector', 'parts/1': 'hidden'}

  def __init__(self, rngs):
    self.read = nnx.Linear(3, 4, rngs=rngs)
    self.parts = nnx.List([nnx.Linear(3, 4, rngs=rngs) for _ in range(2)])
    self.own = nnx.Param(jnp.ones((3, 4)))


def test_without_a_word_of_the_model_shapes_and_names_say_the_roles():
  assert parameter_roles(Own()) == {
    **{
      f'attention/{name}/kernel': 'hidden' for name in ('key', 'out', 'query', 'value')
    },
    # Two axes in three of them.
    **{f'attention/{name}/bias': 'vector' for name in ('key', 'out', 'query', 'value')},
    'guess': 'vector',
    'layer/bias': 'vector',
    'layer/kernel': 'hidden',
    'log_decay': 'vector',
    'matrix': 'hidden',
    'norm/bias': 'vector',
    'norm/scale': 'vector',
    'number': 'vector',
    'words/embedding': 'embedding',
  }


def test_a_module_says_the_roles_of_all_below_it_and_the_outermost_counts():
  roles = parameter_roles(Holder(nnx.Rngs(0)))
  assert roles == {
    'own': 'hidden',
    'parts/0/bias': 'vector',
    'parts/0/kernel': 'vector',
    'parts/1/bias': 'vector',  # no matrix, whatever is said of what it is in
    'parts/1/kernel': 'hidden',
    'read/bias': 'vector',
    'read/kernel': 'embedding',
  }

  class Outer(nnx.Module):
    roles = {'inner/read': 'hidden'}

    def __init__(self):
      self.inner = Holder(nnx.Rngs(0))

  outer = parameter_roles(Outer())
  assert outer.pop('inner/read/kernel') == 'hidden'
  assert outer.pop('inner/read/bias') == 'vector'
  assert outer == {
    f'inner/{path}': role for path, role in roles.items() if 'read' not in path
  }


def test_a_role_that_there_is_not_is_refused():
  class Wrong(nnx.Module):
    roles = {'w': 'matrix'}

    def __init__(self):
      self.w = nnx.Param(jnp.ones((3, 4)))

  with refuses("Wrong.roles says 'matrix' for w", 'hidden, embedding, vector'):
    parameter_roles(Wrong())

  class Other(nnx.Module):
    def __init__(self):
      self.w = nnx.Param(jnp.ones((3, 4)))

    def roles(self):
      """Means something else."""

  assert parameter_roles(Other()) == {'w': 'hidden'}


@pytest.mark.parametrize(
  'mixer', mostly_slow(['softmax', 'delta', 'mamba'], zoo.list_mixers())
)
def test_the_roles_of_a_mixer_do_not_depend_on_its_size(mixer):
  roles_by_size = []
  for width, num_heads in (16, 1), (32, 2):  # of rank 1, and of 2
    model = nnx.eval_shape(
      lambda width=width, num_heads=num_heads: zoo.create_model(
        'transformer',
        num_features=3,
        context_length=4,
        num_layers=1,
        width=width,
        num_heads=num_heads,
        mixer=mixer,
        guess='linear',
        rngs=nnx.Rngs(0),
      )
    )
    roles_by_size.append(parameter_roles(model))
  assert roles_by_size[0] == roles_by_size[1]
  assert roles_by_size[0]['guess/weights'] == 'vector'
  assert roles_by_size[0]['read_out/kernel'] == 'embedding'


@pytest.mark.parametrize('kind', ['linear', 'network', 'residual', 'residual_network'])
def test_every_weight_of_a_guess_is_a_vector(kind):
  model = nnx.eval_shape(
    lambda: zoo.create_model('deep_set', num_features=3, guess=kind, rngs=nnx.Rngs(0))
  )
  roles = parameter_roles(model)
  guess = {role for path, role in roles.items() if path.startswith('guess/')}
  assert guess == {'vector'}
