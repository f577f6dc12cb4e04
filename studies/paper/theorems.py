"""The claims on theorems, lemmas and equations of arXiv 2512.04268.

Each claim has a function of the figures that were drawn, which here are not used. It
returns exact numbers in float64, and whether the claim holds by them. The docstring of
the function is the place of the claim in the paper.
"""

from studies.paper.claim import Claim, Evidence, Figures
from studies.paper.setting import (
  best_heads,
  best_risk,
  close,
  distance,
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
from zoo import estimators, theory


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
  risk, middle, other = risks_to_flipped(best_heads(task()), task())
  yq_one, yq_middle, yq_other = risks_to_flipped(gd_transformer(10 / 21), task())
  exact = {
    'multi_head': risk,
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
    'step': theory.best_step_size(task()),
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


# The claims in the order of the paper.
THEOREMS = (
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
    'predicts the same as the yq-LSA (docs/theory_one_layer.md, section 3).',
  ),
  Claim(
    ltb_optimum,
    key='ltb-optimum',
    source='Remark on LTB',
    statement="LTB's optimum is a Newton step, which leaves its gap to gradient "
    'descent open.',
    note='The optimum is the same step of gradient descent as that of yq-LSA.',
  ),
)
