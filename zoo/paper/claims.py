"""The claims of arXiv 2512.04268, each with a verdict that follows from numbers.

Numbers, and the conditions on them, are Python expressions: they are evaluated here and
written into `claims.json`, so that a reader can evaluate them again. None is typed in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import zoo
from zoo.paper import setting
from zoo.plots import Plot

HOLDS, NOT_SHARP, FAILS = 'holds', 'holds, not sharp', 'fails'


@dataclasses.dataclass(frozen=True)
class Claim:
  """What is claimed, the numbers on it, and how they decide.

  `exact` and `measured` are expressions by name, in `names`; those measured read the
  figures listed. The conditions are expressions in these names.
  """

  key: str
  source: str
  statement: str
  exact: Mapping[str, str]
  holds_if: str
  measured: Mapping[str, str] = dataclasses.field(default_factory=dict)
  sharp_if: str = 'True'
  figures: tuple[str, ...] = ()
  note: str = ''


def names(plots: Mapping[str, Plot]) -> dict[str, Any]:
  """What the expressions may use: the setting, NumPy, zoo, and the figures by name."""
  short = {name: getattr(setting, name) for name in _SHORT}
  return {
    **short,
    'np': np,
    'zoo': zoo,
    'close': lambda a, b: math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9),
    'within': lambda share, a, b: abs(a / b - 1) <= share,
    'figure': lambda name: plots[str(name)],
  }


_SHORT = (
  *('task', 'transformer', 'stretched', 'label_blind', 'gd_risk', 'best_risk'),
  *('theory', 'estimators', 'constructions'),
)


def judge(claim: Claim, plots: Mapping[str, Plot]) -> dict[str, Any]:
  """The claim with its numbers and its verdict, as it stands in `claims.json`.

  What is measured in figures that are not there is None, and so is a verdict that
  needs it.
  """
  available = names(plots)
  drawn = all(name in plots for name in claim.figures)
  exact = {name: float(eval(call, available)) for name, call in claim.exact.items()}
  measured = {
    name: float(eval(call, available)) if drawn else None
    for name, call in claim.measured.items()
  }
  return {
    'key': claim.key,
    'source': claim.source,
    'statement': claim.statement,
    'verdict': verdict(claim.holds_if, claim.sharp_if, {**exact, **measured}),
    'exact': exact,
    'measured': measured,
    'calls': {**claim.exact, **claim.measured},
    'holds_if': claim.holds_if,
    'sharp_if': claim.sharp_if,
    'figures': list(claim.figures),
    'note': claim.note,
  }


def verdict(
  holds_if: str, sharp_if: str, numbers: Mapping[str, float | None]
) -> str | None:
  """The verdict that the conditions give; None if a number they need is missing."""
  known = {name: value for name, value in numbers.items() if value is not None}
  try:
    if not eval(holds_if, {**names({}), **known}):
      return FAILS
    return HOLDS if eval(sharp_if, {**names({}), **known}) else NOT_SHARP
  except NameError:
    return None


_GD = 'gd_risk(task())'
_LIMIT = 'theory.isotropic_head_limit(10, 10, {}, 2 * 10**0.5)'
_GAP = 'best_risk(task({0})) - gd_risk(task({0}))'

CLAIMS = (
  Claim(
    'theorem-1',
    'Theorem 1',
    'd + 1 = 11 heads are enough: more do not lower the infimum of the risk.',
    exact={
      'any_number': 'best_risk(task())',
      'eleven': _LIMIT.format(11),
      'ten': 'theory.exact_risk(constructions.multi_head_lsa('
      'theory.optimal_rule(task(), 0.0)), task())',
      'nine': _LIMIT.format(9),
    },
    measured={
      f'trained_{heads}': f"figure(2).at('b', 'trained', {heads})"
      for heads in (9, 10, 11, 16)
    },
    figures=('2',),
    holds_if='close(eleven, any_number)',
    sharp_if='ten > eleven and not close(ten, eleven)',
    note='d heads are enough; d − 1 are not.',
  ),
  Claim(
    'value-space',
    'Eqs. 5, 6 (proof of Theorem 1)',
    'A head counts only by the last row of W_P W_V and by W_Kᵀ W_Q, and so d + 1 heads '
    'realise every rule that any number of heads realises.',
    exact={
      'rule': 'theory.exact_risk(theory.optimal_rule(task(noise_std=1.0), 0.0), '
      'task(noise_std=1.0))',
      'model': 'theory.exact_risk(constructions.multi_head_lsa('
      'theory.optimal_rule(task(noise_std=1.0), 0.0)), task(noise_std=1.0))',
      'heads': 'constructions.multi_head_lsa('
      'theory.optimal_rule(task(noise_std=1.0), 0.0)).num_heads',
    },
    holds_if='close(rule, model) and heads <= 11',
    note='With label noise the optimum does take d + 1 heads.',
  ),
  Claim(
    'theorem-2',
    'Theorem 2',
    'With w* ≠ 0 and the initial guess 0, the gap between multi-head LSA and gradient '
    'descent stays as C → ∞.',
    exact={
      **{f'gap_{c}': _GAP.format(c) for c in (10, 1000, 100000)},
      'one_head_1000': 'theory.exact_risk('
      'zoo.LearningRule.gradient_descent(np.zeros(10), 1.0), task(1000))',
    },
    measured={
      f'trained_gap_{c}': f"figure('context').at('b', 'LSA, 11 heads, trained', {c})"
      for c in (10, 80)
    },
    figures=('context',),
    holds_if='gap_100000 > gap_10 / 100',
    note='It is 2|w*|²/(Cd + 2). The proof takes z_j and z_k for independent, but they '
    'share ŵ. One head, f = yᵀX x_q / C, already tends to the risk 0.',
  ),
  Claim(
    'theorem-2-finite',
    'Theorem 2, at finite C',
    'With w* ≠ 0 and the initial guess 0, no number of heads reaches gradient descent.',
    exact={'infimum': 'best_risk(task())', 'gd': _GD, 'gap': _GAP.format(10)},
    measured={'lowest_trained': "min(figure(2).series('b', 'trained').y)"},
    figures=('2',),
    holds_if='infimum > gd and not close(infimum, gd)',
    note='The gap is 40/51 at d = C = 10 and |w*|² = 40.',
  ),
  Claim(
    'theorem-4',
    'Theorem 4',
    'As C → ∞ the optimum of yq-LSA is one step of gradient descent from w*.',
    exact={
      **{
        f'excess_{c}': f'gd_risk(task({c})) - best_risk(task({c}), None)'
        for c in (1, 10, 1000)
      },
      'model_1000': 'theory.exact_risk(constructions.gd_transformer('
      'task().prior_mean, 1000 / 1011), task(1000))',
      'gd_1000': 'gd_risk(task(1000))',
    },
    measured={
      'trained_80': "figure('context').at('a', 'yq-LSA, trained', 80)",
    },
    figures=('context',),
    holds_if='close(excess_1000, 0) and close(model_1000, gd_1000)',
    sharp_if='not close(excess_10, 0)',
    note='It is so at every C, not in the limit alone.',
  ),
  Claim(
    'conjecture',
    'Conjecture under Theorem 4',
    'At finite C, too, no yq-LSA is better than one step of gradient descent from w*.',
    exact={
      'excess': 'theory.certificate(estimators.gradient_descent(task()), task())'
      '.excess_risk',
      'gradient': 'theory.certificate(estimators.gradient_descent(task()), task())'
      '.gradient_norm',
      'curvature': 'theory.certificate(estimators.gradient_descent(task()), task())'
      '.smallest_eigenvalue',
      'step': 'estimators.best_step_size(task())',
    },
    measured={
      'trained': "figure(5).end('a', 'w* = (2, …, 2), lr 5e-3, cosine')",
    },
    figures=('5',),
    holds_if='close(excess, 0) and gradient < 1e-9 and curvature > 0',
    note='With the step η* = C/(C + d + 1). No other learning rule reaches it.',
  ),
  Claim(
    'equation-7',
    'Eq. 7',
    'LSA with W_P = −(η/C) I and the other matrices of eq. 7 is one step of gradient '
    'descent.',
    exact={
      'as_printed': 'theory.exact_risk(transformer(10 / 21 / 10), task())',
      'without_1_over_c': 'theory.exact_risk(transformer(10 / 21), task())',
      'gd': _GD,
    },
    holds_if='close(as_printed, gd)',
    note='Eq. 3 has a 1/C of its own, so that the step is C times too small. With '
    'W_P = −η I it is one step.',
  ),
  Claim(
    'lemma-3',
    'Lemma 3',
    'Every yq-LSA is an LTB.',
    exact={
      'yq_lsa': 'theory.exact_risk(transformer(10 / 21), task())',
      'as_ltb': 'theory.exact_risk('
      'constructions.ltb_from_yq_lsa(transformer(10 / 21)), task())',
      'and_back': 'theory.exact_risk(constructions.yq_lsa_from_ltb('
      'constructions.ltb_from_yq_lsa(transformer(10 / 21))), task())',
    },
    holds_if='close(yq_lsa, as_ltb)',
    sharp_if='not close(yq_lsa, and_back)',
    note='Every LTB is a yq-LSA, too: they are one class of functions.',
  ),
  Claim(
    'lemma-3-proof',
    'Lemma 3, its proof',
    'The LTB with Xw in place of the labels predicts as the yq-LSA.',
    exact={
      'yq_lsa': 'theory.exact_risk(transformer(10 / 21), task())',
      'with_xw': 'theory.exact_risk(label_blind(), task())',
    },
    holds_if='close(yq_lsa, with_xw)',
    note='Xw = y holds for w = ŵ only. This block ignores the labels; another one does '
    'it (docs/theory.md, section 3).',
  ),
  Claim(
    'ltb-optimum',
    'Remark on LTB',
    "LTB's optimum is a Newton step, which leaves its gap to gradient descent open.",
    exact={
      'ltb': 'theory.exact_risk('
      'constructions.ltb_from_yq_lsa(transformer(10 / 21)), task())',
      'gd': _GD,
      'infimum': 'best_risk(task(), None)',
    },
    measured={'trained': "figure('context').at('a', 'LTB, trained', 10)"},
    figures=('context',),
    holds_if='infimum > gd and not close(infimum, gd)',
    note='It is the same step of gradient descent as yq-LSA’s.',
  ),
  Claim(
    'equations-18-20',
    'Eqs. 18, 20',
    'The initial guess y_q = g·x_q can be taken out of the expectation.',
    exact={
      'risk_of_guess': 'theory.exact_risk('
      'zoo.LearningRule.gradient_descent(np.full(10, 2.0), 0.0), task())',
      'if_taken_out': 'theory.exact_risk('
      'zoo.LearningRule.gradient_descent(np.zeros(10), 0.0), task()) + 10 * 2.0**2',
    },
    holds_if='close(risk_of_guess, if_taken_out)',
    note='Here with g = w*. It is correlated with the target; a constant is not.',
  ),
  Claim(
    'strict-bound',
    'Experiments: “GD is a strict lower bound”',
    'One step of gradient descent is below every multi-head LSA whose fixed guess is '
    'not w*.',
    exact={
      'gd': _GD,
      'infimum': 'best_risk(task())',
      'gap_of_unit_error': 'best_risk(task(mean=0.1**0.5)) - gd_risk(task())',
      'gap_without_error': 'best_risk(task(), 2.0) - gd_risk(task())',
    },
    measured={
      'lowest_of_figure_2': "min(figure(2).series('b', 'trained').y)",
      'lowest_of_figure_3': "min(figure(3).series('b', '11 heads, trained').y[1:])",
    },
    figures=('2', '3'),
    holds_if='gap_of_unit_error > 1e-9 and infimum > gd and close(gap_without_error, 0)'
    ' and lowest_of_figure_2 > gd and lowest_of_figure_3 > gd',
    note='With features of equal variance.',
  ),
  Claim(
    'strict-bound-covariance',
    'Beyond the paper',
    'One step of gradient descent with the best step size is a lower bound for every '
    'covariance of the features.',
    exact={
      'gd': 'gd_risk(task(mean=0.5, feature_covariance=stretched(10.0)))',
      'infimum': 'best_risk(task(mean=0.5, feature_covariance=stretched(10.0)))',
      'optimum': 'best_risk(task(mean=0.5, feature_covariance=stretched(10.0)), None)',
    },
    measured={
      'trained': "figure('covariance').at('a', 'LSA, 11 heads, trained', 10.0)",
      'trained_yq_lsa': "figure('covariance').at('a', 'yq-LSA, trained', 10.0)",
    },
    figures=('covariance',),
    holds_if='infimum >= gd',
    note='Eleven heads with the initial guess 0 pass below it, as they learn a matrix '
    'for the step.',
  ),
  Claim(
    'figure-1',
    'Fig. 1',
    'Trained LSA stays above gradient descent when w* ≠ 0.',
    exact={'infimum': _LIMIT.format(1), 'gd': _GD},
    measured={
      'trained': "figure(1).end('a', 'exact risk')",
      'sampled': "figure(1).end('a', 'sampled risk, held-out prompts')",
    },
    figures=('1',),
    holds_if='trained > gd and sampled > gd and infimum > gd',
  ),
  Claim(
    'figure-2',
    'Fig. 2',
    'The risk falls with the number of heads, is flat from d + 1 = 11 on, and stays '
    'above gradient descent.',
    exact={
      **{
        name: _LIMIT.format(heads)
        for name, heads in {'one': 1, 'nine': 9, 'ten': 10, 'eleven': 11}.items()
      },
      'gd': _GD,
    },
    measured={
      'trained_1': "figure(2).at('b', 'trained', 1)",
      'trained_10': "figure(2).at('b', 'trained', 10)",
      'trained_11': "figure(2).at('b', 'trained', 11)",
      'trained_16': "figure(2).at('b', 'trained', 16)",
      'worst_excess': "np.max(np.divide(figure(2).series('b', 'trained').y, "
      "figure(2).series('b', 'exact infimum').y)) - 1",
    },
    figures=('2',),
    holds_if='trained_1 > trained_11 and within(0.01, trained_16, trained_11) and '
    'trained_16 > gd and worst_excess < 0.01',
    sharp_if='ten > eleven and not close(ten, eleven)',
    note='It is flat from d = 10 heads on.',
  ),
  Claim(
    'figure-3',
    'Fig. 3: linear gap',
    'The gap to gradient descent grows linearly with |w*|².',
    exact={
      'slope': '(best_risk(task(mean=4.0)) - best_risk(task(mean=0.0))) / 160',
      'slope_below_40': '(best_risk(task(mean=2.0)) - best_risk(task(mean=0.0))) / 40',
      'kappa': '2 / (10 * 10 + 2)',
    },
    measured={
      'trained_slope': "figure(3).slope('b', '11 heads, trained')",
      'trained_correlation': "figure(3).correlation('b', '11 heads, trained')",
    },
    figures=('3',),
    holds_if='close(slope, slope_below_40) and within(0.03, trained_slope, kappa) and '
    'trained_correlation > 0.999',
    note='Of slope κ = 2/(Cd + 2) = 1/51 with d heads or more.',
  ),
  Claim(
    'figure-4-guess',
    'Fig. 4: guess',
    'With w* = 0 the gap grows with the norm of the initial guess.',
    exact={
      'slope': '(best_risk(task(mean=0.0), 4.0) - best_risk(task(mean=0.0))) / 160',
      'kappa': '2 / (10 * 10 + 2)',
      'as_in_figure_3': '(best_risk(task(mean=4.0)) - best_risk(task(mean=0.0))) / 160',
    },
    measured={'trained_slope': "figure(4).slope('b', 'trained')"},
    figures=('4',),
    holds_if='close(slope, kappa) and within(0.03, trained_slope, kappa)',
    note='Linearly in |g|²; it is the experiment of Fig. 3 over again.',
  ),
  Claim(
    'figure-4-bias',
    'Fig. 4: bias',
    'With w* = 0 the gap grows with the initial bias.',
    exact={
      'slope': '(best_risk(task(mean=0.0), 0.0, 160**0.5) - '
      'best_risk(task(mean=0.0))) / 160',
      'kappa': '2 / (10 * 10 + 2)',
    },
    measured={'trained_slope': "figure(4).slope('d', 'trained')"},
    figures=('4',),
    holds_if='close(slope, kappa) and within(0.03, trained_slope, kappa)',
    note='Linearly in β², of the same slope.',
  ),
  Claim(
    'figure-5a',
    'Fig. 5a, trained as in the paper',
    'Trained yq-LSA reaches gradient descent, to 1 %, for each prior.',
    exact={'gd': _GD},
    measured={
      f'w_{mean}': f"figure(5).end('a', 'w* = ({mean}, …, {mean})')"
      for mean in (0, 1, 2)
    },
    figures=('5',),
    holds_if='all(within(0.01, risk, gd) for risk in (w_0, w_1, w_2))',
    note='At the rate 5e-4 Adam needs 4000 of the 5000 steps to carry the guess from 0 '
    'to 2.',
  ),
  Claim(
    'figure-5a-converged',
    'Fig. 5a, trained to the end',
    'Trained yq-LSA reaches gradient descent, to 1 %, at w* = (2, …, 2).',
    exact={'gd': _GD},
    measured={
      'w_2': "figure(5).end('a', 'w* = (2, …, 2), lr 5e-3, cosine')",
    },
    figures=('5',),
    holds_if='within(0.01, w_2, gd)',
  ),
  Claim(
    'figure-5b',
    'Fig. 5b',
    'While yq-LSA trains its predictions and gradients become those of gradient '
    'descent: the differences go to 0 and the cosine similarity to 1.',
    exact={
      'difference': 'theory.squared_difference('
      'theory.optimal_rule(task()), estimators.gradient_descent(task()), task())'
      '.prediction',
      'size_of_gradient': 'theory.squared_difference(estimators.gradient_descent('
      'task()), zoo.LearningRule.gradient_descent(np.zeros(10), 0.0), task())'
      '.gradient ** 0.5',
    },
    measured={
      'prediction': "figure(5).end('b', 'lr 5e-3, cosine: sampled')",
      'gradient': "figure(5).end('c', 'lr 5e-3, cosine: sampled')",
      'cosine': "figure(5).end('d', 'lr 5e-3, cosine: sampled')",
      'paper_prediction': "figure(5).end('b', 'paper: sampled')",
      'paper_gradient': "figure(5).end('c', 'paper: sampled')",
      'paper_cosine': "figure(5).end('d', 'paper: sampled')",
    },
    figures=('5',),
    holds_if='close(difference, 0) and prediction < 0.02 * size_of_gradient and '
    'gradient < 0.02 * size_of_gradient and cosine > 0.999',
    note='Once it is trained to the end.',
  ),
)
