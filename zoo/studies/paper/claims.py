"""The claims of arXiv 2512.04268 that are judged, in the order of the report.

A claim is a function of the figures that have been measured. It returns exact numbers,
in float64, numbers that are read from figures, and whether the claim holds by them.
"""

import numpy as np

from zoo import estimators, theory
from zoo.studies.paper.claim import Claim, Evidence, Figures
from zoo.studies.paper.setting import (
  best_heads,
  best_risk,
  close,
  distance,
  free_difference,
  gd_risk,
  gd_transformer,
  head_limit,
  ltb_from_yq_lsa,
  ltb_without_labels,
  one_step,
  random_ltb,
  random_yq_lsa,
  risks_to_flipped,
  task,
  update_curvature,
  update_gradient,
  weight_gradient,
  within,
  yq_lsa_from_ltb,
  zero_weights,
)


def theorem_1(figures: Figures) -> Evidence:
  """Theorem 1."""
  exact = {
    'any_number': best_risk(task()),
    'eleven': head_limit(11),
    'ten': theory.exact_risk(best_heads(task()), task()),
    'nine': head_limit(9),
  }
  holds = close(exact['eleven'], exact['any_number'])
  sharp = exact['ten'] > exact['eleven'] and not close(exact['ten'], exact['eleven'])
  return Evidence(exact, holds=holds, sharp=sharp)


def value_space(figures: Figures) -> Evidence:
  """Eqs. 5, 6 (proof of Theorem 1)."""
  noisy = task(noise_std=1.0)
  exact = {
    'rule': theory.exact_risk(theory.optimal_rule(noisy, 0.0), noisy),
    'model': theory.exact_risk(best_heads(noisy), noisy),
    'heads': best_heads(noisy).num_heads,
    'infimum_of_ten': theory.head_limited_risk(noisy, 10).lower,
  }
  holds = close(exact['rule'], exact['model']) and exact['heads'] <= 11
  return Evidence(exact, holds=holds)


def lemmas_1_2(figures: Figures) -> Evidence:
  """Lemmas 1, 2."""
  one, middle, other = risks_to_flipped(best_heads(task()), task())
  yq_one, yq_middle, yq_other = risks_to_flipped(gd_transformer(10 / 21), task())
  exact = {
    'multi_head': one,
    'multi_head_flipped': other,
    'multi_head_half_way': middle,
    'yq_lsa': yq_one,
    'yq_lsa_flipped': yq_other,
    'yq_lsa_half_way': yq_middle,
  }
  holds = (
    2 * exact['multi_head_half_way'] > exact['multi_head'] + exact['multi_head_flipped']
    and 2 * exact['yq_lsa_half_way'] > exact['yq_lsa'] + exact['yq_lsa_flipped']
  )
  return Evidence(exact, holds=holds)


def theorem_2(figures: Figures) -> Evidence:
  """Theorem 2."""
  exact = {
    'gradient_10': update_gradient(theory.optimal_rule(task(10), 0.0), task(10)),
    'gradient_1e5': update_gradient(theory.optimal_rule(task(10**5), 0.0), task(10**5)),
    'gradient_1e9': update_gradient(theory.optimal_rule(task(10**9), 0.0), task(10**9)),
    'in_weights_1e5': weight_gradient(best_heads(task(10**5)), task(10**5)),
    'risk_1e5': best_risk(task(10**5)),
    'risk_of_zero_weights': theory.exact_risk(one_step(0.0, start=0.0), task(10**5)),
    'gap_10': best_risk(task(10)) - gd_risk(task(10)),
    'gap_1000': best_risk(task(1000)) - gd_risk(task(1000)),
    'gap_1e5': best_risk(task(10**5)) - gd_risk(task(10**5)),
    'one_head_1000': theory.exact_risk(one_step(1.0, start=0.0), task(1000)),
  }
  stationary = exact['gradient_1e9'] < 1e-09 and exact['in_weights_1e5'] < 1e-09
  holds = not (stationary and exact['risk_1e5'] < exact['risk_of_zero_weights'] / 2)
  return Evidence(exact, holds=holds)


def theorem_2_finite(figures: Figures) -> Evidence:
  """Theorem 2, at finite C."""
  exact = {
    'infimum': best_risk(task()),
    'gd': gd_risk(task()),
    'gap': best_risk(task()) - gd_risk(task()),
  }
  holds = exact['infimum'] > exact['gd'] and not close(exact['infimum'], exact['gd'])
  return Evidence(exact, holds=holds)


def appendix_a3(figures: Figures) -> Evidence:
  """Appendix A.3 (eqs. 26–29)."""
  optimum = theory.optimal_rule(task(), 0.0)
  exact = {
    'gradient_at_zero': weight_gradient(zero_weights(), task()),
    'risk_at_zero': theory.exact_risk(zero_weights(), task()),
    'infimum_of_eleven_heads': head_limit(11),
    'update_gradient_at_optimum': update_gradient(optimum, task()),
    'update_curvature': theory.certificate(optimum, task()).smallest_eigenvalue,
  }
  higher = exact['risk_at_zero'] > exact['infimum_of_eleven_heads']
  holds = exact['gradient_at_zero'] < 1e-09 and higher
  return Evidence(exact, holds=holds)


def appendix_a4(figures: Figures) -> Evidence:
  """Appendix A.4."""
  nothing, along = one_step(0.0, start=0.0), one_step(1.0, start=0.0)
  squared = theory.squared_difference(along, nothing, task())
  exact = {
    'curvature': update_curvature(nothing, along, task()),
    'from_mean_of_g': 2 * task().prior_mean @ task().prior_mean,
    'from_mean_of_g_g': 2 * squared.prediction,
    'curvature_1e9': update_curvature(nothing, along, task(10**9)),
  }
  holds = close(exact['curvature'], exact['from_mean_of_g']) or close(
    exact['curvature_1e9'], exact['from_mean_of_g']
  )
  return Evidence(exact, holds=holds)


def equations_18_20(figures: Figures) -> Evidence:
  """Eqs. 18, 20."""
  exact = {
    'risk_of_guess': theory.exact_risk(one_step(0.0), task()),
    'if_taken_out': theory.exact_risk(one_step(0.0, start=0.0), task()) + 10 * 2.0**2,
  }
  holds = close(exact['risk_of_guess'], exact['if_taken_out'])
  return Evidence(exact, holds=holds)


def equation_7(figures: Figures) -> Evidence:
  """Eq. 7."""
  exact = {
    'as_printed': theory.exact_risk(gd_transformer(10 / 21 / 10), task()),
    'without_1_over_c': theory.exact_risk(gd_transformer(10 / 21), task()),
    'gd': gd_risk(task()),
  }
  holds = close(exact['as_printed'], exact['gd'])
  return Evidence(exact, holds=holds)


def theorem_4(figures: Figures) -> Evidence:
  """Theorem 4, step size 1."""
  exact = {
    'gradient_1000': update_gradient(one_step(1.0), task(1000)),
    'gradient_1e5': update_gradient(one_step(1.0), task(10**5)),
    'in_weights_1000': weight_gradient(gd_transformer(1.0), task(1000)),
    'in_weights_1e5': weight_gradient(gd_transformer(1.0), task(10**5)),
    'best_step_10': update_gradient(one_step(10 / 21), task(10)),
    'best_step_1000': update_gradient(one_step(1000 / 1011), task(1000)),
  }
  holds = within(0.05, exact['in_weights_1000'] / exact['in_weights_1e5'], 100.0)
  sharp = not (
    close(exact['best_step_10'], 0.0) and close(exact['best_step_1000'], 0.0)
  )
  return Evidence(exact, holds=holds, sharp=sharp)


def appendix_b3(figures: Figures) -> Evidence:
  """Appendix B.3."""
  exact = {
    'gradient_times_c_10': 10 * update_gradient(one_step(1.0), task(10)),
    'gradient_times_c_1e5': 10**5 * update_gradient(one_step(1.0), task(10**5)),
    'best_step_10': update_gradient(one_step(10 / 21), task(10)),
    'half_a_step_times_c_10': 10 * update_gradient(one_step(0.5), task(10)),
    'half_a_step_times_c_1e5': 10**5 * update_gradient(one_step(0.5), task(10**5)),
  }
  holds = within(0.01, exact['gradient_times_c_1e5'], exact['gradient_times_c_10'])
  sharp = not close(exact['best_step_10'], 0.0)
  return Evidence(exact, holds=holds, sharp=sharp)


def conjecture(figures: Figures) -> Evidence:
  """Conjecture under Theorem 4."""
  certificate = theory.certificate(estimators.gradient_descent(task()), task())
  exact = {
    'excess': certificate.excess_risk,
    'gradient': certificate.gradient_norm,
    'curvature': certificate.smallest_eigenvalue,
    'step': estimators.best_step_size(task()),
    'excess_at_1': gd_risk(task(1)) - best_risk(task(1), None),
    'excess_at_1000': gd_risk(task(1000)) - best_risk(task(1000), None),
  }
  is_optimum = (
    close(exact['excess'], 0.0) and exact['gradient'] < 1e-09 and exact['curvature'] > 0
  )
  holds = (
    is_optimum
    and close(exact['excess_at_1'], 0.0)
    and close(exact['excess_at_1000'], 0.0)
  )
  return Evidence(exact, holds=holds)


def lemma_3(figures: Figures) -> Evidence:
  """Lemma 3."""
  exact = {
    'as_ltb': distance(random_yq_lsa(), ltb_from_yq_lsa(random_yq_lsa())),
    'ltb_as_yq_lsa': distance(random_ltb(), yq_lsa_from_ltb(random_ltb())),
  }
  holds = close(exact['as_ltb'], 0.0)
  sharp = not close(exact['ltb_as_yq_lsa'], 0.0)
  return Evidence(exact, holds=holds, sharp=sharp)


def lemma_3_proof(figures: Figures) -> Evidence:
  """Lemma 3, its proof."""
  exact = {
    'distance': distance(random_yq_lsa(), ltb_without_labels(random_yq_lsa())),
    'risk_of_yq_lsa': theory.exact_risk(gd_transformer(10 / 21), task()),
    'risk_with_xw': theory.exact_risk(
      ltb_without_labels(gd_transformer(10 / 21)), task()
    ),
  }
  holds = close(exact['distance'], 0.0)
  return Evidence(exact, holds=holds)


def ltb_optimum(figures: Figures) -> Evidence:
  """Remark on LTB."""
  exact = {
    'ltb': theory.exact_risk(ltb_from_yq_lsa(gd_transformer(10 / 21)), task()),
    'gd': gd_risk(task()),
    'infimum': best_risk(task(), None),
  }
  holds = exact['infimum'] > exact['gd'] and not close(exact['infimum'], exact['gd'])
  return Evidence(exact, holds=holds)


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
  """Whether the gap of Fig. 4 is κ times a square, by its exact numbers and a panel."""
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
  """Whether yq-LSA, trained as a label of Fig. 5 says, becomes gradient descent."""
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
  mean, high = free_difference(figures, 'with − without guess')
  holds = None if high is None else high < 0
  return Evidence(measured={'difference': mean, 'upper_end': high}, holds=holds)


def appendix_c3(figures: Figures) -> Evidence:
  """Appendix C.3."""
  if '6' not in figures:
    return Evidence()
  mean, high = free_difference(figures, 'with guess − guess alone')
  holds = None if high is None else high < 0
  return Evidence(measured={'difference': mean, 'upper_end': high}, holds=holds)


# The claims of the paper, in its order.
CLAIMS = (
  Claim(
    theorem_1,
    key='theorem-1',
    source='Theorem 1',
    statement='d + 1 = 11 heads are enough: more do not lower the infimum of the risk.',
    note='d heads are enough; d − 1 are not.',
  ),
  Claim(
    value_space,
    key='value-space',
    source='Eqs. 5, 6 (proof of Theorem 1)',
    statement='A head matters only through the last row of W_P W_V and through W_Kᵀ '
    'W_Q, and so d + 1 heads realise every rule that any number of heads realises.',
    note='Shown for the optimum with label noise, σ = 1, which is constructed with d '
    '+ 1 heads. The infimum does not need them all: with ten heads it is the same.',
  ),
  Claim(
    lemmas_1_2,
    key='lemmas-1-2',
    source='Lemmas 1, 2',
    statement='The risk is not convex in the weights, neither of multi-head LSA nor '
    'of yq-LSA.',
    note='Flipping the signs of W_P and W_Q changes no prediction, but half way '
    'between both weights the risk is above both ends. In the update U the risk is '
    'convex.',
  ),
  Claim(
    theorem_2,
    key='theorem-2',
    source='Theorem 2',
    statement='With w* ≠ 0 and the initial guess 0, as C → ∞ the risk of multi-head '
    'LSA has no stationary point except the trivial one.',
    note='At the optimum with that guess the gradient vanishes at every C, and the '
    'gap to gradient descent is 2|w*|²/(Cd + 2), which goes to 0. The proof treats '
    'z_j and z_k as independent, but they share ŵ. One head, f = yᵀX x_q / C, already '
    'tends to the risk 0.',
  ),
  Claim(
    theorem_2_finite,
    key='theorem-2-finite',
    source='Theorem 2, at finite C',
    statement='With w* ≠ 0 and the initial guess 0, no number of heads reaches '
    'gradient descent.',
    note='The gap is 40/51 at d = C = 10 and |w*|² = 40.',
  ),
  Claim(
    appendix_a3,
    key='appendix-a3',
    source='Appendix A.3 (eqs. 26–29)',
    statement='At finite C there may be stationary points of multi-head LSA, in its '
    'weights, that are not global minima.',
    note='Where all weights are 0 the gradient is 0, and the risk is far above the '
    'infimum. This is about the weights. In the update U the risk is quadratic, and '
    'its Hessian positive definite, so with enough heads U has one stationary point, '
    'the global minimum.',
  ),
  Claim(
    appendix_a4,
    key='appendix-a4',
    source='Appendix A.4',
    statement='The Hessian of the risk in the update U is 2M, where M is made from '
    'the mean of G.',
    note='It is 2E[G ⊗ G]. The numbers are along the direction Xᵀy/C, with M = E[G] ⊗ '
    'E[G]; the two differ as C → ∞, too, since ŵ stays random.',
  ),
  Claim(
    equations_18_20,
    key='equations-18-20',
    source='Eqs. 18, 20',
    statement='The initial guess y_q = g·x_q can be taken out of the expectation.',
    note='Here with g = w*. It is correlated with the target; a constant is not.',
  ),
  Claim(
    equation_7,
    key='equation-7',
    source='Eq. 7',
    statement='LSA with W_P = −(η/C) I and the other matrices of eq. 7 is one step of '
    'gradient descent.',
    note='Eq. 3 already has a factor 1/C, so the step is C times too small. With W_P '
    '= −η I it is one step.',
  ),
  Claim(
    theorem_4,
    key='theorem-4',
    source='Theorem 4, step size 1',
    statement='As C → ∞ the GD transformer of eq. 7 (with W_P = −η I, from w*) is a '
    'stationary point of the risk of yq-LSA, for η = 1.',
    note='The gradient in the update U is 295/C. With η = C/(C + d + 1) it is 0 at '
    'every C, and the point is the optimum.',
  ),
  Claim(
    appendix_b3,
    key='appendix-b3',
    source='Appendix B.3',
    statement='At finite C the gradient at the GD transformer leaves a residual of '
    'order 1/C.',
    note='This is true for η = 1, but the step size is the cause, not the finite '
    'context: with η = C/(C + d + 1) the residual is 0. With another η it does not go '
    'to 0.',
  ),
  Claim(
    conjecture,
    key='conjecture',
    source='Conjecture under Theorem 4',
    statement='At finite C, too, no yq-LSA is better than one step of gradient '
    'descent from w*.',
    note='With the step η* = C/(C + d + 1). No other learning rule attains its risk.',
  ),
  Claim(
    lemma_3,
    key='lemma-3',
    source='Lemma 3',
    statement='Every yq-LSA is an LTB.',
    note='The numbers are distances of learning rules, at random weights; 0 means the '
    'same prediction for every prompt. Every LTB is a yq-LSA, too: they are one class '
    'of functions.',
  ),
  Claim(
    lemma_3_proof,
    key='lemma-3-proof',
    source='Lemma 3, its proof',
    statement='The LTB with Xw in place of the labels predicts the same as the yq-LSA.',
    note='Xw = y holds only for w = ŵ. This block ignores the labels; another block '
    'predicts the same as the yq-LSA (docs/theory.md, section 3).',
  ),
  Claim(
    ltb_optimum,
    key='ltb-optimum',
    source='Remark on LTB',
    statement="LTB's optimum is a Newton step, which leaves its gap to gradient "
    'descent open.',
    note='The optimum is the same step of gradient descent as that of yq-LSA.',
  ),
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
    'It holds for the model that was run if the 95 % interval of the difference is '
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
