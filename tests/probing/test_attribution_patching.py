"""Patching to the first order, where it is exact and where it is not."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.compare import refuses
from tests.marks import mostly_full
from tests.probing.models import sample
from tests.settings import isotropic
from zoo import probing
from zoo.probing import Tap

# Shares are None only where a test says so.
effects: Any = probing.effects


class _Sums(nnx.Module):
  """A weighted sum of labels by heads and tokens, and the query times the labels."""

  def __init__(self, d):
    self.weights = nnx.Param(
      np.random.default_rng(0).normal(size=(3, 2, d)).astype('f')
    )
    self.read_tap = Tap(axes='b n h d', kind='read')
    self.labels_tap = Tap(axes='b n')

  def __call__(self, prompt):
    y = self.labels_tap(prompt.y)
    read = jnp.einsum('bn,bnd,nhd->bnhd', y, prompt.x, self.weights[...])
    return (
      self.read_tap(read).sum(axis=(1, 2, 3)) + y.sum(axis=1) * prompt.x_query[:, 0]
    )


def _setting():
  task = isotropic(2, 3)
  clean = sample(task, jax.random.key(0), 400)
  return _Sums(2), task, clean, task.redraw(jax.random.key(1), clean, 'inputs')


@pytest.mark.parametrize(
  ('method', 'apart'),
  mostly_full(
    [('gradient', False)],
    ['gradient', 'integrated'],
    [False, True],
    slow=[('integrated', True)],
  ),
)
def test_a_metric_that_is_linear_in_the_site_has_the_shares_of_patching(method, apart):
  model, task, clean, corrupt = _setting()
  sign = jnp.sign(model(corrupt) - model(clean))  # so that there is a gap
  kinds = None if method == 'gradient' else ['recovered']
  tables = [
    effects(
      *(model, task, clean, corrupt),
      metric=lambda prediction, prompt: sign * prediction,
      kinds=kinds,
      heads=apart,
      tokens=apart,
      method=how,
    )
    for how in ('patch', method)
  ]
  exact, linear = tables
  assert len(exact.rows) == (3 * 2 + 3 if apart else 2)
  assert linear.gap.mean == pytest.approx(exact.gap.mean, rel=1e-5)
  said = f'approximated by method={method!r}; ± is the error over prompts alone'
  assert str(linear).startswith(said)
  assert str(exact).startswith('gap ')
  for row, expected in zip(linear.rows, exact.rows, strict=True):
    assert row[:3] == expected[:3]
    # Shares are sums of some 40 differences in float32, which may cancel.
    for share, truth in zip(row[3:7], expected[3:7], strict=True):
      if truth is None:
        assert share is None
      else:
        assert share.mean == pytest.approx(truth.mean, rel=1e-4, abs=1e-5)
        assert share.half == pytest.approx(truth.half, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_steps_make_a_squared_loss_exact_where_all_goes_through_the_site():
  model, task, clean, corrupt = _setting()
  # Labels that the model predicts, so that corrupt prompts have the larger loss.
  clean = dataclasses.replace(clean, y_query=model(clean))
  pair = model, task, clean, corrupt
  shares = {
    method: effects(*pair, ['labels'], kinds=['recovered'], method=method)
    .rows[0]
    .recovered.mean
    for method in ('patch', 'gradient', 'integrated')
  }
  assert shares['patch'] == pytest.approx(1, abs=1e-5)
  # The slope is linear along the path, and the mean at midpoints is its integral.
  assert shares['integrated'] == pytest.approx(1, abs=1e-4)
  assert abs(shares['gradient'] - 1) > 0.1


def test_what_a_method_cannot_do_is_refused():
  model, task, clean, corrupt = _setting()
  with refuses("unknown method 'gradients'", 'gradient'):
    effects(model, task, clean, corrupt, method='gradients')
  with refuses("the kind is 'zero'", "'recovered' alone"):
    effects(model, task, clean, corrupt, kinds=['zero'], method='integrated')
