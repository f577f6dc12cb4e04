"""Moments of the sample covariance of features with any covariance."""

import functools
import itertools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

# A word has the powers a in Σ^a₀ W Σ^a₁ W … W Σ^aₘ, or in the trace
# tr W Σ^a₁ W … W Σ^aₘ.
_Word = tuple[int, ...]


def feature_moments(
  variances: Float[np.ndarray, ' d'], context_length: int, size: int
) -> tuple[Float[np.ndarray, 'd n n'], Float[np.ndarray, ' m']]:
  """Returns `E (Sⁱ Σ Sʲ)_kk` for i, j < `size`, and `E tr Σ Sⁱ` for i < 2 size − 1.

  `variances` are the eigenvalues of Σ, and k counts its eigenvectors. Along these axes
  `E Sⁱ Σ Sʲ` is diagonal, since the distribution does not change if a feature changes
  sign. All moments are sums of positive terms; `size` 5 needs several hundred of them.
  """
  expected = _expectation(variances, context_length)

  def moment(i: int, j: int) -> Float[np.ndarray, ' d']:
    return expected((0,) * i + (1,) + (0,) * j, ()) / context_length ** (i + j)

  moments = [[moment(i, j) for j in range(size)] for i in range(size)]
  traces = [moment(0, i).sum() for i in range(2 * size - 1)]
  return np.moveaxis(np.array(moments), 2, 0), np.array(traces)


def _expectation(
  variances: Float[np.ndarray, ' d'], context_length: int
) -> Callable[[_Word, tuple[_Word, ...]], Float[np.ndarray, ' d']]:
  """Returns a function for the diagonal of `E Σ^a₀ W Σ^a₁ … W Σ^aₘ` times traces.

  W is `XᵀX`. Let R be what follows the first `W = Σ_i x_i x_iᵀ`, let `R = R' W R''` at
  any other W in R, and let F be the product of traces. Integration by parts in the
  first factor x of the first W gives

      E Σ^a W R F = C E Σ^(a+1) R F + Σ E Σ^(a+1) (R'ᵀ W R'' + R'' tr W R') F
                    + Σ E Σ^(a+1) (T + Tᵀ) W R F/tr(W T),

  where the last sum is over every W of every trace, rotated to begin with that W.
  """

  def expected(word: _Word, traces: tuple[_Word, ...]) -> Float[np.ndarray, ' d']:
    # A transposed word has the same diagonal.
    return known(min(word, word[::-1]), tuple(sorted(map(_least, traces))))

  @functools.cache
  def known(word: _Word, traces: tuple[_Word, ...]) -> Float[np.ndarray, ' d']:
    power, *others = word
    if not others:
      factor = 1.0
      if traces:
        factor = expected((0, *traces[0]), traces[1:]).sum()
      return variances**power * factor
    rest = tuple(others)

    def after(*words: _Word) -> _Word:
      """Returns `Σ^(a+1)` and the words, with a W between one word and the next."""
      first, *later = itertools.chain(*words)
      return (power + 1 + first, *later)

    total = context_length * expected(after(rest), traces)
    for i in range(1, len(rest)):
      before, behind = rest[:i], rest[i:]
      total = total + expected(after(before[::-1], behind), traces)
      total = total + expected(after(behind), (*traces, before))
    for i, trace in enumerate(traces):
      left = traces[:i] + traces[i + 1 :]
      for j in range(len(trace)):
        turned = trace[j:] + trace[:j]
        total = total + expected(after(turned, rest), left)
        total = total + expected(after(turned[::-1], rest), left)
    return total

  return expected


def _least(trace: _Word) -> _Word:
  """Returns the first of the words with this trace, by rotation and transposition."""
  both = trace, trace[::-1]
  return min(word[i:] + word[:i] for word in both for i in range(len(word)))
