"""Fully sharded training: the same numbers, split as far as they go."""

import re
import shutil

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import zoo
from tests.compare import assert_close
from tests.marks import FULL
from tests.training.runs import saved_arrays, small_config
from tests.training.test_step import Run
from zoo.core import registry
from zoo.sharding import warn_of_unsplit
from zoo.training import train, validate


def fsdp(data, model, name='multi_head_lsa', **changes):
  return small_config(
    name, mesh__data=data, mesh__model=model, mesh__fsdp=True, **changes
  )


# Meshes, and heads of multi_head_lsa with e = 4. Sixteen heads are split over all eight
# devices, twelve over `model` alone, and their rows over `data`. Of the axes of
# [5, 4, 4] none divides by 8. Of prompts in two parts heads are computed one by one, or
# through their learning rule; in one part statistics are used.
MESHES = [
  ((2, 4), 16, 2),
  pytest.param((2, 4), 12, 2, marks=FULL),
  pytest.param((8, 1), 5, 1, marks=FULL),
]


@pytest.mark.slow
@pytest.mark.parametrize(('mesh', 'heads', 'parts'), MESHES)
def test_the_trajectory_is_the_same_up_to_the_order_of_sums(mesh, heads, parts):
  changes = {'model__num_heads': heads, 'train__num_parts': parts}
  plain = Run(small_config('multi_head_lsa', **changes))
  split = Run(fsdp(*mesh, **changes))
  for run in (plain, split):
    metrics = run.train(0, 12)
  assert_same_state(split, plain)
  assert metrics['finite']


def assert_same_state(split, plain):
  leaves = map(jax.tree.leaves, (split.state, plain.state))
  for leaf, other in zip(*leaves, strict=True):
    # Adam divides by the root of a second moment that 12 steps of float32 sums, each
    # good to about 1e-7, have made: what is left of seven digits is four or more.
    assert_close(leaf, other, relative=1e-4)


# 6 heads on 2 devices, and their 4 rows on 4; 16 heads on all 8 devices.
SHARES = [
  (6, (6, 4, 4), P(('model',), ('data',), None), (3, 1, 4)),
  pytest.param(
    *(16, (16, 4, 4), P(('model', 'data'), None, None), (2, 4, 4)), marks=FULL
  ),
]


@pytest.mark.slow
@pytest.mark.parametrize(('num_heads', 'shape', 'spec', 'share'), SHARES)
def test_no_device_keeps_more_than_its_share(num_heads, shape, spec, share):
  run = Run(fsdp(4, 2, model__num_heads=num_heads))
  heads = [leaf for leaf in jax.tree.leaves(run.state) if leaf.ndim == 3]
  assert len(heads) == 3 * 4  # the four matrices, and Adam's two moments of each
  run.train(0, 1)
  for leaf in [leaf for leaf in jax.tree.leaves(run.state) if leaf.ndim == 3]:
    assert leaf.shape == shape
    assert leaf.sharding.spec == spec
    assert leaf.addressable_shards[0].data.shape == share


# What a device of four rows draws a part of, and gathers over the two of its row: four
# prompts of the sixteen, of four examples with three features.
PROMPTS = {'4,4,3', '4,4', '4,3', '4'}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'changes'),
  [('multi_head_lsa', {}), ('transformer', {'model__num_layers': 1})],
)
def test_weights_are_not_gathered(name, changes):
  """Neither for being flat between steps, nor where kernels are split along outputs."""
  fields = {'model__num_heads': 4, 'mesh__data': 4, 'mesh__model': 2}
  text = Run(small_config(name, **fields, **changes)).compiled_text()
  assert ' all-reduce(' in text
  # Statistics of prompts stay where they are drawn.
  assert gathered(text) <= (PROMPTS if name == 'transformer' else set())


@pytest.mark.slow
def test_heads_are_computed_where_they_are_kept():
  """On one device alone, and not by each that shares the batch with it."""
  text = Run(fsdp(2, 4, model__num_heads=8, train__num_parts=2)).compiled_text()
  # A device keeps one of 8 heads. Two devices share a part of the batch of 8 prompts:
  # of the heads it gathers b_h and A_h, and none of the weights, whose products these
  # are.
  heads = {'2,4', '2,4,4'}
  prompts = {'8,4,3', '8,4', '8,3', '8'}
  assert heads <= gathered(text) <= heads | prompts
  assert len(re.findall(r'= f32\[2,4,4\]\S* all-gather\(', text)) == 1
  # A_h = W_Kᵀ W_Q is a product of one head, forward and twice backward, never of two.
  products = [line for line in text.splitlines() if 'hij,hik->hjk' in line]
  assert products
  for line in products:
    assert not re.search(r'= f32\[[2-9],4,4\]\S* (dot|fusion)\(', line)


def gathered(text):
  """The shapes of the results of all gathers in a program."""
  results = re.findall(r'= (.*?) all-gather(?:-start)?\(', text)
  return {
    shape for result in results for shape in re.findall(r'f32\[([\d,]*)\]', result)
  }


@pytest.mark.slow
@pytest.mark.full
def test_checkpoints_do_not_tell_that_the_state_was_split(tmp_path):
  """Saved fully sharded and resumed on one device."""
  plain = small_config('multi_head_lsa', model__num_heads=6)
  split = fsdp(4, 2, model__num_heads=6)
  summary = train(plain, tmp_path / 'plain')
  assert summary is not None
  saved = saved_arrays(tmp_path / 'plain', 12)
  workdir = tmp_path / 'run'
  train(split, workdir)
  # As if it had been killed after its checkpoint of step 8.
  shutil.rmtree(workdir / 'checkpoints' / '12')
  (workdir / 'summary.json').unlink()
  resumed = train(plain, workdir)
  assert resumed is not None
  assert resumed['exact_risk'] == pytest.approx(summary['exact_risk'], rel=1e-5)
  arrays = saved_arrays(workdir, 12)
  assert arrays.keys() == saved.keys()
  for path, array in arrays.items():
    assert_close(array, saved[path], relative=1e-4)  # as above
  assert zoo.load(workdir).model.w_k.shape == (6, 4, 4)


class OfOddShapes(nnx.Module):
  """An architecture that says nothing of sharding."""

  def __init__(self, num_features, *, rngs):
    init = jax.random.normal(rngs.params(), (7, num_features, 16, 8))
    self.w, self.scale = nnx.Param(init), nnx.Param(jnp.ones(()))

  def __call__(self, prompt):
    seen = jnp.einsum('bci,bc->bi', prompt.x, prompt.y)
    products = jnp.einsum('bi,bj->bij', prompt.x_query, seen)
    w = self.w[..., :3, :]
    return self.scale * jnp.einsum('bij,aijk->b', products, w)


def test_what_data_does_not_divide_stays_whole_with_a_warning(caplog):
  run = Run(fsdp(8, 1, model__num_heads=6))
  assert {leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(run.state)} == {
    True
  }
  experiment = run.training.experiment
  weights = experiment.abstract['model']
  warn_of_unsplit(experiment.config, experiment.mesh, weights)
  assert 'the data axis of the mesh, which is 8, divides no axis' in caplog.text


def test_any_architecture_is_split(monkeypatch):
  monkeypatch.setitem(registry.MODELS, 'of_odd_shapes', OfOddShapes)
  runs = []
  for config in (small_config(), fsdp(8, 1)):
    with config.unlocked():
      config.model = {'name': 'of_odd_shapes'}
    validate(config)
    runs.append(Run(config))
    runs[-1].train(0, 3)
  plain, split = runs
  (weights,) = (leaf for leaf in jax.tree.leaves(split.state['model']) if leaf.ndim)
  assert weights.shape == (7, 3, 16, 8)
  assert weights.addressable_shards[0].data.shape == (7, 3, 2, 8)
  assert_same_state(split, plain)
