"""One frozen transformer with rows in context, and methods fitted to real tables."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import numpy as np

import zoo
from studies.runner import Trainer
from studies.study import Expected, Measurement, Study, at_least, at_most
from zoo.core.errors import RunError
from zoo.tasks import LinearRegression

_CHECKPOINT = pathlib.Path(__file__).parents[2] / 'checkpoints' / 'tabular'
_SPLITS = 10
# The posterior of linear regression is known.
_LINEAR = LinearRegression(num_features=5, context_length=100, noise_std=1.0)


def measure(train: Trainer) -> Measurement:
  """Compares the kept checkpoint with other methods, and trains nothing."""
  diabetes = _scores('diabetes', 50)
  iris, wine = _scores('iris', 0.5), _scores('wine', 0.5)
  cancer = _scores('breast_cancer', 0.5)
  model, forest, boosting = 'model', 'random forest', 'gradient boosting'
  likelihood = zoo.likelihood(zoo.load(_CHECKPOINT).model, _LINEAR, 4096)[0]
  assert likelihood.kl is not None
  return Measurement(
    {
      'diabetes_r2': diabetes[model].r2.mean,
      'over_boosting': diabetes[model].r2.mean - diabetes[boosting].r2.mean,
      'iris_over_forest': iris[model].accuracy.mean - iris[forest].accuracy.mean,
      'iris_log_loss': iris[model].log_loss.mean / iris[forest].log_loss.mean,
      'wine_over_forest': wine[model].accuracy.mean - wine[forest].accuracy.mean,
      'wine_log_loss': wine[model].log_loss.mean / wine[forest].log_loss.mean,
      'cancer_auc': cancer[model].auc.mean,
      'shuffled_auc': _shuffled_auc(),
      'kl': likelihood.kl.mean,
    }
  )


def _scores(name: str, share: int | float) -> dict[str, Any]:
  """Returns the scores of the model and of each method on a table."""
  # The import is here, since scikit-learn is an extra.
  from studies.tabular.scores import Trial, compare
  from studies.tabular.tables import shipped

  trial = Trial(shipped(name), str(_CHECKPOINT), _SPLITS, share)
  with tempfile.TemporaryDirectory() as folder:
    found = compare(trial, folder)
  if found is None:
    raise RunError('stopped before the end')
  model, *others = found.rows
  return {'model': model} | {row.method: row for row in others}


def _shuffled_auc() -> float:
  """Returns the mean area under the ROC curve on breast cancer with permuted labels."""
  from studies.tabular.tables import shipped

  table, areas = shipped('breast_cancer'), []
  for seed in range(_SPLITS):
    order = np.random.default_rng(seed).permutation(len(table.y))
    y, half = table.y[order], len(table.y) // 2
    model = zoo.Classifier(_CHECKPOINT).fit(table.x[:half], y[:half])
    p = model.predict_proba(table.x[half:])[:, 1]
    positive = y[half:] == model.classes_[1]
    # The area is the share of pairs of a positive and a negative row that are in the
    # right order.
    greater = p[positive][:, None] - p[~positive][None]
    areas.append(np.mean((greater > 0) + 0.5 * (greater == 0)))
  return float(np.mean(areas))


_ASKED = 'what was asked of the checkpoint before it was trained'

HEADLINE = Study(
  name='tabular',
  statement='One seed: a small transformer of random tables predicts real ones.',
  setting=(
    'checkpoints/tabular, frozen, against scikit-learn on ten random splits of real '
    'tables: diabetes with 50 rows in the context, iris, wine and breast cancer with '
    'half of the rows; log losses as a share of that of a random forest; labels in '
    'random order; and the KL divergence from the posterior of linear regression with '
    'd = 5, C = 100 and noise of standard deviation 1, in nats.'
  ),
  source='Hollmann et al., arXiv 2207.01848',
  expected={
    'diabetes_r2': at_least(0.42, _ASKED),
    'over_boosting': at_least(0.1, _ASKED),
    'iris_over_forest': at_least(-0.01, _ASKED),
    'iris_log_loss': at_most(1, _ASKED),
    'wine_over_forest': at_least(-0.01, _ASKED),
    'wine_log_loss': at_most(1, _ASKED),
    'cancer_auc': at_least(0.985, _ASKED),
    'shuffled_auc': Expected(0.45, 0.55, 'chance, up to the spread of ten shuffles'),
    'kl': at_most(0.02, _ASKED),
  },
  minutes=1,
  measure=measure,
)
