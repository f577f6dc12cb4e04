"""Rows of an atlas, made up."""

from studies.atlas import (
  AtlasRow,
  results,
)


def make_row(model, losses, guess='zero', task='prior', **changes):
  losses = tuple(map(float, losses))
  curve = {'lengths': (0, 2, 4, 8), 'by_length': (9.0, 5.0, losses[0], losses[0])}
  return AtlasRow(model, task, guess, 4, losses=losses, **curve, **changes)


def rows_of_all_kinds():
  """Two tasks, models with and without guesses, of several budgets; and baselines."""
  rows = []
  for task in ('prior', 'linear'):
    rows += [
      make_row('bayes', [1.0], '', task, known=results.EXACT),
      make_row('zero', [9.0], '', task, known=results.SAMPLED),
    ]
    for model, guess, late in (
      ('gru', 'zero', [3, 4, 5]),
      ('gru', 'residual', [2, 2.5, 3.5]),
      ('softmax', 'zero', [2, 2.1, 2.3]),
      ('softmax', 'residual', [2.1, 1.8, 2.2]),
    ):
      for budget, factor in ((1e8, 2), (1e9, 1)):
        losses = [factor * loss for loss in late]
        of = {'budget': budget, 'steps': int(budget / 1e6)}
        of['training_operations'] = budget
        rows.append(make_row(model, losses, guess, task, weights=25_000, **of))
    rows.append(make_row('lsa', [6.0], '', task, known=results.LOWEST))
  reason = 'it predicts one number'
  lost = AtlasRow('ltb', 'linear', '', 4, known=results.NOTHING, reason=reason)
  return [*rows, lost]
