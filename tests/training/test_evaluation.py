"""The evaluation of models on prompts that are held out from training."""

import jax
import numpy as np
import pytest

from tests.training.runs import small_config
from zoo.training.trainer import make_program, on_mesh


def mean_losses(program):
  """The mean loss of each model at its first step, on each held-out batch."""
  with on_mesh(program.mesh, program.configs[0]):
    moments, _ = jax.device_get(program.evaluate(program.init(), sampled=True))
  return moments['model'][0]


def test_every_held_out_batch_has_prompts_of_its_own():
  means = mean_losses(make_program([small_config(eval__num_batches=4)]))
  assert means.shape == (1, 4)
  assert len(np.unique(means)) == 4


@pytest.mark.parametrize('name', ['yq_lsa', 'deep_set'])
def test_held_out_prompts_depend_on_the_seed_of_the_evaluation_alone(name):
  """Models of other seeds, alone or side by side, are measured on the same prompts."""
  first = make_program([small_config(name)])
  with on_mesh(first.mesh, first.configs[0]):
    state = first.init()

  def mean(program, state):
    with on_mesh(program.mesh, program.configs[0]):
      moments, _ = jax.device_get(program.evaluate(state, sampled=True))
    return moments['model'][0].mean(axis=1)

  (expected,) = mean(first, state)
  (same,) = mean(make_program([small_config(name, seed=1)]), state)
  (other,) = mean(make_program([small_config(name, eval__seed=1)]), state)
  assert same == expected
  assert abs(other - expected) > 1e-3 * expected
  both = make_program([small_config(name, seed=seed) for seed in (0, 1)])
  stacked = jax.tree.map(lambda leaf: jax.numpy.stack([leaf, leaf]), state)
  one, two = mean(both, stacked)
  assert one == pytest.approx(two, rel=1e-6)


def test_models_side_by_side_keep_their_order():
  """Those with prompts of the same kind are measured together."""
  lengths = 4, 5, 5, 4
  configs = [
    small_config(objective__name='exact', task__context_length=c) for c in lengths
  ]
  means = mean_losses(make_program(configs)).mean(axis=1)
  # Equal models on the same prompts, up to sums in another order.
  assert means == pytest.approx(means[[3, 2, 1, 0]], rel=1e-5)
  assert abs(means[0] - means[1]) > 1e-3 * means[0]
