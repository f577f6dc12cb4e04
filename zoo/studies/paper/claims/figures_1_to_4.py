"""Claims on figures 1 to 4: trained multi-head LSA (section 5)."""

from __future__ import annotations

import numpy as np

from zoo import theory
from zoo.studies.paper.claims.claim import Claim, Figures, close, within
from zoo.studies.paper.setting import best_risk, gd_risk, head_limit, stretched, task


def strict_bound() -> Claim:
  def exact():
    return {
      'gd': gd_risk(task()),
      'infimum': best_risk(task()),
      'gap_of_unit_error': best_risk(task(mean=0.1**0.5)) - gd_risk(task()),
      'gap_without_error': best_risk(task(), 2.0) - gd_risk(task()),
    }

  def measured(figures: Figures):
    return {
      'lowest_of_figure_2': min(figures['2'].series('b', 'trained').y),
      'lowest_of_figure_3': min(figures['3'].series('b', '11 heads, trained').y[1:]),
    }

  def holds(
    gd: float,
    infimum: float,
    gap_of_unit_error: float,
    gap_without_error: float,
    lowest_of_figure_2: float,
    lowest_of_figure_3: float,
  ) -> bool:
    exactly = gap_of_unit_error > 1e-9 and close(gap_without_error, 0.0)
    return exactly and gd < min(infimum, lowest_of_figure_2, lowest_of_figure_3)

  return Claim(
    'strict-bound',
    'Experiments: “GD is a strict lower bound”',
    'One step of gradient descent has a lower risk than every multi-head LSA whose '
    'fixed guess is not w*.',
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('2', '3'),
    note='With features of equal variance.',
  )


def strict_bound_covariance() -> Claim:
  def exact():
    unequal = task(mean=0.5, feature_covariance=stretched(10.0))
    return {
      'gd': gd_risk(unequal),
      'infimum': best_risk(unequal),
      'optimum': best_risk(unequal, None),
    }

  def measured(figures: Figures):
    return {
      'trained': figures['covariance'].at('a', 'LSA, 11 heads, trained', 10.0),
      'trained_yq_lsa': figures['covariance'].at('a', 'yq-LSA, trained', 10.0),
    }

  def holds(infimum: float, gd: float) -> bool:
    return infimum >= gd

  return Claim(
    'strict-bound-covariance',
    'Beyond the paper',
    'One step of gradient descent with the best step size is a lower bound for every '
    'covariance of the features.',
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('covariance',),
    note='Eleven heads with the initial guess 0 have a lower risk, since they learn a '
    'matrix step.',
  )


def figure_1() -> Claim:
  def exact():
    return {
      'lower_bound': theory.head_limited_risk(task(), 1, num_starts=1).lower,
      'lowest_known': head_limit(1),
      'gd': gd_risk(task()),
    }

  def measured(figures: Figures):
    return {
      'trained': figures['1'].end('a', 'exact risk'),
      'sampled': figures['1'].end('a', 'sampled risk, held-out prompts'),
    }

  def holds(trained: float, sampled: float, lower_bound: float, gd: float) -> bool:
    return trained > gd and sampled > gd and lower_bound > gd

  return Claim(
    'figure-1',
    'Fig. 1',
    'Trained LSA stays above gradient descent when w* ≠ 0.',
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('1',),
    note='No LSA with the guess 0 has a risk below the lower bound, which is proved.',
  )


def figure_2() -> Claim:
  def exact():
    return {
      'one': head_limit(1),
      'nine': head_limit(9),
      'ten': head_limit(10),
      'eleven': head_limit(11),
      'gd': gd_risk(task()),
    }

  def measured(figures: Figures):
    trained = figures['2'].series('b', 'trained').y
    lowest = figures['2'].series('b', 'lowest known risk').y
    return {
      'trained_1': figures['2'].at('b', 'trained', 1),
      'trained_10': figures['2'].at('b', 'trained', 10),
      'trained_11': figures['2'].at('b', 'trained', 11),
      'trained_16': figures['2'].at('b', 'trained', 16),
      'worst_excess': np.max(np.divide(trained, lowest)) - 1,
    }

  def holds(
    trained_1: float,
    trained_11: float,
    trained_16: float,
    gd: float,
    worst_excess: float,
  ) -> bool:
    flat = trained_1 > trained_11 and within(0.01, trained_16, trained_11)
    return flat and trained_16 > gd and worst_excess < 0.01

  def sharp(ten: float, eleven: float) -> bool:
    return ten > eleven and not close(ten, eleven)

  return Claim(
    'figure-2',
    'Fig. 2',
    'The risk falls with the number of heads, is flat from d + 1 = 11 on, and stays '
    'above gradient descent.',
    exact=exact,
    holds=holds,
    measured=measured,
    sharp=sharp,
    figures=('2',),
    note='It is flat from d = 10 heads on.',
  )


def figure_3() -> Claim:
  def exact():
    return {
      'slope': (best_risk(task(mean=4.0)) - best_risk(task(mean=0.0))) / 160,
      'slope_below_40': (best_risk(task(mean=2.0)) - best_risk(task(mean=0.0))) / 40,
      'kappa': 2 / (10 * 10 + 2),
    }

  def measured(figures: Figures):
    return {
      'trained_slope': figures['3'].slope('b', '11 heads, trained'),
      'trained_correlation': figures['3'].correlation('b', '11 heads, trained'),
    }

  def holds(
    slope: float,
    slope_below_40: float,
    kappa: float,
    trained_slope: float,
    trained_correlation: float,
  ) -> bool:
    trained = within(0.03, trained_slope, kappa) and trained_correlation > 0.999
    return close(slope, slope_below_40) and trained

  return Claim(
    'figure-3',
    'Fig. 3: linear gap',
    'The gap to gradient descent grows linearly with |w*|².',
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('3',),
    note='The slope is κ = 2/(Cd + 2) = 1/51 with d heads or more.',
  )


def _proportional(
  gap_of_0: float,
  gap_of_40: float,
  gap_of_160: float,
  gap_trained_of_0: float,
  trained_slope: float,
  trained_correlation: float,
  kappa: float,
) -> bool:
  """Fig. 4: the gap is κ times the square, exactly and in trained models."""
  exactly = close(gap_of_0, 0.0) and close(4 * gap_of_40, gap_of_160)
  trained = within(0.03, trained_slope, kappa) and trained_correlation > 0.999
  return exactly and trained and abs(gap_trained_of_0) < 0.03 * gap_of_160


def figure_4_guess() -> Claim:
  def exact():
    centred = task(mean=0.0)
    return {
      'gap_of_0': best_risk(centred, 0.0) - gd_risk(centred),
      'gap_of_40': best_risk(centred, 2.0) - gd_risk(centred),
      'gap_of_160': best_risk(centred, 4.0) - gd_risk(centred),
      'slope': (best_risk(centred, 4.0) - best_risk(centred)) / 160,
      'kappa': 2 / (10 * 10 + 2),
      'as_in_figure_3': (best_risk(task(mean=4.0)) - best_risk(centred)) / 160,
      'gd': gd_risk(centred),
    }

  def measured(figures: Figures):
    gd = gd_risk(task(mean=0.0))
    return {
      'gap_trained_of_0': figures['4'].at('b', 'trained', 0.0) - gd,
      'trained_slope': figures['4'].slope('b', 'trained'),
      'trained_correlation': figures['4'].correlation('b', 'trained'),
    }

  return Claim(
    'figure-4-guess',
    'Fig. 4: guess',
    'With w* = 0 the gap is directly proportional to the square of the norm of the '
    'initial guess.',
    exact=exact,
    holds=_proportional,
    measured=measured,
    figures=('4',),
    note='The slope is κ = 1/51; the experiment is equivalent to that of Fig. 3.',
  )


def figure_4_bias() -> Claim:
  def exact():
    centred = task(mean=0.0)
    return {
      'gap_of_0': best_risk(centred, 0.0, 0.0) - gd_risk(centred),
      'gap_of_40': best_risk(centred, 0.0, 40**0.5) - gd_risk(centred),
      'gap_of_160': best_risk(centred, 0.0, 160**0.5) - gd_risk(centred),
      'slope': (best_risk(centred, 0.0, 160**0.5) - best_risk(centred)) / 160,
      'kappa': 2 / (10 * 10 + 2),
    }

  def measured(figures: Figures):
    gd = gd_risk(task(mean=0.0))
    return {
      'gap_trained_of_0': figures['4'].at('d', 'trained', 0.0) - gd,
      'trained_slope': figures['4'].slope('d', 'trained'),
      'trained_correlation': figures['4'].correlation('d', 'trained'),
    }

  return Claim(
    'figure-4-bias',
    'Fig. 4: bias',
    'With w* = 0 the gap is directly proportional to the square of the initial bias.',
    exact=exact,
    holds=_proportional,
    measured=measured,
    figures=('4',),
    note='The slope is the same.',
  )


CLAIMS = (
  *(strict_bound(), strict_bound_covariance(), figure_1(), figure_2(), figure_3()),
  *(figure_4_guess(), figure_4_bias()),
)
