"""Scores of a model and of other methods over random splits of a table."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sklearn
from absl import logging
from jaxtyping import Float, Int, Shaped
from scipy import stats
from sklearn.metrics import log_loss, r2_score, roc_auc_score
from sklearn.model_selection import train_test_split

import zoo
from studies.cell_table import complete
from studies.runner import run_in
from studies.tabular.methods import MOST_OF_PROCESS, PROCESS, methods
from studies.tabular.tables import CLASSIFICATION, REGRESSION, Table
from zoo.config.read import to_json
from zoo.core.distributions import has_distribution
from zoo.core.errors import UserError, shown
from zoo.measure.calibrate import ConfidenceBin, PitBin, PitHistogram, Reliability
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.ratio import ratio
from zoo.measure.table import Rows, WithRows
from zoo.storage.rows import weights_digest

MODEL = 'model'  # the name of the model in cells
# The name of the Gaussian process in a pipeline.
_PROCESS_STEP = 'gaussianprocessregressor'
_NUM_BINS = 10
_NUM_RESAMPLED = 500


class NumberScores(NamedTuple):
  """How well a method predicts numbers.

  Attributes:
    method: The name of the method.
    r2: The coefficient of determination: 1 for perfect predictions, 0 for predictions
      that are all the mean.
    rmse: The root mean squared error, in the units of the target.
    nll: The mean of −log p of the observed numbers, in nats. None for a method that
      predicts no distribution.
  """

  method: str
  r2: Estimate
  rmse: Estimate
  nll: Estimate | None


class ClassScores(NamedTuple):
  """How well a method predicts classes.

  Attributes:
    method: The name of the method.
    accuracy: The share of rows whose class is the one predicted as most probable.
    log_loss: The mean of −log p of the observed classes, in nats.
    auc: The area under the ROC curve. None for more than two classes.
  """

  method: str
  accuracy: Estimate
  log_loss: Estimate
  auc: Estimate | None


@dataclasses.dataclass(frozen=True)
class Comparison(WithRows):
  """A model compared with other methods on one table.

  Printed, it is a table in which ± is half of a 95 % t interval over the splits.

  Attributes:
    rows: A row of scores for each method: `NumberScores` or `ClassScores`. The first
      row is the model's.
    calibration: The calibration of the model. None if it predicts no distribution.
    note: Sentences on the splits and on missing values, for a reader of the table.
  """

  rows: Rows[Any]
  calibration: PitHistogram | Reliability | None
  note: str

  def __str__(self) -> str:
    return f'{self.rows}\n\n{self.note}'


@dataclasses.dataclass(frozen=True)
class Trial:
  """A model and a table, whose rows are split at random again and again.

  Attributes:
    table: The table.
    model: The path of the model.
    num_splits: The number of splits, whose `random_state` is 0, 1, …
    share: The rows of the context: their number if it is an integer, or else their
      share of the table.
  """

  table: Table
  model: str
  num_splits: int
  share: int | float

  @property
  def num_rows(self) -> int:
    """The number of rows of the context."""
    if isinstance(self.share, int):
      return self.share
    return math.floor(self.share * len(self.table.y))

  @property
  def name(self) -> str:
    """The name of the model in the table of scores."""
    return os.path.basename(os.path.normpath(self.model))


def compare(trial: Trial, out: str | os.PathLike[str]) -> Comparison | None:
  """Compares a model with the methods of scikit-learn over random splits of a table.

  Each split and method has a row in `rows.jsonl`, so the same call resumes after an
  interruption. Rows of another model, another table, another number of rows or another
  version are computed again.

  Args:
    trial: The model, the table and the splits.
    out: The folder of `rows.jsonl`.

  Returns:
    The scores. None after SIGTERM.

  Raises:
    UserError: If there are too few rows for the context or for the queries, if the
      model does not take the table, or if the path has no model. Nothing is written
      then. Also if predictions are infinite or NaN.
    KeyboardInterrupt: After Ctrl-C; the same call then resumes.
  """
  _check_rows(trial)
  saved = zoo.load(trial.model)
  estimator = _fitted(trial, saved)
  names = [MODEL, *_methods(trial, 0)]
  cells = {
    f'split={split}/{name}': _parameters(trial, saved, split, name)
    for split in range(trial.num_splits)
    for name in names
  }

  def compute(cell: str) -> dict[str, Any]:
    split, name = cells[cell]['split'], cells[cell]['method']
    method = estimator if name == MODEL else _methods(trial, split)[name]
    with warnings.catch_warnings(action='ignore'):  # methods warn of convergence
      return _scores(trial, method, split)

  with run_in(out) as (folder, interruption):
    rows = complete(cells, [*cells], compute, folder, interruption, again=True)
    by_method = {
      name: [rows[f'split={split}/{name}'] for split in range(trial.num_splits)]
      for name in names
    }
    return _comparison(trial, by_method)
  return None


def _methods(trial: Trial, split: int) -> dict[str, Any]:
  table = trial.table
  return methods(table.kind, trial.num_rows, table.x.shape[1], split)


def _check_rows(trial: Trial) -> None:
  """Raises UserError for too few rows in the context or too few queries."""
  table, c = trial.table, trial.num_rows
  n = len(table.y)
  least = max(2, len(table.classes)) if table.kind == CLASSIFICATION else 2
  if not least <= c <= n - least:
    of_classes = f' for {least} classes' if least > 2 else ''
    if n < 2 * least:
      raise UserError(
        f'the table {table.name} has {n} rows; it needs {2 * least}{of_classes}, half '
        'of them to be tested'
      )
    raise UserError(
      f'--rows gives {c} of the {n} rows of {table.name} to the context; it must be '
      f'from {least} to {n - least}{of_classes}'
    )


def _fitted(trial: Trial, saved: Any) -> Any:
  """Returns the model as an estimator, fitted to rows of the table with all classes.

  This shows before the work begins whether the model takes the table. Each warning is
  logged once.

  Raises:
    UserError: If the model does not take the table.
  """
  table = trial.table
  reads_missing = getattr(saved.model, 'reads_missing', False) is True
  if table.incomplete and not reads_missing:
    raise UserError(
      f'{shown(table.incomplete)} miss values, which {type(saved.model).__name__} does '
      'not read; fill them in, or give a model with reads_missing = True, such as '
      'checkpoints/tabular'
    )
  kind = zoo.Regressor if table.kind == REGRESSION else zoo.Classifier
  estimator = kind(saved.model, saved.task)
  seen, _ = _split(trial, 0)
  if table.kind == CLASSIFICATION:
    seen = np.union1d(seen, np.unique(table.y, return_index=True)[1])
  with warnings.catch_warnings(record=True, action='always') as said:
    estimator.fit(table.x[seen], table.y[seen])
  for text in dict.fromkeys(str(warning.message) for warning in said):
    logging.warning('%s', text)
  return estimator


def _split(
  trial: Trial, split: int
) -> tuple[Int[np.ndarray, ' c'], Int[np.ndarray, ' q']]:
  """Returns the indices of the rows of the context, and those of the queries."""
  table = trial.table
  parts: Any = train_test_split(
    np.arange(len(table.y)),
    train_size=trial.num_rows,
    random_state=split,
    stratify=table.y if table.kind == CLASSIFICATION else None,
  )
  return parts[0], parts[1]


def _parameters(trial: Trial, saved: Any, split: int, name: str) -> dict[str, Any]:
  """Returns all that a row depends on, beside the version of the library."""
  return {
    'table': trial.table.digest,
    'rows': trial.num_rows,
    'split': split,
    'method': name,
    'scikit-learn': sklearn.__version__,
    'model': _digest(saved) if name == MODEL else None,
  }


def _digest(saved: Any) -> str:
  """Returns a digest of the config and the weights of a model."""
  return weights_digest(saved.model, to_json(saved.config))


def _scores(trial: Trial, method: Any, split: int) -> dict[str, Any]:
  """Returns the row of a method on a split."""
  table = trial.table
  seen, asked = _split(trial, split)
  y = table.y
  if table.kind == REGRESSION:
    # Scores do not depend on an offset, which would cost sums of squares their digits.
    y = y - y[seen].mean()
  method.fit(table.x[seen], y[seen])
  x, y = table.x[asked], y[asked]
  if table.kind == REGRESSION:
    return _number_scores(method, x, y)
  return _class_scores(method, x, y, table.classes)


def _number_scores(
  method: Any, x: Float[np.ndarray, 'q d'], y: Float[np.ndarray, ' q']
) -> dict[str, Any]:
  nll, below = None, None
  if isinstance(method, zoo.Regressor):
    mean = method.predict(x)
    if has_distribution(method.model_):
      label = method.predict_distribution(x)
      nll, below = -label.log_prob(y), label.cdf(y)
  elif _PROCESS_STEP in method.named_steps:
    mean, std = method.predict(x, return_std=True)
    nll, below = -stats.norm.logpdf(y, mean, std), stats.norm.cdf(y, mean, std)
  else:
    mean = method.predict(x)
  _check_finite(method, mean)
  row: dict[str, Any] = {
    'r2': float(r2_score(y, mean)),
    'rmse': float(np.sqrt(np.mean(np.square(y - mean)))),
  }
  if nll is not None and below is not None:
    row['nll'] = float(np.mean(nll, dtype=np.float64))
    row['bins'] = np.bincount(_bins_of(below), minlength=_NUM_BINS).tolist()
  return row


def _class_scores(
  method: Any,
  x: Float[np.ndarray, 'q d'],
  y: Shaped[np.ndarray, ' q'],
  classes: Sequence[Any],
) -> dict[str, Any]:
  p = np.zeros((len(x), len(classes)))
  # The context may lack a class that has few rows.
  p[:, np.searchsorted(classes, method.classes_)] = method.predict_proba(x)
  _check_finite(method, p)
  labels = np.searchsorted(classes, y)
  best = p.argmax(axis=1)
  correct, confidence = best == labels, p[np.arange(len(p)), best]
  row: dict[str, Any] = {
    'accuracy': float(correct.mean()),
    'log_loss': float(log_loss(labels, p, labels=np.arange(len(classes)))),
  }
  if len(classes) == 2:
    row['auc'] = float(roc_auc_score(labels, p[:, 1]))
  bins = _bins_of(confidence)
  counts, sums, hits = (
    np.bincount(bins, weights, minlength=_NUM_BINS).tolist()
    for weights in (None, confidence, correct)
  )
  row['bins'] = [*zip(counts, sums, hits, strict=True)]
  return row


def _check_finite(method: Any, predictions: np.ndarray) -> None:
  """Raises UserError for predictions that are infinite or NaN."""
  if not np.isfinite(predictions).all():
    name = type(getattr(method, 'model_', method)).__name__
    raise UserError(f'{name} gives predictions that are not finite on this table')


def _bins_of(shares: Float[np.ndarray, ' q']) -> np.ndarray:
  """Returns the index of the bin of each share, which is from 0 to 1."""
  return np.clip((shares * _NUM_BINS).astype(int), 0, _NUM_BINS - 1)


def _comparison(
  trial: Trial, by_method: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Comparison:
  """Returns the estimates over the splits."""
  kind: Any = NumberScores if trial.table.kind == REGRESSION else ClassScores
  rows = Rows[Any]()
  for name, splits in by_method.items():
    scores = {
      field: estimate([split[field] for split in splits])
      if field in splits[0]
      else None
      for field in kind._fields[1:]
    }
    rows.append(kind(trial.name if name == MODEL else name, **scores))
  bins = [split.get('bins') for split in by_method[MODEL]]
  calibration = None
  if None not in bins:
    calibrated = _pit_histogram if kind is NumberScores else _reliability
    calibration = calibrated(np.array(bins, np.float64))
  return Comparison(rows, calibration, _note(trial))


def _pit_histogram(bins: Float[np.ndarray, 's n']) -> PitHistogram:
  """Returns the share of each bin, with standard errors over the splits.

  The p value is that of a χ² test of the counts, averaged over the splits. The test is
  conservative, since the mean over splits varies less than the counts of one split.
  """
  shares = bins / bins.sum(axis=1, keepdims=True)
  edges = np.arange(_NUM_BINS + 1) / _NUM_BINS
  found = tuple(
    PitBin(float(edges[i]), float(edges[i + 1]), estimate(shares[:, i]))
    for i in range(_NUM_BINS)
  )
  p_value = float(stats.chisquare(bins.mean(axis=0)).pvalue)
  return PitHistogram(found, p_value, int(bins.sum()))


def _reliability(bins: Float[np.ndarray, 's n 3']) -> Reliability:
  """Returns the confidence and accuracy of each bin, with errors over the splits.

  `null` is computed for the queries of one split, since splits share rows.
  """
  counts, sums, hits = np.moveaxis(bins, -1, 0)
  edges, found = np.arange(_NUM_BINS + 1) / _NUM_BINS, []
  for i in range(_NUM_BINS):
    number = counts[:, i].sum()
    found.append(
      ConfidenceBin(
        float(edges[i]),
        float(edges[i + 1]),
        int(number),
        float(sums[:, i].sum() / number) if number else math.nan,
        ratio(hits[:, i], counts[:, i]) if number else None,
      )
    )
  queries = counts.sum(axis=1, keepdims=True)
  gaps = (hits - sums) / queries
  of_split = np.round(counts.mean(axis=0)).astype(int)
  confidence = np.array(
    [0.0 if math.isnan(each.confidence) else each.confidence for each in found]
  )
  drawn = np.random.default_rng(0).binomial(
    of_split, confidence, (_NUM_RESAMPLED, _NUM_BINS)
  )
  errors = np.abs(drawn - of_split * confidence).sum(axis=1) / of_split.sum()
  return Reliability(
    bins=tuple(found),
    ece=float(np.abs(gaps.mean(axis=0)).sum()),
    null=float(np.quantile(errors, 0.95)),
    num_prompts=int(counts.sum()),
  )


def _note(trial: Trial) -> str:
  """Returns sentences on the splits, missing values and methods that are left out."""
  table = trial.table
  of_classes = ', stratified by class' if table.kind == CLASSIFICATION else ''
  note = (
    f'Mean of {trial.num_splits} random splits (random_state 0 to '
    f'{trial.num_splits - 1}{of_classes}) into {trial.num_rows:,} rows of the context '
    f'and {len(table.y) - trial.num_rows:,} queries. ± is half of a 95 % interval over '
    'the splits.'
  )
  if table.incomplete:
    number = f'{len(table.incomplete)} of {len(table.columns)} features'
    note += (
      f' Values are missing in {number}: '
      f'{trial.name} reads them as missing, and the other methods get the mean of the '
      'column.'
    )
  if table.kind == REGRESSION and trial.num_rows > MOST_OF_PROCESS:
    note += f' The {PROCESS} is left out above {MOST_OF_PROCESS:,} rows.'
  return note
