"""Claims on figures 5 and 6: trained guesses, and guesses for a language model."""

from __future__ import annotations

from zoo import estimators, theory
from zoo.studies.paper.claims.claim import (
  Claim,
  Figures,
  Measured,
  close,
  nothing_exact,
  within,
)
from zoo.studies.paper.setting import gd_risk, one_step, task


def figure_5a() -> Claim:
  def exact():
    return {'gd': gd_risk(task())}

  def measured(figures: Figures):
    return {
      'w_0': figures['5'].end('a', 'w* = (0, …, 0)'),
      'w_1': figures['5'].end('a', 'w* = (1, …, 1)'),
      'w_2': figures['5'].end('a', 'w* = (2, …, 2)'),
    }

  def holds(gd: float, w_0: float, w_1: float, w_2: float) -> bool:
    return all(within(0.01, risk, gd) for risk in (w_0, w_1, w_2))

  return Claim(
    'figure-5a',
    'Fig. 5a, trained as in the paper',
    'Trained yq-LSA reaches gradient descent, to 1 %, for each prior.',
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('5',),
    note='At the rate 5e-4 Adam needs 4000 of the 5000 steps to carry the guess from 0 '
    'to 2. The paper does not say where the guess starts; from a start near w*, or for '
    'a smaller w*, the same training would reach gradient descent.',
  )


def figure_5a_converged() -> Claim:
  def exact():
    return {'gd': gd_risk(task())}

  def measured(figures: Figures):
    return {'w_2': figures['5'].end('a', 'w* = (2, …, 2), lr 5e-3, cosine')}

  def holds(gd: float, w_2: float) -> bool:
    return within(0.01, w_2, gd)

  return Claim(
    'figure-5a-converged',
    'Fig. 5a, trained to the end',
    'Trained yq-LSA reaches gradient descent, to 1 %, at w* = (2, …, 2).',
    exact=exact,
    holds=holds,
    measured=measured,
    figures=('5',),
  )


def _alignment_exact():
  gd = estimators.gradient_descent(task())
  optimum = theory.optimal_rule(task())
  nothing = one_step(0.0, start=0.0)
  return {
    'difference': theory.squared_difference(optimum, gd, task()).prediction,
    'size_of_gradient': theory.squared_difference(gd, nothing, task()).gradient ** 0.5,
  }


def _aligned(
  difference: float,
  size_of_gradient: float,
  prediction: float,
  gradient: float,
  cosine: float,
) -> bool:
  """Fig. 5b: the differences are below 2 % of the gradient, and the cosine is 1."""
  small = max(prediction, gradient) < 0.02 * size_of_gradient
  return close(difference, 0.0) and small and cosine > 0.999


def figure_5b() -> Claim:
  def measured(figures: Figures):
    return {
      'prediction': figures['5'].end('b', 'lr 5e-3, cosine: sampled'),
      'gradient': figures['5'].end('c', 'lr 5e-3, cosine: sampled'),
      'cosine': figures['5'].end('d', 'lr 5e-3, cosine: sampled'),
    }

  return Claim(
    'figure-5b',
    'Fig. 5b, trained to the end',
    'While yq-LSA trains, its predictions and gradients become those of gradient '
    'descent: the differences go to 0 and the cosine similarity to 1.',
    exact=_alignment_exact,
    holds=_aligned,
    measured=measured,
    figures=('5',),
    note='At w* = (2, …, 2).',
  )


def figure_5b_paper() -> Claim:
  def measured(figures: Figures):
    return {
      'prediction': figures['5'].end('b', 'paper: sampled'),
      'gradient': figures['5'].end('c', 'paper: sampled'),
      'cosine': figures['5'].end('d', 'paper: sampled'),
    }

  return Claim(
    'figure-5b-paper',
    'Fig. 5b, trained as in the paper',
    'While yq-LSA trains, its predictions and gradients become those of gradient '
    'descent: the differences go to 0 and the cosine similarity to 1.',
    exact=_alignment_exact,
    holds=_aligned,
    measured=measured,
    figures=('5',),
    note='At w* = (2, …, 2), by the same rule: as in Fig. 5a, the guess starts at 0 '
    'and has not reached w* when training ends.',
  )


def _difference(figures: Figures, name: str) -> tuple[float | None, float | None]:
  """The mean paired difference of free answers in Fig. 6, and its interval's upper end.

  Both are None if no prompt has both answers.
  """
  try:
    one = figures['6'].series('b', name)
  except KeyError:
    return None, None
  for x, mean, high in zip(one.x, one.y, one.high, strict=True):
    if round(x) == 0:  # free answers are the first readout
      return mean, high
  return None, None


def figure_6() -> Claim:
  def measured(figures: Figures) -> Measured:
    mean, high = _difference(figures, 'with − without guess')
    return {'difference': mean, 'upper_end': high}

  def holds(upper_end: float) -> bool:
    return upper_end < 0

  return Claim(
    'figure-6',
    'Fig. 6',
    'With initial guesses in the prompt a language model answers with a lower error '
    'than without.',
    exact=nothing_exact,
    holds=holds,
    measured=measured,
    figures=('6',),
    note='For free answers, on the prompts that have both, which may be a selection. '
    'It holds for the model that was run if the 95 % interval of the difference is '
    'below 0. For another model than the two of the paper this only means that the '
    'difference has the same sign. A guess can be copied: see the next claim.',
  )


def appendix_c3() -> Claim:
  def measured(figures: Figures) -> Measured:
    mean, high = _difference(figures, 'with guess − guess alone')
    return {'difference': mean, 'upper_end': high}

  def holds(upper_end: float) -> bool:
    return upper_end < 0

  return Claim(
    'appendix-c3',
    'Appendix C.3',
    'The language model refines the initial guess that it is given: its answers are '
    'better than the guess.',
    exact=nothing_exact,
    holds=holds,
    measured=measured,
    figures=('6',),
    note='For free answers, against the error of the guess itself on the same prompts.',
  )


CLAIMS = (
  *(figure_5a(), figure_5a_converged(), figure_5b(), figure_5b_paper()),
  *(figure_6(), appendix_c3()),
)
