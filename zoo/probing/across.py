"""Several runs side by side: which heads of one seed are in the other seeds, too."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from zoo.core.errors import UserError, check_name, shown
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.measure.intervals import Estimate, estimate
from zoo.measure.table import Rows, WithRows
from zoo.probing.activations import attention_maps
from zoo.probing.attention_heads import site_of_heads
from zoo.probing.checks import check_has_kind, sites_of_kind
from zoo.probing.graph import Node
from zoo.probing.patch import REPLACEMENTS, Moves, moved_losses, share_moved

WAYS = 'attention', 'effect'
_LEAST_PROMPTS = 64
_NUM_PERMUTATIONS = 1000
# Variation below this share of the mean square is rounding of float32.
_ROUNDING = 1e-12


class Matched(NamedTuple):
  """A head or a site of the first model, and what is like it in the other models.

  It is a row of the table that `across_seeds` returns. A correlation is None if the
  values of the head do not vary from prompt to prompt, in the first model or in one of
  the others.

  Attributes:
    site: The site in the first model.
    head: The head, from 0. None means that whole sites are compared.
    matches: The head or site of each other model that does most nearly the same, in the
      order of the models. `AcrossSeeds.nodes` has them as nodes.
    correlation: The correlation with the match, mean over the other models. It has no
      interval: all of these correlations are with the same head of the first model.
    lowest: The lowest of these correlations.
    unmatched: The mean correlation with all heads of another model but the match. It
      says how alike any two heads are. None if there is one head.
    share: The share of the gap, mean over all models: that of the head in the first
      model, and those of its matches. Its interval is over models, which are
      independent. None if a model has no share (see `Effect`).
    holds: Whether `lowest` is above `AcrossSeeds.chance`: whether each other model has
      such a head.
  """

  site: str
  head: int | None
  matches: str
  correlation: float | None
  lowest: float | None
  unmatched: float | None
  share: Estimate | None
  holds: bool


@dataclasses.dataclass(frozen=True)
class AcrossSeeds(WithRows):
  """The heads of one model, and those of other seeds that do the same.

  `across_seeds` returns it. It prints as a table. `records` returns the rows as
  dictionaries, `to_frame` as a data frame of pandas, and `to_csv` writes them to a
  file.

  Attributes:
    rows: One row for each head, or site, of the first model.
    nodes: For each row the head or site in each model, that of the first model first.
    permuted: The correlation of chance, by prompts: if the prompts of another model are
      permuted, the largest correlation of all rows is above it in 5 % of cases.
    untrained: The correlation of chance, by heads: the largest one between a head of an
      untrained model and its match in another untrained model. None if none were given.
    by: What is correlated, the argument of `across_seeds`.
    kind: What `share` is the effect of, the argument of `across_seeds`.
    num_models: The number of models.
    num_prompts: The number of prompts on which they are compared.
  """

  rows: Rows[Matched]
  nodes: list[list[Node]]
  permuted: float
  untrained: float | None
  by: str
  kind: str
  num_models: int
  num_prompts: int

  @property
  def chance(self) -> float:
    """The correlation that a head which holds exceeds in each other model."""
    return max(self.permuted, self.untrained or 0.0)

  @property
  def footer(self) -> str:
    """What ± and `holds` mean."""
    levels = f'{self.permuted:.3f} with permuted prompts'
    if self.untrained is not None:
      levels += f', {self.untrained:.3f} between untrained models'
    return (
      f'The share is that of {self.kind!r}; ± is t·s.e. over {self.num_models} models, '
      f'on the same {self.num_prompts} prompts.\n'
      f'holds: the lowest correlation is above chance, {levels}'
    )


def across_seeds(
  models: Sequence[Predictor],
  task: Task,
  clean: Prompt,
  corrupt: Prompt,
  sites: Sequence[str] | None = None,
  *,
  by: str = 'attention',
  kind: str = 'recovered',
  heads: bool = True,
  untrained: Sequence[Predictor] = (),
  seed: int = 0,
) -> AcrossSeeds:
  """Matches the heads of models of several seeds by what they do, and compares them.

  Training from another seed may give the same heads in another order, or other layers.
  So each head of the first model is paired with one head of each other model, of any
  layer, such that the sum of the correlations of all pairs is the largest possible. The
  first half of the prompts decides on the pairs. All numbers of the table are of the
  second half, so that a pair that is alike by chance is not called alike.

  - Quantity: `correlation`, Σ ab / √(Σ a² Σ b²). By attention, a and b are the
    attention weights of two heads minus their means over prompts, and the sums are over
    prompts, queries and keys. What a head attends to in all prompts alike, such as a
    position, does not count. By effect, a and b are the ranks, minus the mean rank, of
    what the heads add to the loss of each prompt, `kind` of `effects`; the correlation
    is that of Spearman. `share` is the share of `effects`.
  - Null: `correlation` is 0 on average if the prompts of another model are permuted.
    The largest of all rows is then below `permuted` in 95 % of 1,000 permutations.
    Heads of untrained models read the same prompts, so that some of them attend alike
    in part, and are above `permuted`. So give untrained models: heads then hold only
    above `untrained`, the largest correlation of these.
  - Counterfactual: the corrupt prompts, and the values v' of `effects`, for `share` and
    for `by='effect'`. Correlations of attention describe one forward pass.
  - Denominator: the gap of each model, of `share`.

  Args:
    models: Two or more models with the same sites and heads, such as those of several
      seeds. The first one names the rows.
    task: The task of the prompts, whose loss is taken.
    clean: 64 or more prompts.
    corrupt: As many prompts of the same sizes, as for `effects`.
    sites: The sites to compare. None means those of the kind `heads`, or with
      `heads=False` those of the kind `added`, the outputs of mixers and networks.
    by: What is correlated: 'attention', the attention weights, which need heads; or
      'effect', what replacing the value adds to the loss of each prompt.
    kind: What the value is replaced by, one of 'recovered', 'zero', 'mean' and
      'resample' of `effects`.
    heads: Whether each head is compared by itself. False compares whole sites.
    untrained: No or several models as they were before training, such as
      `SavedModel.untrained(seed)`. They say how alike heads are without training. If
      training made no heads alike, a trained model has a head above `untrained` in
      another one with a probability of at most 1/(1 + ⌊k/2⌋) for k untrained models:
      ⌊k/2⌋ of their pairs share no model. So a level of 5 % takes 38 of them.
    seed: The seed of the permutations.

  Returns:
    One row for each head or site of the first model.

  Raises:
    UserError: If there are too few models or prompts, or the models differ in their
      sites or heads; if `by` cannot compare these sites; or if `effects` refuses them.

  Example:
    The heads of layer 1 are given in another order to a copy of the model.

    >>> saved = zoo.load('checkpoints/transformer')
    >>> copy = nnx.clone(saved.model)
    >>> mixer, order = copy.layers[1].mixer, np.arange(48).reshape(4, 12)[::-1].ravel()
    >>> for layer in (mixer.query, mixer.key, mixer.value):
    ...   layer.kernel[...] = layer.kernel[...][:, order]
    ...   if layer.bias is not None:
    ...     layer.bias[...] = layer.bias[...][order]
    >>> mixer.out.kernel[...] = mixer.out.kernel[...][order]
    >>> clean = saved.task.sample(jax.random.key(0), 128)
    >>> corrupt = saved.task.redraw(jax.random.key(1), clean, 'inputs')
    >>> sites = ['layers.1.mixer.heads']
    >>> found = zoo.probing.across_seeds(
    ...   [saved.model, copy], saved.task, clean, corrupt, sites
    ... )
    >>> [(row.head, row.matches, round(row.lowest, 3)) for row in found.rows]
    [(0, 'head 3', 1.0), (1, 'head 2', 1.0), (2, 'head 1', 1.0), (3, 'head 0', 1.0)]

  References:
    Li et al., "Convergent Learning", arXiv 1511.07543, who match units of networks by
    their correlation with the same assignment.
  """
  _check(models, untrained, clean, by, kind, heads)
  if sites is None:
    wanted = 'heads' if heads else 'added'
    check_has_kind(models[0], [wanted], 'which is what across_seeds compares')
    sites = sites_of_kind(models[0], wanted)
    for i, model in enumerate(models):
      own = [Node(site) for site in sites_of_kind(model, wanted)]
      _check_parts(f'model {i}', own, [Node(site) for site in sites])

  def measured(model: Predictor) -> Moves:
    return moved_losses(model, task, clean, corrupt, sites, kind, heads)

  moves = [measured(model) for model in models]
  parts = moves[0].parts
  for i, of_model in enumerate(moves):
    _check_parts(f'model {i}', of_model.parts, parts)
  if by == 'attention':
    values = [_attention(model, clean, parts) for model in models]
    of_untrained = [_attention(model, clean, parts) for model in untrained]
  else:
    values = [of_model.moved[..., None] for of_model in moves]
    found = [measured(model) for model in untrained]
    for i, of_model in enumerate(found):
      _check_parts(f'untrained model {i}', of_model.parts, parts)
    of_untrained = [of_model.moved[..., None] for of_model in found]
  middle = len(clean.x) // 2
  normal = _by_ranks if by == 'effect' else _centred
  first, *others = [_halves(array, middle, normal) for array in values]
  pairs = [match(first[0], other[0]) for other in others]
  tables = [_correlations(first[1], other[1]) for other in others]
  generator = np.random.default_rng(seed)
  permuted = max(
    _permuted(first[1], other[1][pair], generator)
    for other, pair in zip(others, pairs, strict=True)
  )
  bare = _largest([_halves(array, middle, normal) for array in of_untrained])
  chance = max(permuted, bare or 0.0)
  shares = [_shares(of_model, middle, kind) for of_model in moves]
  rows, nodes = Rows[Matched](), []
  for i in range(len(parts)):
    places = [i, *(int(pair[i]) for pair in pairs)]
    nodes.append([parts[place] for place in places])
    rows.append(_row(nodes[-1], places, tables, shares, chance))
  num_prompts = len(clean.x) - middle
  return AcrossSeeds(rows, nodes, permuted, bare, by, kind, len(models), num_prompts)


def _row(
  nodes: Sequence[Node],
  places: Sequence[int],
  tables: Sequence[Float[np.ndarray, 'u u']],
  shares: Sequence[Float[np.ndarray, ' u']],
  chance: float,
) -> Matched:
  """Returns the row of a head or site of the first model.

  Args:
    nodes: It, and its match in each other model.
    places: Their numbers among the heads or sites of each model.
    tables: The correlations of all of the first model with all of each other model.
    shares: The shares of all of each model.
    chance: The correlation that a head which holds exceeds.
  """
  own, *others = places
  matched = [table[own, other] for table, other in zip(tables, others, strict=True)]
  rest = [
    np.delete(table[own], other) for table, other in zip(tables, others, strict=True)
  ]
  lowest = None if np.isnan(matched).any() else float(min(matched))
  of_models = [of[place] for of, place in zip(shares, places, strict=True)]
  return Matched(
    nodes[0].site,
    nodes[0].head,
    '; '.join(_in_words(node, nodes[0]) for node in nodes[1:]),
    correlation=None if lowest is None else float(np.mean(matched)),
    lowest=lowest,
    unmatched=_mean_of_known(rest),
    share=None if np.isnan(of_models).any() else estimate(of_models),
    holds=lowest is not None and lowest > chance,
  )


def match(
  first: Float[np.ndarray, 'u p m'], second: Float[np.ndarray, 'v p m']
) -> Int[np.ndarray, ' u']:
  """Returns the part of `second` for each part of `first`, each of them once.

  The sum of the correlations of all pairs is the largest possible. A part that does not
  vary counts as one whose correlation is 0.
  """
  from scipy.optimize import linear_sum_assignment  # It is slow to import.

  correlations = np.nan_to_num(_correlations(first, second))
  return linear_sum_assignment(correlations, maximize=True)[1]


def _check(
  models: Sequence[Predictor],
  untrained: Sequence[Predictor],
  clean: Prompt,
  by: str,
  kind: str,
  heads: bool,
) -> None:
  """Raises UserError for arguments that across_seeds does not take."""
  for name, given in (('models', models), ('untrained', untrained)):
    if not isinstance(given, list | tuple):
      raise UserError(
        f'{name} is of type {type(given).__name__}; it must be a list of models'
      )
  if len(models) < 2:
    raise UserError(f'there are {len(models)} models; matching needs two or more')
  if len(untrained) == 1:
    raise UserError(
      'there is one untrained model; untrained models are compared with one another: '
      'give two or more, or none'
    )
  check_name('by', by, WAYS)
  check_name('kind', kind, REPLACEMENTS)
  if by == 'attention' and not heads:
    raise UserError(
      "heads is False and by is 'attention'; whole sites have no attention weights: "
      "use by='effect'"
    )
  if len(clean.x) < _LEAST_PROMPTS:
    raise UserError(
      f'there are {len(clean.x)} prompts; matching on one half of them and comparing '
      f'on the other needs {_LEAST_PROMPTS} or more'
    )


def _check_parts(name: str, found: Sequence[Node], wanted: Sequence[Node]) -> None:
  """Raises UserError unless a model has the parts of the first model."""
  if found != wanted:
    other = [*{*found} ^ {*wanted}]
    raise UserError(
      f'{name} has other heads or sites than the first: '
      f'{shown([str(node) for node in other])}'
    )


def _attention(
  model: Predictor, clean: Prompt, parts: Sequence[Node]
) -> Float[np.ndarray, 'u p m']:
  """Returns the attention weights of heads; in a looped model, those of all loops."""
  maps: dict[str, list[Array]] = {}
  for layer, attention in attention_maps(model, clean).items():
    site = site_of_heads(model, layer)
    if site is not None:
      maps.setdefault(site.partition('@')[0], []).append(attention)
  for part in parts:
    calls = maps.get(part.site)
    if calls is None or (part.head or 0) >= calls[0].shape[1]:
      raise UserError(
        f'{part} has no attention weights in {type(model).__name__}; compare models '
        "with the same heads, or compare them by='effect'"
      )
  of_sites = {
    site: np.concatenate(
      [np.asarray(array, np.float64).reshape(*array.shape[:2], -1) for array in calls],
      axis=-1,
    )
    for site, calls in maps.items()
  }
  return np.stack([of_sites[part.site][:, part.head] for part in parts])


def _halves(
  values: Float[np.ndarray, 'u p m'], middle: int, normal: Callable[..., np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the values of the first and of the second half of the prompts."""
  return normal(values[:, :middle]), normal(values[:, middle:])


def _centred(values: Float[np.ndarray, 'u p m']) -> Float[np.ndarray, 'u p m']:
  """Returns values minus their means over prompts, with the sum of squares 1.

  They are NaN for a part whose values do not vary beyond rounding.
  """
  apart = values - values.mean(axis=1, keepdims=True)
  squares = np.sum(apart**2, axis=(1, 2), keepdims=True)
  is_known = squares > _ROUNDING * np.sum(values**2, axis=(1, 2), keepdims=True)
  return np.where(is_known, apart / np.sqrt(np.where(is_known, squares, 1)), math.nan)


def _by_ranks(values: Float[np.ndarray, 'u p m']) -> Float[np.ndarray, 'u p m']:
  """Returns the ranks of values over prompts, as `_centred` does."""
  from scipy.stats import rankdata  # It is slow to import.

  return _centred(rankdata(values, axis=1))


def _correlations(
  first: Float[np.ndarray, 'u p m'], second: Float[np.ndarray, 'v p m']
) -> Float[np.ndarray, 'u v']:
  """Returns the correlations of all pairs; NaN for a part that does not vary."""
  return first.reshape(len(first), -1) @ second.reshape(len(second), -1).T


def _permuted(
  first: Float[np.ndarray, 'u p m'],
  second: Float[np.ndarray, 'u p m'],
  generator: np.random.Generator,
) -> float:
  """Returns the 95 % quantile of the largest correlation with permuted prompts."""
  products = np.einsum('upm,uqm->upq', first, second, optimize=True)
  rows = np.arange(first.shape[1])
  largest = [
    np.nanmax(
      products[:, rows, generator.permutation(len(rows))].sum(axis=1), initial=0.0
    )
    for _ in range(_NUM_PERMUTATIONS)
  ]
  return float(np.quantile(largest, 0.95))


def _largest(
  halves: Sequence[tuple[np.ndarray, np.ndarray]],
) -> float | None:
  """Returns the largest correlation of matches between two untrained models."""
  if not halves:
    return None
  largest = 0.0
  for i, first in enumerate(halves):
    for other in halves[:i]:
      pair = match(first[0], other[0])
      matched = _correlations(first[1], other[1])[np.arange(len(pair)), pair]
      largest = np.nanmax(matched, initial=largest)
  return float(largest)


def _shares(found: Moves, middle: int, kind: str) -> Float[np.ndarray, ' u']:
  """Returns the share of each part on the second half; NaN where there is none."""
  ends = found.clean[middle:], found.corrupt[middle:]
  shares = [share_moved(kind, moved[middle:], *ends) for moved in found.moved]
  return np.array([math.nan if share is None else share.mean for share in shares])


def _mean_of_known(values: Sequence[np.ndarray]) -> float | None:
  """Returns the mean over models of their mean over parts that vary."""
  known = [array[~np.isnan(array)] for array in values]
  if not all(len(array) for array in known):
    return None
  return float(np.mean([array.mean() for array in known]))


def _in_words(node: Node, beside: Node) -> str:
  """Returns a node; the end of its site that `beside` has as well is left out."""
  names, others = node.site.split('.'), beside.site.split('.')
  while names and others and names[-1] == others[-1]:
    names, others = names[:-1], others[:-1]
  head = [] if node.head is None else [f'head {node.head}']
  return ' '.join([*(['.'.join(names)] if names else []), *head]) or node.site
