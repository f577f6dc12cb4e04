"""The claims of arXiv 2512.04268 that are judged, in the order of the report.

Each number and rule is the text of an expression, which is evaluated with the names of
`zoo.studies.paper.setting`; none is a constant that was computed elsewhere.
"""

import dataclasses
from collections.abc import Mapping

from zoo.studies.paper.claim import Claim


def _replaced(numbers: Mapping[str, str], old: str, new: str) -> dict[str, str]:
  """The expressions of numbers with a part of their text replaced."""
  return {name: number.replace(old, new) for name, number in numbers.items()}


_FIGURE_4 = Claim(
  key='figure-4-guess',
  source='Fig. 4: guess',
  statement='With w* = 0 the gap is directly proportional to the square of the norm of '
  'the initial guess.',
  exact_steps='centred = task(mean=0.0)',
  exact={
    'gap_of_0': 'best_risk(centred, 0.0) - gd_risk(centred)',
    'gap_of_40': 'best_risk(centred, 2.0) - gd_risk(centred)',
    'gap_of_160': 'best_risk(centred, 4.0) - gd_risk(centred)',
    'slope': '(best_risk(centred, 4.0) - best_risk(centred)) / 160',
    'kappa': '2 / (10 * 10 + 2)',
    'as_in_figure_3': '(best_risk(task(mean=4.0)) - best_risk(centred)) / 160',
    'gd': 'gd_risk(centred)',
  },
  measured_steps='gd = gd_risk(task(mean=0.0))',
  measured={
    'gap_trained_of_0': "figures['4'].at('b', 'trained', 0.0) - gd",
    'trained_slope': "figures['4'].slope('b', 'trained')",
    'trained_correlation': "figures['4'].correlation('b', 'trained')",
  },
  holds='exactly = close(gap_of_0, 0.0) and close(4 * gap_of_40, gap_of_160); '
  'trained = within(0.03, trained_slope, kappa) and trained_correlation > 0.999; '
  'exactly and trained and (abs(gap_trained_of_0) < 0.03 * gap_of_160)',
  figures=('4',),
  note='The slope is κ = 1/51; the experiment is equivalent to that of Fig. 3.',
)

_FIGURE_5B = Claim(
  key='figure-5b',
  source='Fig. 5b, trained to the end',
  statement='While yq-LSA trains, its predictions and gradients become those of '
  'gradient descent: the differences go to 0 and the cosine similarity to 1.',
  exact_steps='gd = estimators.gradient_descent(task()); optimum = '
  'theory.optimal_rule(task()); nothing = one_step(0.0, start=0.0)',
  exact={
    'difference': 'theory.squared_difference(optimum, gd, task()).prediction',
    'size_of_gradient': 'theory.squared_difference(gd, nothing, task()).gradient ** '
    '0.5',
  },
  measured={
    'prediction': "figures['5'].end('b', 'lr 5e-3, cosine: sampled')",
    'gradient': "figures['5'].end('c', 'lr 5e-3, cosine: sampled')",
    'cosine': "figures['5'].end('d', 'lr 5e-3, cosine: sampled')",
  },
  holds='small = max(prediction, gradient) < 0.02 * size_of_gradient; '
  'close(difference, 0.0) and small and (cosine > 0.999)',
  figures=('5',),
  note='At w* = (2, …, 2).',
)

_FIGURE_6 = Claim(
  key='figure-6',
  source='Fig. 6',
  statement='With initial guesses in the prompt a language model answers with a lower '
  'error than without.',
  measured_steps="mean, high = free_difference(figures, 'with − without guess')",
  measured={'difference': 'mean', 'upper_end': 'high'},
  holds='upper_end < 0',
  figures=('6',),
  note='For free answers, on the prompts that have both, which may be a selection. It '
  'holds for the model that was run if the 95 % interval of the difference is below 0. '
  'For another model than the two of the paper this only means that the difference has '
  'the same sign. A guess can be copied: see the next claim.',
)

# The claims of the paper, in its order.
CLAIMS = (
  Claim(
    key='theorem-1',
    source='Theorem 1',
    statement='d + 1 = 11 heads are enough: more do not lower the infimum of the risk.',
    exact={
      'any_number': 'best_risk(task())',
      'eleven': 'head_limit(11)',
      'ten': 'theory.exact_risk(best_heads(task()), task())',
      'nine': 'head_limit(9)',
    },
    holds='close(eleven, any_number)',
    sharp='ten > eleven and (not close(ten, eleven))',
    note='d heads are enough; d − 1 are not.',
  ),
  Claim(
    key='value-space',
    source='Eqs. 5, 6 (proof of Theorem 1)',
    statement='A head matters only through the last row of W_P W_V and through W_Kᵀ '
    'W_Q, and so d + 1 heads realise every rule that any number of heads realises.',
    exact_steps='noisy = task(noise_std=1.0)',
    exact={
      'rule': 'theory.exact_risk(theory.optimal_rule(noisy, 0.0), noisy)',
      'model': 'theory.exact_risk(best_heads(noisy), noisy)',
      'heads': 'best_heads(noisy).num_heads',
      'infimum_of_ten': 'theory.head_limited_risk(noisy, 10).lower',
    },
    holds='close(rule, model) and heads <= 11',
    note='Shown for the optimum with label noise, σ = 1, which is constructed with d + '
    '1 heads. The infimum does not need them all: with ten heads it is the same.',
  ),
  Claim(
    key='lemmas-1-2',
    source='Lemmas 1, 2',
    statement='The risk is not convex in the weights, neither of multi-head LSA nor of '
    'yq-LSA.',
    exact_steps='one, middle, other = risks_to_flipped(best_heads(task()), task()); '
    'yq_one, yq_middle, yq_other = risks_to_flipped(gd_transformer(10 / 21), task())',
    exact={
      'multi_head': 'one',
      'multi_head_flipped': 'other',
      'multi_head_half_way': 'middle',
      'yq_lsa': 'yq_one',
      'yq_lsa_flipped': 'yq_other',
      'yq_lsa_half_way': 'yq_middle',
    },
    holds='2 * multi_head_half_way > multi_head + multi_head_flipped and 2 * '
    'yq_lsa_half_way > yq_lsa + yq_lsa_flipped',
    note='Flipping the signs of W_P and W_Q changes no prediction, but half way '
    'between both weights the risk is above both ends. In the update U the risk is '
    'convex.',
  ),
  Claim(
    key='theorem-2',
    source='Theorem 2',
    statement='With w* ≠ 0 and the initial guess 0, as C → ∞ the risk of multi-head '
    'LSA has no stationary point except the trivial one.',
    exact={
      'gradient_10': 'update_gradient(theory.optimal_rule(task(10), 0.0), task(10))',
      'gradient_1e5': 'update_gradient(theory.optimal_rule(task(10 ** 5), 0.0), '
      'task(10 ** 5))',
      'gradient_1e9': 'update_gradient(theory.optimal_rule(task(10 ** 9), 0.0), '
      'task(10 ** 9))',
      'in_weights_1e5': 'weight_gradient(best_heads(task(10 ** 5)), task(10 ** 5))',
      'risk_1e5': 'best_risk(task(10 ** 5))',
      'risk_of_zero_weights': 'theory.exact_risk(one_step(0.0, start=0.0), task(10 ** '
      '5))',
      'gap_10': 'best_risk(task(10)) - gd_risk(task(10))',
      'gap_1000': 'best_risk(task(1000)) - gd_risk(task(1000))',
      'gap_1e5': 'best_risk(task(10 ** 5)) - gd_risk(task(10 ** 5))',
      'one_head_1000': 'theory.exact_risk(one_step(1.0, start=0.0), task(1000))',
    },
    holds='stationary = gradient_1e9 < 1e-09 and in_weights_1e5 < 1e-09; not '
    '(stationary and risk_1e5 < risk_of_zero_weights / 2)',
    note='At the optimum with that guess the gradient vanishes at every C, and the gap '
    'to gradient descent is 2|w*|²/(Cd + 2), which goes to 0. The proof treats z_j and '
    'z_k as independent, but they share ŵ. One head, f = yᵀX x_q / C, already tends to '
    'the risk 0.',
  ),
  Claim(
    key='theorem-2-finite',
    source='Theorem 2, at finite C',
    statement='With w* ≠ 0 and the initial guess 0, no number of heads reaches '
    'gradient descent.',
    exact={
      'infimum': 'best_risk(task())',
      'gd': 'gd_risk(task())',
      'gap': 'best_risk(task()) - gd_risk(task())',
    },
    holds='infimum > gd and (not close(infimum, gd))',
    note='The gap is 40/51 at d = C = 10 and |w*|² = 40.',
  ),
  Claim(
    key='appendix-a3',
    source='Appendix A.3 (eqs. 26–29)',
    statement='At finite C there may be stationary points of multi-head LSA, in its '
    'weights, that are not global minima.',
    exact_steps='optimum = theory.optimal_rule(task(), 0.0)',
    exact={
      'gradient_at_zero': 'weight_gradient(zero_weights(), task())',
      'risk_at_zero': 'theory.exact_risk(zero_weights(), task())',
      'infimum_of_eleven_heads': 'head_limit(11)',
      'update_gradient_at_optimum': 'update_gradient(optimum, task())',
      'update_curvature': 'theory.certificate(optimum, task()).smallest_eigenvalue',
    },
    holds='higher = risk_at_zero > infimum_of_eleven_heads; gradient_at_zero < 1e-09 '
    'and higher',
    note='Where all weights are 0 the gradient is 0, and the risk is far above the '
    'infimum. This is about the weights. In the update U the risk is quadratic, and '
    'its Hessian positive definite, so with enough heads U has one stationary point, '
    'the global minimum.',
  ),
  Claim(
    key='appendix-a4',
    source='Appendix A.4',
    statement='The Hessian of the risk in the update U is 2M, where M is made from the '
    'mean of G.',
    exact_steps='nothing, along = (one_step(0.0, start=0.0), one_step(1.0, start=0.0))',
    exact={
      'curvature': 'update_curvature(nothing, along, task())',
      'from_mean_of_g': '2 * task().prior_mean @ task().prior_mean',
      'from_mean_of_g_g': '2 * theory.squared_difference(along, nothing, '
      'task()).prediction',
      'curvature_1e9': 'update_curvature(nothing, along, task(10 ** 9))',
    },
    holds='close(curvature, from_mean_of_g) or close(curvature_1e9, from_mean_of_g)',
    note='It is 2E[G ⊗ G]. The numbers are along the direction Xᵀy/C, with M = E[G] ⊗ '
    'E[G]; the two differ as C → ∞, too, since ŵ stays random.',
  ),
  Claim(
    key='equations-18-20',
    source='Eqs. 18, 20',
    statement='The initial guess y_q = g·x_q can be taken out of the expectation.',
    exact={
      'risk_of_guess': 'theory.exact_risk(one_step(0.0), task())',
      'if_taken_out': 'theory.exact_risk(one_step(0.0, start=0.0), task()) + 10 * 2.0 '
      '** 2',
    },
    holds='close(risk_of_guess, if_taken_out)',
    note='Here with g = w*. It is correlated with the target; a constant is not.',
  ),
  Claim(
    key='equation-7',
    source='Eq. 7',
    statement='LSA with W_P = −(η/C) I and the other matrices of eq. 7 is one step of '
    'gradient descent.',
    exact={
      'as_printed': 'theory.exact_risk(gd_transformer(10 / 21 / 10), task())',
      'without_1_over_c': 'theory.exact_risk(gd_transformer(10 / 21), task())',
      'gd': 'gd_risk(task())',
    },
    holds='close(as_printed, gd)',
    note='Eq. 3 already has a factor 1/C, so the step is C times too small. With W_P = '
    '−η I it is one step.',
  ),
  Claim(
    key='theorem-4',
    source='Theorem 4, step size 1',
    statement='As C → ∞ the GD transformer of eq. 7 (with W_P = −η I, from w*) is a '
    'stationary point of the risk of yq-LSA, for η = 1.',
    exact={
      'gradient_1000': 'update_gradient(one_step(1.0), task(1000))',
      'gradient_1e5': 'update_gradient(one_step(1.0), task(10 ** 5))',
      'in_weights_1000': 'weight_gradient(gd_transformer(1.0), task(1000))',
      'in_weights_1e5': 'weight_gradient(gd_transformer(1.0), task(10 ** 5))',
      'best_step_10': 'update_gradient(one_step(10 / 21), task(10))',
      'best_step_1000': 'update_gradient(one_step(1000 / 1011), task(1000))',
    },
    holds='within(0.05, in_weights_1000 / in_weights_1e5, 100.0)',
    sharp='not (close(best_step_10, 0.0) and close(best_step_1000, 0.0))',
    note='The gradient in the update U is 295/C. With η = C/(C + d + 1) it is 0 at '
    'every C, and the point is the optimum.',
  ),
  Claim(
    key='appendix-b3',
    source='Appendix B.3',
    statement='At finite C the gradient at the GD transformer leaves a residual of '
    'order 1/C.',
    exact={
      'gradient_times_c_10': '10 * update_gradient(one_step(1.0), task(10))',
      'gradient_times_c_1e5': '10 ** 5 * update_gradient(one_step(1.0), task(10 ** 5))',
      'best_step_10': 'update_gradient(one_step(10 / 21), task(10))',
      'half_a_step_times_c_10': '10 * update_gradient(one_step(0.5), task(10))',
      'half_a_step_times_c_1e5': '10 ** 5 * update_gradient(one_step(0.5), task(10 ** '
      '5))',
    },
    holds='within(0.01, gradient_times_c_1e5, gradient_times_c_10)',
    sharp='not close(best_step_10, 0.0)',
    note='This is true for η = 1, but the step size is the cause, not the finite '
    'context: with η = C/(C + d + 1) the residual is 0. With another η it does not go '
    'to 0.',
  ),
  Claim(
    key='conjecture',
    source='Conjecture under Theorem 4',
    statement='At finite C, too, no yq-LSA is better than one step of gradient descent '
    'from w*.',
    exact_steps='certificate = theory.certificate(estimators.gradient_descent(task()), '
    'task())',
    exact={
      'excess': 'certificate.excess_risk',
      'gradient': 'certificate.gradient_norm',
      'curvature': 'certificate.smallest_eigenvalue',
      'step': 'estimators.best_step_size(task())',
      'excess_at_1': 'gd_risk(task(1)) - best_risk(task(1), None)',
      'excess_at_1000': 'gd_risk(task(1000)) - best_risk(task(1000), None)',
    },
    holds='is_optimum = close(excess, 0.0) and gradient < 1e-09 and (curvature > 0); '
    'is_optimum and close(excess_at_1, 0.0) and close(excess_at_1000, 0.0)',
    note='With the step η* = C/(C + d + 1). No other learning rule attains its risk.',
  ),
  Claim(
    key='lemma-3',
    source='Lemma 3',
    statement='Every yq-LSA is an LTB.',
    exact={
      'as_ltb': 'distance(random_yq_lsa(), ltb_from_yq_lsa(random_yq_lsa()))',
      'ltb_as_yq_lsa': 'distance(random_ltb(), yq_lsa_from_ltb(random_ltb()))',
    },
    holds='close(as_ltb, 0.0)',
    sharp='not close(ltb_as_yq_lsa, 0.0)',
    note='The numbers are distances of learning rules, at random weights; 0 means the '
    'same prediction for every prompt. Every LTB is a yq-LSA, too: they are one class '
    'of functions.',
  ),
  Claim(
    key='lemma-3-proof',
    source='Lemma 3, its proof',
    statement='The LTB with Xw in place of the labels predicts the same as the yq-LSA.',
    exact={
      'distance': 'distance(random_yq_lsa(), ltb_without_labels(random_yq_lsa()))',
      'risk_of_yq_lsa': 'theory.exact_risk(gd_transformer(10 / 21), task())',
      'risk_with_xw': 'theory.exact_risk(ltb_without_labels(gd_transformer(10 / 21)), '
      'task())',
    },
    holds='close(distance, 0.0)',
    note='Xw = y holds only for w = ŵ. This block ignores the labels; another block '
    'predicts the same as the yq-LSA (docs/theory.md, section 3).',
  ),
  Claim(
    key='ltb-optimum',
    source='Remark on LTB',
    statement="LTB's optimum is a Newton step, which leaves its gap to gradient "
    'descent open.',
    exact={
      'ltb': 'theory.exact_risk(ltb_from_yq_lsa(gd_transformer(10 / 21)), task())',
      'gd': 'gd_risk(task())',
      'infimum': 'best_risk(task(), None)',
    },
    holds='infimum > gd and (not close(infimum, gd))',
    note='The optimum is the same step of gradient descent as that of yq-LSA.',
  ),
  Claim(
    key='strict-bound',
    source='Experiments: “GD is a strict lower bound”',
    statement='One step of gradient descent has a lower risk than every multi-head LSA '
    'whose fixed guess is not w*.',
    exact={
      'gd': 'gd_risk(task())',
      'infimum': 'best_risk(task())',
      'gap_of_unit_error': 'best_risk(task(mean=0.1 ** 0.5)) - gd_risk(task())',
      'gap_without_error': 'best_risk(task(), 2.0) - gd_risk(task())',
    },
    measured={
      'lowest_of_figure_2': "min(figures['2'].series('b', 'trained').y)",
      'lowest_of_figure_3': "min(figures['3'].series('b', '11 heads, trained').y[1:])",
    },
    holds='exactly = gap_of_unit_error > 1e-09 and close(gap_without_error, 0.0); '
    'exactly and gd < min(infimum, lowest_of_figure_2, lowest_of_figure_3)',
    figures=('2', '3'),
    note='With features of equal variance.',
  ),
  Claim(
    key='figure-1',
    source='Fig. 1',
    statement='Trained LSA stays above gradient descent when w* ≠ 0.',
    exact={
      'lower_bound': 'theory.head_limited_risk(task(), 1, num_starts=1).lower',
      'lowest_known': 'head_limit(1)',
      'gd': 'gd_risk(task())',
    },
    measured={
      'trained': "figures['1'].end('a', 'exact risk')",
      'sampled': "figures['1'].end('a', 'sampled risk, held-out prompts')",
    },
    holds='trained > gd and sampled > gd and (lower_bound > gd)',
    figures=('1',),
    note='No LSA with the guess 0 has a risk below the lower bound, which is proved.',
  ),
  Claim(
    key='figure-2',
    source='Fig. 2',
    statement='The risk falls with the number of heads, is flat from d + 1 = 11 on, '
    'and stays above gradient descent.',
    exact={
      'one': 'head_limit(1)',
      'nine': 'head_limit(9)',
      'ten': 'head_limit(10)',
      'eleven': 'head_limit(11)',
      'gd': 'gd_risk(task())',
    },
    measured_steps="trained = figures['2'].series('b', 'trained').y; lowest = "
    "figures['2'].series('b', 'lowest known risk').y",
    measured={
      'trained_1': "figures['2'].at('b', 'trained', 1)",
      'trained_10': "figures['2'].at('b', 'trained', 10)",
      'trained_11': "figures['2'].at('b', 'trained', 11)",
      'trained_16': "figures['2'].at('b', 'trained', 16)",
      'worst_excess': 'np.max(np.divide(trained, lowest)) - 1',
    },
    holds='flat = trained_1 > trained_11 and within(0.01, trained_16, trained_11); '
    'flat and trained_16 > gd and (worst_excess < 0.01)',
    sharp='ten > eleven and (not close(ten, eleven))',
    figures=('2',),
    note='It is flat from d = 10 heads on.',
  ),
  Claim(
    key='figure-3',
    source='Fig. 3: linear gap',
    statement='The gap to gradient descent grows linearly with |w*|².',
    exact={
      'slope': '(best_risk(task(mean=4.0)) - best_risk(task(mean=0.0))) / 160',
      'slope_below_40': '(best_risk(task(mean=2.0)) - best_risk(task(mean=0.0))) / 40',
      'kappa': '2 / (10 * 10 + 2)',
    },
    measured={
      'trained_slope': "figures['3'].slope('b', '11 heads, trained')",
      'trained_correlation': "figures['3'].correlation('b', '11 heads, trained')",
    },
    holds='trained = within(0.03, trained_slope, kappa) and trained_correlation > '
    '0.999; close(slope, slope_below_40) and trained',
    figures=('3',),
    note='The slope is κ = 2/(Cd + 2) = 1/51 with d heads or more.',
  ),
  _FIGURE_4,
  dataclasses.replace(
    _FIGURE_4,
    key='figure-4-bias',
    source='Fig. 4: bias',
    statement='With w* = 0 the gap is directly proportional to the square of the '
    'initial bias.',
    exact={
      'gap_of_0': 'best_risk(centred, 0.0, 0.0) - gd_risk(centred)',
      'gap_of_40': 'best_risk(centred, 0.0, 40 ** 0.5) - gd_risk(centred)',
      'gap_of_160': 'best_risk(centred, 0.0, 160 ** 0.5) - gd_risk(centred)',
      'slope': '(best_risk(centred, 0.0, 160 ** 0.5) - best_risk(centred)) / 160',
      'kappa': '2 / (10 * 10 + 2)',
    },
    measured=_replaced(_FIGURE_4.measured, "'b'", "'d'"),
    note='The slope is the same.',
  ),
  Claim(
    key='figure-5a',
    source='Fig. 5a, trained as in the paper',
    statement='Trained yq-LSA reaches gradient descent, to 1 %, for each prior.',
    exact={
      'gd': 'gd_risk(task())',
    },
    measured={
      'w_0': "figures['5'].end('a', 'w* = (0, …, 0)')",
      'w_1': "figures['5'].end('a', 'w* = (1, …, 1)')",
      'w_2': "figures['5'].end('a', 'w* = (2, …, 2)')",
    },
    holds='all((within(0.01, risk, gd) for risk in (w_0, w_1, w_2)))',
    figures=('5',),
    note='At the rate 5e-4 Adam needs 4000 of the 5000 steps to carry the guess from 0 '
    'to 2. The paper does not say where the guess starts; from a start near w*, or for '
    'a smaller w*, the same training would reach gradient descent.',
  ),
  Claim(
    key='figure-5a-converged',
    source='Fig. 5a, trained to the end',
    statement='Trained yq-LSA reaches gradient descent, to 1 %, at w* = (2, …, 2).',
    exact={
      'gd': 'gd_risk(task())',
    },
    measured={
      'w_2': "figures['5'].end('a', 'w* = (2, …, 2), lr 5e-3, cosine')",
    },
    holds='within(0.01, w_2, gd)',
    figures=('5',),
  ),
  _FIGURE_5B,
  dataclasses.replace(
    _FIGURE_5B,
    key='figure-5b-paper',
    source='Fig. 5b, trained as in the paper',
    measured=_replaced(_FIGURE_5B.measured, 'lr 5e-3, cosine', 'paper'),
    note='At w* = (2, …, 2), by the same rule: as in Fig. 5a, the guess starts at 0 '
    'and has not reached w* when training ends.',
  ),
  _FIGURE_6,
  dataclasses.replace(
    _FIGURE_6,
    key='appendix-c3',
    source='Appendix C.3',
    statement='The language model refines the initial guess that it is given: its '
    'answers are better than the guess.',
    measured_steps="mean, high = free_difference(figures, 'with guess − guess alone')",
    note='For free answers, against the error of the guess itself on the same prompts.',
  ),
)
