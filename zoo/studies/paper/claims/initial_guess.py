"""Claims on yq-LSA, which trains its guess, and on LTB (section 4, appendix B)."""

from __future__ import annotations

from zoo import estimators, theory
from zoo.studies.paper.claims.claim import Claim, Figures, close, within
from zoo.studies.paper.setting import (
  best_risk,
  distance,
  gd_risk,
  gd_transformer,
  ltb_without_labels,
  one_step,
  random_ltb,
  random_yq_lsa,
  task,
  update_gradient,
  weight_gradient,
)
from zoo.theory.constructions import ltb_from_yq_lsa, yq_lsa_from_ltb


def equation_7() -> Claim:
  def exact():
    return {
      'as_printed': theory.exact_risk(gd_transformer(10 / 21 / 10), task()),
      'without_1_over_c': theory.exact_risk(gd_transformer(10 / 21), task()),
      'gd': gd_risk(task()),
    }

  def holds(as_printed: float, gd: float) -> bool:
    return close(as_printed, gd)

  return Claim(
    'equation-7',
    'Eq. 7',
    'LSA with W_P = −(η/C) I and the other matrices of eq. 7 is one step of gradient '
    'descent.',
    exact=exact,
    holds=holds,
    note='Eq. 3 already has a factor 1/C, so the step is C times too small. With W_P = '
    '−η I it is one step.',
  )


def theorem_4() -> Claim:
  def exact():
    return {
      'gradient_1000': update_gradient(one_step(1.0), task(1000)),
      'gradient_1e5': update_gradient(one_step(1.0), task(10**5)),
      'in_weights_1000': weight_gradient(gd_transformer(1.0), task(1000)),
      'in_weights_1e5': weight_gradient(gd_transformer(1.0), task(10**5)),
      'best_step_10': update_gradient(one_step(10 / 21), task(10)),
      'best_step_1000': update_gradient(one_step(1000 / 1011), task(1000)),
    }

  def measured(figures: Figures):
    return {'trained_80': figures['context'].at('a', 'yq-LSA, trained', 80)}

  def holds(in_weights_1000: float, in_weights_1e5: float) -> bool:
    return within(0.05, in_weights_1000 / in_weights_1e5, 100.0)

  def sharp(best_step_10: float, best_step_1000: float) -> bool:
    return not (close(best_step_10, 0.0) and close(best_step_1000, 0.0))

  return Claim(
    'theorem-4',
    'Theorem 4, step size 1',
    'As C → ∞ the GD transformer of eq. 7 (with W_P = −η I, from w*) is a stationary '
    'point of the risk of yq-LSA, for η = 1.',
    exact=exact,
    holds=holds,
    measured=measured,
    sharp=sharp,
    figures=('context',),
    note='The gradient in the update U is 295/C. With η = C/(C + d + 1) it is 0 at '
    'every C, and the point is the optimum.',
  )


def theorem_4_any_step() -> Claim:
  def exact():
    return {
      'half_a_step': update_gradient(one_step(0.5), task(10**7)),
      'as_printed': update_gradient(one_step(1.0 / 10**7), task(10**7)),
      'half_a_step_in_weights': weight_gradient(gd_transformer(0.5), task(10**7)),
      'as_printed_in_weights': weight_gradient(
        gd_transformer(1.0 / 10**7), task(10**7)
      ),
    }

  def holds(half_a_step_in_weights: float, as_printed_in_weights: float) -> bool:
    return max(half_a_step_in_weights, as_printed_in_weights) < 1e-3

  return Claim(
    'theorem-4-any-step',
    'Beyond the paper: Theorem 4 for any step size',
    'As C → ∞ the GD transformer of eq. 7 is a stationary point of the risk of yq-LSA, '
    'for every η.',
    exact=exact,
    holds=holds,
    note='One possible reading of Theorem 4. The gradients are those at C = 10⁷. Only '
    'η = 1 is stationary in the limit; as printed, with W_P = −(η/C) I, the step '
    'itself goes to 0.',
  )


def appendix_b3() -> Claim:
  def exact():
    return {
      'gradient_times_c_10': 10 * update_gradient(one_step(1.0), task(10)),
      'gradient_times_c_1e5': 10**5 * update_gradient(one_step(1.0), task(10**5)),
      'best_step_10': update_gradient(one_step(10 / 21), task(10)),
      'half_a_step_times_c_10': 10 * update_gradient(one_step(0.5), task(10)),
      'half_a_step_times_c_1e5': 10**5 * update_gradient(one_step(0.5), task(10**5)),
    }

  def holds(gradient_times_c_10: float, gradient_times_c_1e5: float) -> bool:
    return within(0.01, gradient_times_c_1e5, gradient_times_c_10)

  def sharp(best_step_10: float) -> bool:
    return not close(best_step_10, 0.0)

  return Claim(
    'appendix-b3',
    'Appendix B.3',
    'At finite C the gradient at the GD transformer leaves a residual of order 1/C.',
    exact=exact,
    holds=holds,
    sharp=sharp,
    note='This is true for η = 1, but the step size is the cause, not the finite '
    'context: with η = C/(C + d + 1) the residual is 0. With another η it does not go '
    'to 0.',
  )


def conjecture() -> Claim:
  def exact():
    certificate = theory.certificate(estimators.gradient_descent(task()), task())
    return {
      'excess': certificate.excess_risk,
      'gradient': certificate.gradient_norm,
      'curvature': certificate.smallest_eigenvalue,
      'step': estimators.best_step_size(task()),
      'excess_at_1': gd_risk(task(1)) - best_risk(task(1), None),
      'excess_at_1000': gd_risk(task(1000)) - best_risk(task(1000), None),
    }

  def measured(figures: Figures):
    return {'trained': figures['5'].end('a', 'w* = (2, …, 2), lr 5e-3, cosine')}

  def holds(
    excess: float,
    gradient: float,
    curvature: float,
    excess_at_1: float,
    excess_at_1000: float,
  ) -> bool:
    is_optimum = close(excess, 0.0) and gradient < 1e-9 and curvature > 0
    return is_optimum and close(excess_at_1, 0.0) and close(excess_at_1000, 0.0)

  return Claim(
    'conjecture',
    'Conjecture under Theorem 4',
    'At finite C, too, no yq-LSA is better than one step of gradient descent from w*.',
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('5',),
    note='With the step η* = C/(C + d + 1). No other learning rule attains its risk.',
  )


def lemma_3() -> Claim:
  def exact():
    return {
      'as_ltb': distance(random_yq_lsa(), ltb_from_yq_lsa(random_yq_lsa())),
      'ltb_as_yq_lsa': distance(random_ltb(), yq_lsa_from_ltb(random_ltb())),
    }

  def holds(as_ltb: float) -> bool:
    return close(as_ltb, 0.0)

  def sharp(ltb_as_yq_lsa: float) -> bool:
    return not close(ltb_as_yq_lsa, 0.0)

  return Claim(
    'lemma-3',
    'Lemma 3',
    'Every yq-LSA is an LTB.',
    exact=exact,
    holds=holds,
    sharp=sharp,
    note='The numbers are distances of learning rules, at random weights; 0 means the '
    'same prediction for every prompt. Every LTB is a yq-LSA, too: they are one class '
    'of functions.',
  )


def lemma_3_proof() -> Claim:
  def exact():
    return {
      'distance': distance(random_yq_lsa(), ltb_without_labels(random_yq_lsa())),
      'risk_of_yq_lsa': theory.exact_risk(gd_transformer(10 / 21), task()),
      'risk_with_xw': theory.exact_risk(
        ltb_without_labels(gd_transformer(10 / 21)), task()
      ),
    }

  def holds(distance: float) -> bool:
    return close(distance, 0.0)

  return Claim(
    'lemma-3-proof',
    'Lemma 3, its proof',
    'The LTB with Xw in place of the labels predicts the same as the yq-LSA.',
    exact=exact,
    holds=holds,
    note='Xw = y holds only for w = ŵ. This block ignores the labels; another block '
    'predicts the same as the yq-LSA (docs/theory.md, section 3).',
  )


def ltb_optimum() -> Claim:
  def exact():
    return {
      'ltb': theory.exact_risk(ltb_from_yq_lsa(gd_transformer(10 / 21)), task()),
      'gd': gd_risk(task()),
      'infimum': best_risk(task(), None),
    }

  def measured(figures: Figures):
    return {'trained': figures['context'].at('a', 'LTB, trained', 10)}

  def holds(infimum: float, gd: float) -> bool:
    return infimum > gd and not close(infimum, gd)

  return Claim(
    'ltb-optimum',
    'Remark on LTB',
    "LTB's optimum is a Newton step, which leaves its gap to gradient descent open.",
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('context',),
    note='The optimum is the same step of gradient descent as that of yq-LSA.',
  )


CLAIMS = (
  *(equation_7(), theorem_4(), theorem_4_any_step(), appendix_b3(), conjecture()),
  *(lemma_3(), lemma_3_proof(), ltb_optimum()),
)
