"""The evaluation of models on prompts that are held out from training."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.marks import mostly_full
from tests.training.runs import small_config
from zoo.measure.intervals import estimate
from zoo.sharding import on_mesh
from zoo.training.compilation import make_training
from zoo.training.evaluation import HeldOut, evaluate, finish_evaluation
from zoo.training.experiment import build
from zoo.training.sweeps.stacking import make_many


def made(config):
  """What measures its models, to be compiled when it does."""
  return make_training(build(config))


def mean_losses(training, state=None):
  """The mean loss of each model, at its first step, on each held-out batch."""
  config = training.experiment.config
  with on_mesh(training.experiment.mesh, config):
    model = (training.init(True) if state is None else state)['model']
    measured = evaluate(config, training.evaluation, model, config.train.num_steps)
    sampled, _ = jax.device_get(measured)
  return sampled.losses['model'][0]


def test_the_error_of_a_held_out_loss_is_that_of_all_prompts():
  config = small_config(eval__num_batches=4)
  losses = np.random.default_rng(0).gamma(1.0, size=(4, 16))
  measured = losses.mean(axis=1), losses.var(axis=1)
  alone = finish_evaluation(
    made(config).evaluation, (HeldOut({'model': measured}, {}), None)
  )
  both = make_many([build(config), build(small_config(seed=1))]).evaluation
  twice = jax.tree.map(lambda array: np.stack([array, array]), measured)
  of_two = finish_evaluation(both, (HeldOut({'model': twice}, {}), None))
  wanted = dataclasses.astuple(estimate(losses))
  for risks in *alone, *of_two:
    assert risks.sampled is not None
    assert dataclasses.astuple(risks.sampled) == pytest.approx(wanted)


@pytest.mark.slow
@pytest.mark.parametrize('name', mostly_full(['yq_lsa'], ['deep_set']))
def test_held_out_prompts_depend_on_the_seed_of_the_evaluation_alone(name):
  """Models of other seeds, alone or side by side, are measured on the same prompts."""
  first = made(small_config(name))
  with on_mesh(first.experiment.mesh, first.experiment.config):
    state = first.init(True)
  expected = mean_losses(first, state).mean()
  same = mean_losses(made(small_config(name, seed=1)), state).mean()
  other = mean_losses(made(small_config(name, eval__seed=1)), state).mean()
  assert same == expected
  assert abs(other - expected) > 1e-3 * expected
  configs = [small_config(name, seed=seed) for seed in (0, 1)]
  both = make_many([build(each) for each in configs])
  stacked = jax.tree.map(lambda leaf: jax.numpy.stack([leaf, leaf]), state)
  risk, same_risk = mean_losses(both, stacked).mean(axis=1)
  assert risk == pytest.approx(same_risk, rel=1e-6)


def test_models_side_by_side_keep_their_order():
  """Those with prompts of the same kind are measured together, on other batches."""
  configs = [
    small_config(objective__name='exact', task__context_length=c, seed=seed)
    for seed, c in enumerate([4, 5, 5, 4])  # measured in the order 0, 3, 1, 2
  ]
  losses = mean_losses(make_many([build(each) for each in configs]))
  assert losses.shape == (4, 2)
  # Held-out batches have prompts of their own.
  assert np.all(abs(np.diff(losses, axis=1)) > 1e-3 * losses[:, :1])
  means = losses.mean(axis=1)
  trainings = [made(config) for config in configs]
  alone = []
  for i, of_its_kind in enumerate([0, 1, 1, 0]):  # One program measures two models.
    experiment = trainings[i].experiment
    with on_mesh(experiment.mesh, experiment.config):
      state = trainings[i].init(True)
    alone.append(mean_losses(trainings[of_its_kind], state).mean())
  # Sums in another order; the models are apart by ten times as much, or more.
  assert means == pytest.approx(alone, rel=1e-5)
  assert np.min(abs(np.diff(sorted(alone)))) > 1e-4 * max(alone)
