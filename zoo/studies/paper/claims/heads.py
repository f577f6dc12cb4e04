"""Claims on multi-head LSA, whose initial guess is fixed (section 3, appendix A)."""

from __future__ import annotations

from zoo import theory
from zoo.studies.paper.claims.claim import Claim, Figures, close
from zoo.studies.paper.setting import (
  best_heads,
  best_risk,
  gd_risk,
  gd_transformer,
  head_limit,
  one_step,
  risks_to_flipped,
  task,
  update_curvature,
  update_gradient,
  weight_gradient,
  zero_weights,
)


def theorem_1() -> Claim:
  def exact():
    return {
      'any_number': best_risk(task()),
      'eleven': head_limit(11),
      'ten': theory.exact_risk(best_heads(task()), task()),
      'nine': head_limit(9),
    }

  def measured(figures: Figures):
    return {
      'trained_9': figures['2'].at('b', 'trained', 9),
      'trained_10': figures['2'].at('b', 'trained', 10),
      'trained_11': figures['2'].at('b', 'trained', 11),
      'trained_16': figures['2'].at('b', 'trained', 16),
    }

  def holds(eleven: float, any_number: float) -> bool:
    return close(eleven, any_number)

  def sharp(ten: float, eleven: float) -> bool:
    return ten > eleven and not close(ten, eleven)

  return Claim(
    'theorem-1',
    'Theorem 1',
    'd + 1 = 11 heads are enough: more do not lower the infimum of the risk.',
    exact=exact,
    holds=holds,
    measured=measured,
    sharp=sharp,
    figures=('2',),
    note='d heads are enough; d − 1 are not.',
  )


def value_space() -> Claim:
  def exact():
    noisy = task(noise_std=1.0)
    return {
      'rule': theory.exact_risk(theory.optimal_rule(noisy, 0.0), noisy),
      'model': theory.exact_risk(best_heads(noisy), noisy),
      'heads': best_heads(noisy).num_heads,
      'infimum_of_ten': theory.head_limited_risk(noisy, 10).lower,
    }

  def holds(rule: float, model: float, heads: float) -> bool:
    return close(rule, model) and heads <= 11

  return Claim(
    'value-space',
    'Eqs. 5, 6 (proof of Theorem 1)',
    'A head matters only through the last row of W_P W_V and through W_Kᵀ W_Q, and so '
    'd + 1 heads realise every rule that any number of heads realises.',
    exact=exact,
    holds=holds,
    note='Shown for the optimum with label noise, σ = 1, which is constructed with '
    'd + 1 heads. The infimum does not need them all: with ten heads it is the same.',
  )


def lemmas_1_2() -> Claim:
  def exact():
    one, middle, other = risks_to_flipped(best_heads(task()), task())
    yq_one, yq_middle, yq_other = risks_to_flipped(gd_transformer(10 / 21), task())
    return {
      'multi_head': one,
      'multi_head_flipped': other,
      'multi_head_half_way': middle,
      'yq_lsa': yq_one,
      'yq_lsa_flipped': yq_other,
      'yq_lsa_half_way': yq_middle,
    }

  def holds(
    multi_head: float,
    multi_head_flipped: float,
    multi_head_half_way: float,
    yq_lsa: float,
    yq_lsa_flipped: float,
    yq_lsa_half_way: float,
  ) -> bool:
    return 2 * multi_head_half_way > multi_head + multi_head_flipped and (
      2 * yq_lsa_half_way > yq_lsa + yq_lsa_flipped
    )

  return Claim(
    'lemmas-1-2',
    'Lemmas 1, 2',
    'The risk is not convex in the weights, neither of multi-head LSA nor of yq-LSA.',
    exact=exact,
    holds=holds,
    note='Flipping the signs of W_P and W_Q changes no prediction, but half way '
    'between both weights the risk is above both ends. In the update U the risk is '
    'convex.',
  )


def theorem_2() -> Claim:
  def exact():
    return {
      'gradient_10': update_gradient(theory.optimal_rule(task(10), 0.0), task(10)),
      'gradient_1e5': update_gradient(
        theory.optimal_rule(task(10**5), 0.0), task(10**5)
      ),
      'gradient_1e9': update_gradient(
        theory.optimal_rule(task(10**9), 0.0), task(10**9)
      ),
      'in_weights_1e5': weight_gradient(best_heads(task(10**5)), task(10**5)),
      'risk_1e5': best_risk(task(10**5)),
      'risk_of_zero_weights': theory.exact_risk(one_step(0.0, start=0.0), task(10**5)),
      'gap_10': best_risk(task(10)) - gd_risk(task(10)),
      'gap_1000': best_risk(task(1000)) - gd_risk(task(1000)),
      'gap_1e5': best_risk(task(10**5)) - gd_risk(task(10**5)),
      'one_head_1000': theory.exact_risk(one_step(1.0, start=0.0), task(1000)),
    }

  def measured(figures: Figures):
    return {
      'trained_gap_10': figures['context'].at('b', 'LSA, 11 heads, trained', 10),
      'trained_gap_80': figures['context'].at('b', 'LSA, 11 heads, trained', 80),
    }

  def holds(
    gradient_1e9: float,
    in_weights_1e5: float,
    risk_1e5: float,
    risk_of_zero_weights: float,
  ) -> bool:
    stationary = gradient_1e9 < 1e-9 and in_weights_1e5 < 1e-9
    return not (stationary and risk_1e5 < risk_of_zero_weights / 2)

  return Claim(
    'theorem-2',
    'Theorem 2',
    'With w* ≠ 0 and the initial guess 0, as C → ∞ the risk of multi-head LSA has no '
    'stationary point except the trivial one.',
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('context',),
    note='At the optimum with that guess the gradient vanishes at every C, and the gap '
    'to gradient descent is 2|w*|²/(Cd + 2), which goes to 0. The proof treats z_j and '
    'z_k as independent, but they share ŵ. One head, f = yᵀX x_q / C, already tends '
    'to the risk 0.',
  )


def theorem_2_finite() -> Claim:
  def exact():
    return {
      'infimum': best_risk(task()),
      'gd': gd_risk(task()),
      'gap': best_risk(task()) - gd_risk(task()),
    }

  def measured(figures: Figures):
    return {'lowest_trained': min(figures['2'].series('b', 'trained').y)}

  def holds(infimum: float, gd: float) -> bool:
    return infimum > gd and not close(infimum, gd)

  return Claim(
    'theorem-2-finite',
    'Theorem 2, at finite C',
    'With w* ≠ 0 and the initial guess 0, no number of heads reaches gradient descent.',
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('2',),
    note='The gap is 40/51 at d = C = 10 and |w*|² = 40.',
  )


def appendix_a3() -> Claim:
  def exact():
    optimum = theory.optimal_rule(task(), 0.0)
    return {
      'gradient_at_zero': weight_gradient(zero_weights(), task()),
      'risk_at_zero': theory.exact_risk(zero_weights(), task()),
      'infimum_of_eleven_heads': head_limit(11),
      'update_gradient_at_optimum': update_gradient(optimum, task()),
      'update_curvature': theory.certificate(optimum, task()).smallest_eigenvalue,
    }

  def holds(
    gradient_at_zero: float, risk_at_zero: float, infimum_of_eleven_heads: float
  ) -> bool:
    higher = risk_at_zero > infimum_of_eleven_heads
    return gradient_at_zero < 1e-9 and higher

  return Claim(
    'appendix-a3',
    'Appendix A.3 (eqs. 26–29)',
    'At finite C there may be stationary points of multi-head LSA, in its weights, '
    'that are not global minima.',
    exact=exact,
    holds=holds,
    note='Where all weights are 0 the gradient is 0, and the risk is far above the '
    'infimum. This is about the weights. In the update U the risk is quadratic, and '
    'its Hessian positive definite, so with enough heads U has one stationary point, '
    'the global minimum.',
  )


def appendix_a4() -> Claim:
  def exact():
    nothing, along = one_step(0.0, start=0.0), one_step(1.0, start=0.0)
    return {
      'curvature': update_curvature(nothing, along, task()),
      'from_mean_of_g': 2 * task().prior_mean @ task().prior_mean,
      'from_mean_of_g_g': 2
      * theory.squared_difference(along, nothing, task()).prediction,
      'curvature_1e9': update_curvature(nothing, along, task(10**9)),
    }

  def holds(curvature: float, curvature_1e9: float, from_mean_of_g: float) -> bool:
    return close(curvature, from_mean_of_g) or close(curvature_1e9, from_mean_of_g)

  return Claim(
    'appendix-a4',
    'Appendix A.4',
    'The Hessian of the risk in the update U is 2M, where M is made from the mean of '
    'G.',
    exact=exact,
    holds=holds,
    note='It is 2E[G ⊗ G]. The numbers are along the direction Xᵀy/C, with M = E[G] ⊗ '
    'E[G]; the two differ as C → ∞, too, since ŵ stays random.',
  )


def equations_18_20() -> Claim:
  def exact():
    return {
      'risk_of_guess': theory.exact_risk(one_step(0.0), task()),
      'if_taken_out': theory.exact_risk(one_step(0.0, start=0.0), task()) + 10 * 2.0**2,
    }

  def holds(risk_of_guess: float, if_taken_out: float) -> bool:
    return close(risk_of_guess, if_taken_out)

  return Claim(
    'equations-18-20',
    'Eqs. 18, 20',
    'The initial guess y_q = g·x_q can be taken out of the expectation.',
    exact=exact,
    holds=holds,
    note='Here with g = w*. It is correlated with the target; a constant is not.',
  )


CLAIMS = (
  *(theorem_1(), value_space(), lemmas_1_2(), theorem_2(), theorem_2_finite()),
  *(appendix_a3(), appendix_a4(), equations_18_20()),
)
