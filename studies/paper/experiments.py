"""The claims on experiments and figures of arXiv 2512.04268.

Each claim has a function of the figures that were drawn. It returns exact numbers in
float64, numbers that are read from the figures, and whether the claim holds by them.
The docstring of the function is the place of the claim in the paper.
"""

import numpy as np

from studies.paper.claim import Claim, Evidence, Figures
from studies.paper.setting import (
  best_risk,
  close,
  free_difference,
  gd_risk,
  head_limit,
  one_step,
  task,
  within,
)
from zoo import estimators, theory


def strict_bound(figures: Figures) -> Evidence:
  """Experiments: “GD is a strict lower bound”."""
  exact = {
    'gd': gd_risk(task()),
    'infimum': best_risk(task()),
    'gap_of_unit_error': best_risk(task(mean=0.1**0.5)) - gd_risk(task()),
    'gap_without_error': best_risk(task(), 2.0) - gd_risk(task()),
  }
  if '2' not in figures or '3' not in figures:
    return Evidence(exact)
  measured = {
    'lowest_of_figure_2': min(figures['2'].series('b', 'trained').y),
    'lowest_of_figure_3': min(figures['3'].series('b', '11 heads, trained').y[1:]),
  }
  exactly = exact['gap_of_unit_error'] > 1e-09 and close(
    exact['gap_without_error'], 0.0
  )
  holds = exactly and exact['gd'] < min(
    exact['infimum'], measured['lowest_of_figure_2'], measured['lowest_of_figure_3']
  )
  return Evidence(exact, measured, holds=holds)


def figure_1(figures: Figures) -> Evidence:
  """Fig. 1."""
  exact = {
    'lower_bound': theory.head_limited_risk(task(), 1, num_starts=1).lower,
    'lowest_known': head_limit(1),
    'gd': gd_risk(task()),
  }
  if '1' not in figures:
    return Evidence(exact)
  measured = {
    'trained': figures['1'].end('a', 'exact risk'),
    'sampled': figures['1'].end('a', 'sampled risk, held-out prompts'),
  }
  holds = (
    measured['trained'] > exact['gd']
    and measured['sampled'] > exact['gd']
    and exact['lower_bound'] > exact['gd']
  )
  return Evidence(exact, measured, holds=holds)


def figure_2(figures: Figures) -> Evidence:
  """Fig. 2."""
  exact = {
    'one': head_limit(1),
    'nine': head_limit(9),
    'ten': head_limit(10),
    'eleven': head_limit(11),
    'gd': gd_risk(task()),
  }
  if '2' not in figures:
    return Evidence(exact)
  trained = figures['2'].series('b', 'trained').y
  lowest = figures['2'].series('b', 'lowest known risk').y
  measured = {
    'trained_1': figures['2'].at('b', 'trained', 1),
    'trained_10': figures['2'].at('b', 'trained', 10),
    'trained_11': figures['2'].at('b', 'trained', 11),
    'trained_16': figures['2'].at('b', 'trained', 16),
    'worst_excess': np.max(np.divide(trained, lowest)) - 1,
  }
  flat = measured['trained_1'] > measured['trained_11'] and within(
    0.01, measured['trained_16'], measured['trained_11']
  )
  holds = (
    flat and measured['trained_16'] > exact['gd'] and measured['worst_excess'] < 0.01
  )
  sharp = exact['ten'] > exact['eleven'] and not close(exact['ten'], exact['eleven'])
  return Evidence(exact, measured, holds=holds, sharp=sharp)


def figure_3(figures: Figures) -> Evidence:
  """Fig. 3: linear gap."""
  exact = {
    'slope': (best_risk(task(mean=4.0)) - best_risk(task(mean=0.0))) / 160,
    'slope_below_40': (best_risk(task(mean=2.0)) - best_risk(task(mean=0.0))) / 40,
    'kappa': 2 / (10 * 10 + 2),
  }
  if '3' not in figures:
    return Evidence(exact)
  measured = {
    'trained_slope': figures['3'].slope('b', '11 heads, trained'),
    'trained_correlation': figures['3'].correlation('b', '11 heads, trained'),
  }
  trained = (
    within(0.03, measured['trained_slope'], exact['kappa'])
    and measured['trained_correlation'] > 0.999
  )
  holds = close(exact['slope'], exact['slope_below_40']) and trained
  return Evidence(exact, measured, holds=holds)


def figure_4_guess(figures: Figures) -> Evidence:
  """Fig. 4: guess."""
  centred = task(mean=0.0)
  exact = {
    'gap_of_0': best_risk(centred, 0.0) - gd_risk(centred),
    'gap_of_40': best_risk(centred, 2.0) - gd_risk(centred),
    'gap_of_160': best_risk(centred, 4.0) - gd_risk(centred),
    'slope': (best_risk(centred, 4.0) - best_risk(centred)) / 160,
    'kappa': 2 / (10 * 10 + 2),
    'as_in_figure_3': (best_risk(task(mean=4.0)) - best_risk(centred)) / 160,
    'gd': gd_risk(centred),
  }
  return _proportional_gap(figures, exact, 'b')


def figure_4_bias(figures: Figures) -> Evidence:
  """Fig. 4: bias."""
  centred = task(mean=0.0)
  exact = {
    'gap_of_0': best_risk(centred, 0.0, 0.0) - gd_risk(centred),
    'gap_of_40': best_risk(centred, 0.0, 40**0.5) - gd_risk(centred),
    'gap_of_160': best_risk(centred, 0.0, 160**0.5) - gd_risk(centred),
    'slope': (best_risk(centred, 0.0, 160**0.5) - best_risk(centred)) / 160,
    'kappa': 2 / (10 * 10 + 2),
  }
  return _proportional_gap(figures, exact, 'd')


def _proportional_gap(
  figures: Figures, exact: dict[str, float], panel: str
) -> Evidence:
  """Judges whether the gap of Fig. 4 is κ times a square, by theory and by a panel."""
  if '4' not in figures:
    return Evidence(exact)
  gd = gd_risk(task(mean=0.0))
  measured = {
    'gap_trained_of_0': figures['4'].at(panel, 'trained', 0.0) - gd,
    'trained_slope': figures['4'].slope(panel, 'trained'),
    'trained_correlation': figures['4'].correlation(panel, 'trained'),
  }
  exactly = close(exact['gap_of_0'], 0.0) and close(
    4 * exact['gap_of_40'], exact['gap_of_160']
  )
  trained = (
    within(0.03, measured['trained_slope'], exact['kappa'])
    and measured['trained_correlation'] > 0.999
  )
  holds = (
    exactly
    and trained
    and (abs(measured['gap_trained_of_0']) < 0.03 * exact['gap_of_160'])
  )
  return Evidence(exact, measured, holds=holds)


def figure_5a(figures: Figures) -> Evidence:
  """Fig. 5a, trained as in the paper."""
  exact = {
    'gd': gd_risk(task()),
  }
  if '5' not in figures:
    return Evidence(exact)
  measured = {
    'w_0': figures['5'].end('a', 'w* = (0, …, 0)'),
    'w_1': figures['5'].end('a', 'w* = (1, …, 1)'),
    'w_2': figures['5'].end('a', 'w* = (2, …, 2)'),
  }
  holds = all(within(0.01, risk, exact['gd']) for risk in measured.values())
  return Evidence(exact, measured, holds=holds)


def figure_5a_converged(figures: Figures) -> Evidence:
  """Fig. 5a, trained to the end."""
  exact = {
    'gd': gd_risk(task()),
  }
  if '5' not in figures:
    return Evidence(exact)
  measured = {
    'w_2': figures['5'].end('a', 'w* = (2, …, 2), lr 5e-3, cosine'),
  }
  holds = within(0.01, measured['w_2'], exact['gd'])
  return Evidence(exact, measured, holds=holds)


def figure_5b(figures: Figures) -> Evidence:
  """Fig. 5b, trained to the end."""
  return _becomes_gd(figures, 'lr 5e-3, cosine: sampled')


def figure_5b_paper(figures: Figures) -> Evidence:
  """Fig. 5b, trained as in the paper."""
  return _becomes_gd(figures, 'paper: sampled')


def _becomes_gd(figures: Figures, label: str) -> Evidence:
  """Judges whether the yq-LSA with this label in Fig. 5 becomes gradient descent."""
  gd = estimators.gradient_descent(task())
  optimum = theory.optimal_rule(task())
  nothing = one_step(0.0, start=0.0)
  exact = {
    'difference': theory.squared_difference(optimum, gd, task()).prediction,
    'size_of_gradient': theory.squared_difference(gd, nothing, task()).gradient ** 0.5,
  }
  if '5' not in figures:
    return Evidence(exact)
  measured = {
    'prediction': figures['5'].end('b', label),
    'gradient': figures['5'].end('c', label),
    'cosine': figures['5'].end('d', label),
  }
  small = (
    max(measured['prediction'], measured['gradient']) < 0.02 * exact['size_of_gradient']
  )
  holds = close(exact['difference'], 0.0) and small and measured['cosine'] > 0.999
  return Evidence(exact, measured, holds=holds)


def figure_6(figures: Figures) -> Evidence:
  """Fig. 6."""
  if '6' not in figures:
    return Evidence()
  return _of_difference(figures, 'with − without guess')


def appendix_c3(figures: Figures) -> Evidence:
  """Appendix C.3."""
  if '6' not in figures:
    return Evidence()
  return _of_difference(figures, 'with guess − guess alone')


def _of_difference(figures: Figures, name: str) -> Evidence:
  """Returns the evidence for a claim that a difference of errors is below 0.

  If the interval contains 0, the difference does not decide.
  """
  mean, low, high = free_difference(figures, name)
  measured = {'difference': mean, 'lower_end': low, 'upper_end': high}
  if low is None or high is None:
    return Evidence(measured=measured)
  if low <= 0 <= high:
    return Evidence(measured=measured, is_open=True)
  return Evidence(measured=measured, holds=high < 0)


# The claims in the order of the paper.
EXPERIMENTS = (
  Claim(
    strict_bound,
    key='strict-bound',
    source='Experiments: “GD is a strict lower bound”',
    statement='One step of gradient descent has a lower risk than every multi-head '
    'LSA whose fixed guess is not w*.',
    figures=('2', '3'),
    note='With features of equal variance.',
  ),
  Claim(
    figure_1,
    key='figure-1',
    source='Fig. 1',
    statement='Trained LSA stays above gradient descent when w* ≠ 0.',
    figures=('1',),
    note='No LSA with the guess 0 has a risk below the lower bound, which is proved.',
  ),
  Claim(
    figure_2,
    key='figure-2',
    source='Fig. 2',
    statement='The risk falls with the number of heads, is flat from d + 1 = 11 on, '
    'and stays above gradient descent.',
    figures=('2',),
    note='It is flat from d = 10 heads on.',
  ),
  Claim(
    figure_3,
    key='figure-3',
    source='Fig. 3: linear gap',
    statement='The gap to gradient descent grows linearly with |w*|².',
    figures=('3',),
    note='The slope is κ = 2/(Cd + 2) = 1/51 with d heads or more.',
  ),
  Claim(
    figure_4_guess,
    key='figure-4-guess',
    source='Fig. 4: guess',
    statement='With w* = 0 the gap is directly proportional to the square of the norm '
    'of the initial guess.',
    figures=('4',),
    note='The slope is κ = 1/51; the experiment is equivalent to that of Fig. 3.',
  ),
  Claim(
    figure_4_bias,
    key='figure-4-bias',
    source='Fig. 4: bias',
    statement='With w* = 0 the gap is directly proportional to the square of the '
    'initial bias.',
    figures=('4',),
    note='The slope is the same.',
  ),
  Claim(
    figure_5a,
    key='figure-5a',
    source='Fig. 5a, trained as in the paper',
    statement='Trained yq-LSA reaches gradient descent, to 1 %, for each prior.',
    figures=('5',),
    note='At the rate 5e-4 Adam needs 4000 of the 5000 steps to carry the guess from '
    '0 to 2. The paper does not say where the guess starts; from a start near w*, or '
    'for a smaller w*, the same training would reach gradient descent.',
  ),
  Claim(
    figure_5a_converged,
    key='figure-5a-converged',
    source='Fig. 5a, trained to the end',
    statement='Trained yq-LSA reaches gradient descent, to 1 %, at w* = (2, …, 2).',
    figures=('5',),
  ),
  Claim(
    figure_5b,
    key='figure-5b',
    source='Fig. 5b, trained to the end',
    statement='While yq-LSA trains, its predictions and gradients become those of '
    'gradient descent: the differences go to 0 and the cosine similarity to 1.',
    figures=('5',),
    note='At w* = (2, …, 2).',
  ),
  Claim(
    figure_5b_paper,
    key='figure-5b-paper',
    source='Fig. 5b, trained as in the paper',
    statement='While yq-LSA trains, its predictions and gradients become those of '
    'gradient descent: the differences go to 0 and the cosine similarity to 1.',
    figures=('5',),
    note='At w* = (2, …, 2), by the same rule: as in Fig. 5a, the guess starts at 0 '
    'and has not reached w* when training ends.',
  ),
  Claim(
    figure_6,
    key='figure-6',
    source='Fig. 6',
    statement='With initial guesses in the prompt a language model answers with a '
    'lower error than without.',
    figures=('6',),
    note='For free answers, on the prompts that have both, which may be a selection. '
    'It holds for the model that was run if the interval of the difference is '
    'below 0. For another model than the two of the paper this only means that the '
    'difference has the same sign. A guess can be copied: see the next claim.',
  ),
  Claim(
    appendix_c3,
    key='appendix-c3',
    source='Appendix C.3',
    statement='The language model refines the initial guess that it is given: its '
    'answers are better than the guess.',
    figures=('6',),
    note='For free answers, against the error of the guess itself on the same prompts.',
  ),
)
