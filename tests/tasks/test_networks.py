"""What networks, decision trees and sinusoids have in common as tasks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zoo
from tests.compare import refuses
from tests.marks import mostly_full
from zoo.measure.curves import sample_losses
from zoo.tasks import baselines as regression

_KEY = jax.random.key(5)
_TASKS = {
  'relu_network': {'num_features': 5, 'context_length': 8, 'hidden_features': 7},
  'noisy relu_network': {'num_features': 5, 'context_length': 8, 'noise_std': 0.5},
  'decision_tree': {'num_features': 5, 'context_length': 8, 'depth': 3},
  'sinusoid': {'context_length': 8},
}


def _task(name, **changes):
  return zoo.create_task(name.split()[-1], **_TASKS[name] | changes)


@pytest.mark.parametrize('name', _TASKS)
@pytest.mark.parametrize('double', [False, True])
def test_prompts_have_the_promised_shapes_and_precision(name, double):
  task = _task(name)
  with jax.enable_x64(double):
    prompt = jax.eval_shape(functools.partial(task.sample, batch_size=8), _KEY)
  d = task.num_features
  shapes = {
    field: leaf.shape for field, leaf in vars(prompt).items() if leaf is not None
  }
  expected = {'x': (8, 8, d), 'y': (8, 8), 'x_query': (8, d), 'y_query': (8,)}
  noisy = {'context_targets': (8, 8)} if 'noisy' in name else {}
  assert shapes == expected | noisy
  dtype = jnp.dtype('float64' if double else 'float32')
  assert {leaf.dtype for leaf in jax.tree.leaves(prompt)} == {dtype}


@pytest.mark.parametrize(
  ('name', 'changes', 'said'),
  [
    ('sinusoid', {'amplitude_range': (0.5, 0.1)}, 'amplitude_range is (0.5, 0.1)'),
    ('sinusoid', {'amplitude_range': (-0.1, 0.1)}, 'amplitude_range is (-0.1, 0.1)'),
    ('sinusoid', {'amplitude_range': 0.3}, 'amplitude_range is 0.3'),
    ('sinusoid', {'amplitude_range': (0, np.inf)}, 'amplitude_range holds'),
    ('sinusoid', {'phase_range': (0, 1, 2)}, 'phase_range has shape (3,)'),
    ('sinusoid', {'phase_range': (0, 7)}, 'phase_range is (0.0, 7.0)'),
    ('sinusoid', {'phase_range': 'pi'}, "phase_range is 'pi'"),
  ],
  ids=str,
)
def test_bad_input_is_refused_in_one_line(unchecked, name, changes, said):
  with refuses(said):
    _task(name, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', mostly_full(['noisy relu_network'], ['relu_network', 'sinusoid'])
)
def test_no_baseline_beats_the_first(name):
  # The kernel is the best of all predictors that are linear in the labels, as the
  # others are; the sinusoid's is Bayes. Except for OLS after about as many examples as
  # features, whose loss has no finite variance but is far above, the differences are
  # means of 1024 values: 4 of their standard errors.
  task = _task(name)
  losses = sample_losses(task.baselines(), task, 1024, 3)
  first, *others = losses
  assert first in ('kernel', 'bayes')
  for other in others:
    gap = losses[first] - losses[other]
    error = gap.std(axis=0, ddof=1) / np.sqrt(len(gap))
    assert np.all(gap.mean(axis=0) <= 4 * error), other


def test_zero_has_the_risk_of_its_formula():
  # E sin²(x + p) is 1/2 for phases over a half turn. The other tasks have known values.
  (least, most) = (0.1, 0.5)
  risk = (least**2 + least * most + most**2) / 3 / 2
  task = _task('sinusoid')
  losses = sample_losses({'': regression.Zero()}, task, 4096, 0, lengths=[8])['']
  error = losses.std(ddof=1) / np.sqrt(4096)
  assert abs(losses.mean() - risk) <= 4 * error
