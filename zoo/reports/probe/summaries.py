"""A report as tables, for a terminal and for an HTML page."""

import dataclasses
import math

import numpy as np

from zoo.core.tables import Table, format_mean
from zoo.measure.comparison import table_of
from zoo.measure.intervals import Estimate
from zoo.measure.table import name_of_half
from zoo.probing.attention_heads import Head
from zoo.probing.compare import Alignment, PairedRisks, TaskShift, in_short
from zoo.probing.logit_lens import Lens
from zoo.probing.nearest.candidates import AboveBayes
from zoo.probing.nearest.guess import LearnedGuess, LinearFit
from zoo.probing.nearest.implicit import ImplicitAlgorithm
from zoo.probing.nearest.sampled import GD, GD_BETA, SampledAlgorithm
from zoo.probing.report import Report
from zoo.probing.verdicts import percent, shown_share

_LINEAR_OPTIMUM = 'optimum of the linear family'
_LEFT_OUT = 'left out of this report', 'because'
_MOST_ENTRIES = 5  # So many entries of a vector are shown.
_EXCESS = {
  'guess_mean': 'error of the mean guess',
  'guess_spread': 'variance of the corrected guess',
  'offset': 'offset that ignores the query',
  'step_size': 'step too long or too short',
  'step_shape': 'rest of the step matrix',
}


def summary(report: Report) -> str:
  """Returns the verdict and the tables of a report, as text for a terminal.

  Args:
    report: The report, from `probe`.

  Returns:
    The text, of several lines.

  Example:
    >>> task = zoo.create_task('linear_regression', num_features=2, context_length=4)
    >>> step = zoo.estimators.gradient_descent(task, 0.5, 1)
    >>> report = zoo.probing.probe(step, task, num_prompts=64, only=['risks'])
    >>> from zoo.reports.probe import summary
    >>> print(summary(report).splitlines()[0])
    Is it doing gradient descent? Unknown: its algorithm was not asked for.
  """
  parts = [opening(report)]
  for table in tables(report):
    parts.append('\n'.join(filter(None, [table.text(), table.note])))
  return '\n\n'.join(parts)


def opening(report: Report) -> str:
  """Returns the nearest algorithm, if known, and whether it is gradient descent."""
  asked = f'Is it doing gradient descent? {report.verdict}'
  return ' '.join(filter(None, [report.nearest, asked]))


def tables(report: Report) -> list[Table]:
  """Returns the tables of a report.

  The first cell of each header is the title of the table.
  """
  against = report.against
  sections = [
    report.risks and _risk_table(report.risks, 'risk', against),
    report.algorithm and _algorithm_table(report.algorithm),
    report.sampled and _nearest_table(report.sampled),
    report.baselines and _baseline_table(report.baselines),
    report.above_bayes and _above_bayes_table(report.above_bayes),
    report.guess and _guess_table(report.guess),
    report.comparison and Table(*table_of(report.comparison)),
    report.alignment and _alignment_table(report.alignment, against),
    report.heads and _head_table(report.heads),
    report.lens and _lens_table(report.lens),
    report.task_shifts and _task_shift_table(report.task_shifts, against),
    report.failures and Table([*report.failures.items()], _LEFT_OUT),
  ]
  return [table for table in sections if isinstance(table, Table)]


def _lens_table(readouts: Lens) -> Table:
  rows = [
    (
      str(row.num_layers),
      _loss(row.own),
      '-' if row.fitted is None else _loss(row.fitted),
    )
    for row in readouts.rows
  ]
  half = name_of_half(readouts.own.num_prompts)
  return Table(rows, ('after layer', f'own readout {half}', f'fitted readout {half}'))


def _risk_table(risks: PairedRisks, title: str, against: str) -> Table:
  rows = [
    ('this model', _sampled(risks.risk), _exact(risks.exact_risk)),
    (against, _sampled(risks.other_risk), _exact(risks.other_exact_risk)),
    ('difference, same prompts', _sampled(risks.risk_difference), ''),
  ]
  if risks.optimal_risk is not None:
    rows.append((_LINEAR_OPTIMUM, '', _exact(risks.optimal_risk)))
  half = name_of_half(risks.risk.num)
  return Table(rows, (title, f'sampled {half}', 'exact'))


def _algorithm_table(algorithm: ImplicitAlgorithm) -> Table:
  excess = dataclasses.asdict(algorithm.excess)
  total = sum(excess.values())
  matters = total > 1e-9  # Shares of rounding errors have no meaning.
  best = np.trace(algorithm.best_step_matrix) / len(algorithm.best_step_matrix)
  rows = [
    ('risk of the nearest step', _exact(algorithm.nearest_gd.risk), ''),
    (f'excess over the {_LINEAR_OPTIMUM}', _exact(total), ''),
    *(
      (f'  {_EXCESS[name]}', _exact(value), percent(value / total) if matters else '')
      for name, value in excess.items()
    ),
    ('|initial guess − prior mean|', _exact(algorithm.start_distance), ''),
    ('step size, tr Γ / d', _exact(algorithm.step_size), f'best {best:.6f}'),
    ('|Γ − that multiple of I| / |Γ|', _exact(algorithm.anisotropy), ''),
  ]
  constant = algorithm.pseudo_constant
  # A guess that is right up to rounding errors needs no correction.
  wrong = algorithm.start_distance > 0.01 * max(
    np.linalg.norm(algorithm.mean_weights), 1.0
  )
  note = ''
  if constant is not None and constant.unexplained is not None and wrong:
    name = 'pseudo-constant p of p·tr(XᵀX)/C'
    rows.append((name, _exact(constant.value), f'best {constant.optimum:.6f}'))
    note = f'p leaves {percent(constant.unexplained)} of the correction unexplained'
  return Table(rows, ('implicit algorithm', 'exact', ''), note=note)


def _nearest_table(sampled: SampledAlgorithm) -> Table:
  rows = []
  for name, symbol, nearest in (
    (GD, 'η', sampled.nearest_gd),
    (GD_BETA, 'tr Γ / d', sampled.nearest_gd_beta),
    ('ridge regression', 'λ', sampled.nearest_ridge),
  ):
    if nearest is None:
      continue
    # A number becomes a matrix with one entry.
    matrix = np.atleast_2d(nearest.parameter)
    number = np.trace(matrix) / len(matrix)
    share = nearest.unexplained
    unexplained = '-' if share is None else shown_share(share)
    distance = (
      '-' if nearest.start_distance is None else f'{nearest.start_distance:.3g}'
    )
    cells = f'{symbol} = {number:.4g}', distance, unexplained
    rows.append((name, *cells, _loss(nearest.risk)))
  rows.append(('this model', '', '', '', _loss(sampled.risk)))
  half = name_of_half(sampled.num_prompts)
  header = 'nearest algorithm', 'fitted', '|w_0 − prior mean|', 'unexplained ± t·s.e.'
  note = (
    f'(fitted to half of {sampled.num_prompts} prompts and measured on all; the '
    'share of the variation over contexts)'
  )
  return Table(rows, (*header, f'loss {half}'), note=note)


def _baseline_table(shares: dict[str, Estimate]) -> Table:
  rows = [(name, shown_share(share)) for name, share in shares.items()]
  return Table(rows, ("the task's baselines", 'unexplained ± t·s.e.'))


def _above_bayes_table(above: AboveBayes) -> Table:
  share = '-' if above.share is None else shown_share(above.share)
  row = 'this model', format_mean(above.loss.mean, above.loss.half, 4), share
  header = (
    'loss above that of Bayes',
    'E (f − bayes)² ± t·s.e.',
    "share of Bayes' own loss",
  )
  return Table([row], header)


def _guess_table(guess: LearnedGuess) -> Table:
  rows = []
  for name, fit in (
    (f'in its tokens ({guess.kind})', guess.token),
    ('its prediction without examples', guess.prediction),
  ):
    if fit is not None:
      distance = (
        '-' if fit.prior_mean_distance is None else f'{fit.prior_mean_distance:.3g}'
      )
      vectors = _vector(fit.weights), _vector(fit.bias)
      rows.append((name, _quality(fit), distance, *vectors))
  header = 'initial guess', 'w·x + b', '|w − prior mean|', 'w', 'b'
  return Table(rows, header)


def _quality(fit: LinearFit) -> str:
  """Returns how well a linear map fits a guess, in words."""
  if fit.r2 is None:
    return 'exact'
  if not math.isnan(fit.r2):
    return f'R² = {fit.r2:.4f}'
  is_finite = np.isfinite(fit.weights).all() and np.isfinite(fit.bias).all()
  return 'it does not vary' if is_finite else 'it is not finite'


def _vector(array: np.ndarray) -> str:
  """Returns the first entries of an array."""
  entries = [f'{entry:.3g}' for entry in array.ravel()[:_MOST_ENTRIES]]
  return ', '.join([*entries, *(['…'] if array.size > _MOST_ENTRIES else [])])


def _alignment_table(alignment: Alignment, against: str) -> Table:
  exact = alignment.exact
  squares = None, None
  if exact is not None:
    squares = exact.squared_prediction_difference, exact.squared_gradient_difference
  rows = [
    ('E |f − f′|', alignment.prediction_difference, None),
    ('E |∂f/∂x_q − ∂f′/∂x_q|', alignment.gradient_difference, None),
    ('E cos(∂f/∂x_q, ∂f′/∂x_q)', alignment.cosine_similarity, None),
    ('E (f − f′)²', alignment.squared_prediction_difference, squares[0]),
    ('E |∂f/∂x_q − ∂f′/∂x_q|²', alignment.squared_gradient_difference, squares[1]),
  ]
  return Table(
    [(name, _sampled(estimate), _exact(value)) for name, estimate, value in rows],
    (f'alignment with {against}', 'sampled ± t·s.e.', 'exact'),
  )


def _head_table(heads: list[Head]) -> Table | None:
  if len(heads) == 1:
    return None
  rows = [
    (
      str(number),
      '-' if head.share is None else percent(head.share),
      _exact(head.pruning_cost),
    )
    for number, head in enumerate(heads)
  ]
  return Table(rows, ('head', 'share of the update', 'cost of pruning it'))


def _task_shift_table(shifts: list[TaskShift], against: str) -> Table:
  rows, reasons, nums = [], {}, []
  for shift in shifts:
    if shift.failure:
      reasons.setdefault(shift.failure, []).append(shift.name)
    if not shift.num_prompts:
      continue
    losses = (shift.risk, shift.exact_risk), (shift.other_risk, shift.other_exact_risk)
    rows.append([shift.name, *(_known(*loss) for loss in losses)])
    nums.append(shift.num_prompts)
  half = name_of_half(min(nums, default=math.inf))
  header = 'out of distribution', f'loss of this model {half}', f'loss of {against}'
  beyond = '; it is not the least possible there' if against == 'bayes' else ''
  note = [f'({against} is that of the training task on all of them{beyond})']
  note += [
    f'not measured on {in_short(names)}: {why}' for why, names in reasons.items()
  ]
  return Table(rows, header, note='\n'.join(note))


def _known(sampled: Estimate | None, exact: float | None) -> str:
  if sampled is None:
    return '-'
  return _sampled(sampled) if exact is None else f'{exact:.6f}, exact'


def _loss(estimate: Estimate) -> str:
  return format_mean(estimate.mean, estimate.half, 4)


def _sampled(estimate: Estimate) -> str:
  return f'{estimate.mean:.6f} ± {estimate.half:.6f}'


def _exact(value: float | None) -> str:
  return '' if value is None else f'{value:.6f}'
