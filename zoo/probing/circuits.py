"""Circuits: few edges between parts of a model that recover most of a gap."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import heapq
import math
import operator
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from zoo.core.draws import CURVE_STREAM, stream_of
from zoo.core.errors import (
  UserError,
  check_count,
  check_name,
  check_number,
  check_truth,
)
from zoo.core.prompt import Prompt
from zoo.core.protocols import KEPT, Predictor, Task, require_task
from zoo.core.tables import format_table
from zoo.host.progress import progress_bar
from zoo.measure.intervals import (
  Estimate,
  Interval,
  difference,
  estimate,
  one_more,
  resampled_means,
)
from zoo.measure.predict import Programs
from zoo.measure.ratio import Share, share_of_gap, why_no_share
from zoo.measure.table import Rows, WithRows, name_of_own, plus_minus
from zoo.probing.attribution_patching import NUM_STEPS, mean_over_steps
from zoo.probing.graph import Graph, Node, graph_of
from zoo.probing.patch import LossAtQuery, checked_prompts
from zoo.probing.token_graph import TokenGraph, token_graph_of

# Both have `edges`, `outputs`, `bytes_per_prompt`, `ends` and `run`.
_AnyGraph: TypeAlias = Graph | TokenGraph

_ENOUGH = 0.9  # A circuit recovers this share of the gap.
_NUM_RANDOM = 10  # This many random sets are drawn for each size.
_ALL_SIZES = 32  # Up to this number of edges, the curve has all sizes.
_NUM_SIZES = 16  # The curve of a larger graph has this many sizes.
_ONE_BY_ONE = 32  # Up to this number of edges, the search adds one edge at a time.
_GROWTH = 1.05  # From there on, each set of the search is larger by this factor.
_FEW = 8  # The search runs a multiple of this number of sets.
_AT_ONCE = 32  # One call of a program runs up to this many sets.
_RUNS_OF_SCORES = 3 * NUM_STEPS  # The scores take about as long as so many runs.
_BYTES = 2**24  # What all senders add to the streams of one batch of prompts.
_LISTED = 20  # The printed table has this many edges.
_NUM_SAMPLES = 200  # The bootstrap draws the prompts of the search this many times.
_LEAST_PROMPTS = 64  # With fewer, mean ± half contains the truth in under 88 %.


class Edge(NamedTuple):
  """A connection of a sender to a receiver through the residual stream.

  The edges of a model are in the `Circuit` that `circuit` returns.

  The sender adds a value to the residual stream. The edge is the part of this value in
  what one receiver reads from the stream; other receivers read it by other edges.

  Attributes:
    sender: The node that adds the value: the embedded tokens (the first site of the
      stream), one head, or a network. With `tokens` it is the embedded tokens, a mixer
      or a network at one token; or the state of a mixer after one token, such as
      `layers.0.mixer.state`, which the next token of the mixer reads.
    receiver: The node that reads the stream: the queries, keys or values of one head, a
      network, or the last site of the stream, which the readout reads. With `tokens` it
      is a mixer, the state of a mixer, or a network at one token, or the last site.
    score: The share of the gap that the clean value on this edge recovers, to the first
      order.
    is_kept: Whether the edge belongs to the circuit. None means that the search was
      stopped before it came to this edge.
    kept_share: The share of 200 bootstrap samples of the prompts in whose circuit the
      edge is, from 0 to 1 (see `circuit`). None means that the search was stopped.
    found_share: The share of all searches, this one and those on other prompts, in
      whose circuit the edge is. None means that there was one search.
  """

  sender: Node
  receiver: Node
  score: Share
  is_kept: bool | None
  kept_share: float | None
  found_share: float | None


class EdgeRow(NamedTuple):
  """An edge as a row of a table.

  Attributes:
    sender: The site of the sender.
    sender_head: The head of the sender; None if it is not a head.
    sender_token: The token of the sender; None if it stands for all tokens.
    receiver: The site of the receiver.
    receiver_head: The head of the receiver; None if it is not a part of a head.
    receiver_token: The token of the receiver; None if it stands for all tokens.
    score: The score of the edge.
    is_kept: Whether the edge belongs to the circuit; None if it was not searched.
    kept_share: The share of bootstrap samples in whose circuit the edge is; None if the
      search was stopped.
    found_share: The share of searches in whose circuit the edge is; None if there was
      one search.
  """

  sender: str
  sender_head: int | None
  sender_token: int | None
  receiver: str
  receiver_head: int | None
  receiver_token: int | None
  score: Share
  is_kept: bool | None
  kept_share: float | None
  found_share: float | None


class CurvePoint(NamedTuple):
  """The shares of the gap that n edges recover: the first n, and n random ones.

  The first n edges are those that the search for the circuit adds first. The field
  `curve` of a `Circuit` has such a point for several n.

  Attributes:
    num_edges: The number of edges, n.
    recovered: The share of the gap that the first n edges recover.
    random: The mean share that ten random sets of n edges recover. Its `half` is half
      of the interval that contains the share of one more random set on the same prompts
      with a probability of 95 %, if these shares are normal (see
      `zoo.measure.intervals.one_more`). A random set grows from the readout, as the
      circuit does, and takes the edges in a random order.
    largest_random: The largest share of the ten random sets. If the first n edges were
      a random set, too, they would be above all ten with a probability of 1/11. It has
      no interval, since the largest of ten estimates is too large on average.
  """

  num_edges: int
  recovered: Share
  random: Interval
  largest_random: float


@dataclasses.dataclass(frozen=True)
class Circuit(WithRows):
  """The edges of a model, those of its circuit, and what they recover.

  `circuit` returns it. Losses, `curve` and the shares of sets of edges are measured on
  other prompts than those on which the circuit was chosen; the fields of edges and
  `sizes` are about the searches. It prints as a table. `records` returns the
  rows as dictionaries, `to_frame` as a data frame of pandas, and `to_csv` writes them
  to a file.

  A limit of time, or Ctrl-C, stops the work. If it stops the search, the circuit is
  that of the edges searched until then: they would belong to the circuit of a longer
  search, too, but recover less than 90 % without the others.

  Attributes:
    edges: All edges, in the order in which the set of edges grows.
    curve: The share that the first n edges recover, for several n from 1 on. It lacks
      some n if the work was stopped.
    recovered: The share of the gap that the circuit recovers.
    random: The mean share that ten random sets of as many edges recover. Its `half` is
      that of predicting one more random set, as in `CurvePoint`.
    largest_random: The largest share of the ten random sets. A set that is random
      itself recovers more than this with a probability of 1/11.
    without: The share that all other edges recover without the circuit.
    clean: The loss in the clean prompts.
    corrupt: The loss in the corrupt prompts.
    gap: The corrupt loss minus the clean loss, prompt by prompt.
    sizes: The number of edges of the circuit that each finished search has found. The
      first number is that of this circuit, unless its search was stopped.
    stopped: Why the work was stopped before its end: 'by Ctrl-C', or 'after 2 minutes'.
      None means that it was not.
  """

  edges: list[Edge]
  curve: list[CurvePoint]
  recovered: Share
  random: Interval
  largest_random: float
  without: Share
  clean: Estimate
  corrupt: Estimate
  gap: Estimate
  sizes: list[int]
  stopped: str | None = None

  @property
  def kept(self) -> list[Edge]:
    """The edges of the circuit."""
    return [edge for edge in self.edges if edge.is_kept]

  @property
  def range_of_sizes(self) -> tuple[int, int, float] | None:
    """The smallest and the largest of `sizes`, and what they say of one more search.

    The third number is the probability that one more search, on other prompts, finds a
    number within this range: (k − 1) / (k + 1) for k searches, or more. For k + 1
    independent draws of any distribution, each is the smallest with probability
    1 / (k + 1), and as often the largest; ties add to the probability. None means that
    fewer than two searches were finished.
    """
    return None if len(self.sizes) < 2 else _range_of(self.sizes)

  @property
  def rows(self) -> Rows[EdgeRow]:
    """One row for each edge, with the parts of its two nodes in columns."""
    return Rows(
      EdgeRow(
        edge.sender.site,
        edge.sender.head,
        edge.sender.token,
        edge.receiver.site,
        edge.receiver.head,
        edge.receiver.token,
        edge.score,
        edge.is_kept,
        edge.kept_share,
        edge.found_share,
      )
      for edge in self.edges
    )

  def __str__(self) -> str:
    kept = self.kept
    mean, _, half = plus_minus(self.random).partition(' ± ')
    said = (
      f'{len(kept)} of {len(self.edges)} edges recover {plus_minus(self.recovered)} of '
      f'the gap.\n'
      f'{_NUM_RANDOM} random sets of {len(kept)} edges recover {mean} on average '
      f'(± {half} for one more set), and at most {self.largest_random:.3f}.\n'
      f'The other {len(self.edges) - len(kept)} edges recover '
      f'{plus_minus(self.without)}.'
    )
    if (sizes := self.range_of_sizes) is not None:
      low, high, probability = sizes
      said += (
        f'\n{len(self.sizes)} searches, each on prompts of its own, found {low} to '
        f'{high} edges; one more does so with a probability of at least '
        f'{probability:.0%}.'
      )
    if self.stopped is not None:
      said = f'Stopped {self.stopped}: {self._missing}\n{said}'
    rows = [
      (
        str(edge.sender),
        str(edge.receiver),
        plus_minus(edge.score),
        *(
          '—' if share is None else f'{share:.2f}'
          for share in (edge.kept_share, edge.found_share)
        ),
      )
      for edge in kept[:_LISTED]
    ]
    # Scores are shares of the gap of the prompts of the search, which is not `gap`.
    half = name_of_own(self.edges[0].score)
    header = 'sender', 'receiver', f'score {half}', 'samples', 'searches'
    more = f'\n… and {len(kept) - _LISTED} more' if len(kept) > _LISTED else ''
    return f'{said}\n{format_table(rows, header)}{more}'

  @property
  def _missing(self) -> str:
    """What was not done, if the work was stopped."""
    num_open = sum(edge.is_kept is None for edge in self.edges)
    if num_open:
      return (
        f'{num_open} of {len(self.edges)} edges were not searched; the others do not '
        f'recover {_ENOUGH:.0%} on the prompts of the search.'
      )
    if self.edges[0].kept_share is None:
      return 'the search did not come to the sets that say how sure each edge is.'
    return 'the curve lacks some numbers of edges, or there were fewer searches.'


def _range_of(sizes: Sequence[int]) -> tuple[int, int, float]:
  """Returns the range of some numbers, and how probably one more is in it, at least."""
  count = len(sizes)
  return min(sizes), max(sizes), (count - 1) / (count + 1)


def circuit(
  model: Predictor,
  task: Task,
  keep: str | None = 'inputs',
  num_prompts: int = 256,
  seed: int = 0,
  minutes: float | None = None,
  *,
  tokens: bool = False,
  num_searches: int = 5,
) -> Circuit:
  """Finds few edges that recover 90 % of the gap between corrupt and clean loss.

  The search is greedy, so that there may be a smaller set. The model is a graph. The
  embedded tokens, heads and networks add to the residual stream; the queries, keys and
  values of each head, each network and the readout read the sum. An edge connects an
  adder to a later reader.

  With `tokens` the parts are mixers and networks, each at one token. An edge leads from
  what a part adds at the token s to what a later part reads when it computes its value
  at the token t. A mixer that takes tokens one by one, such as a recurrence, reads the
  stream of its own token alone, and its state after the token before: this state is a
  node, too. It has an edge to the next state, and an edge to what the mixer adds at the
  next token. All other mixers have an edge from each token on which they depend.

  In a run of a set of edges, the edges of the set carry what their senders add in this
  run of clean prompts, and all other edges carry what their senders add in corrupt
  prompts. Norms, attention and states are computed from the resulting streams; nothing
  in such a run is an approximation.

  Edges are scored by EAP-IG: the change of what the sender adds, from corrupt to clean
  prompts, times the mean gradient of the loss in the receiver's stream. The mean is
  over the midpoints of ten steps from corrupt to clean embedded tokens. The set of
  edges grows from the readout: next comes the edge with the largest `|score|` among
  those that lead into a part which the set has reached. From 32 edges on, the set grows
  by 5 % at a time. The growth stops at the first set that recovers 90 % of the gap on
  the prompts of the scores. What sets of edges recover is measured on other prompts.

  One search is one draw: other prompts give other scores, and another number of edges.
  So the search is done again on other prompts. `found_share` says how many of these
  searches find an edge, and `Circuit.sizes` has their numbers of edges. The field
  `kept_share` needs no other prompts: those of the search are drawn again with
  replacement, 200 times. Each time the scores order the edges anew, and as many of the
  first edges are kept as first recover 90 % of the gap, read from the sets that the
  search has run. So the model is not run anew, and sets of edges that the search has
  not seen are not judged.

  - Quantity: (E L(corrupt) − E L(set)) / (E L(corrupt) − E L(clean)), called
    faithfulness, where E is over pairs of prompts. A score is the share that the edge
    recovers to the first order.
  - Null: what ten random sets of as many edges recover, grown from the readout in
    random order; the result has it for every size of the curve. The empty set recovers
    0, and the set of all edges recovers 1. A prediction that ignores the context does
    not recover 0: the empty set predicts from wrong labels, which costs more than no
    labels. With squared loss and the labels y' of another function of the same inputs,
    E L(corrupt) is E (y − y')² = 2 Var y for a model whose clean loss is near 0. The
    mean label costs Var y, so that it recovers about one half.
  - Counterfactual: `task.redraw`, with `keep`. An edge that carries the same value in
    clean and corrupt prompts belongs to no circuit. With `keep='inputs'` these are the
    edges whose values depend on features and positions alone.
  - Denominator: the gap E L(corrupt) − E L(clean).

  Args:
    model: A model with taps of the kinds `stream`, `query`, `key`, `value`, `heads` and
      `added`, such as a transformer with softmax or linear attention and without loops.
      With `tokens` it needs the kinds `stream` and `added` alone, so that it may be a
      transformer with any mixer.
    task: The task, whose loss L is taken at the queries of its clean prompts. All
      prompts are those that it holds out.
    keep: What the corrupt prompts have in common with the clean ones: 'inputs' or
      'query' (as in `task.redraw`), or None for nothing.
    num_prompts: The number of pairs of prompts on which the circuit is chosen, at least
      64. As many other pairs measure it. The number after ± is the standard error
      times Student's t. It is half of a 95 % interval from 1024 pairs on, and the
      printed table says '± t·s.e.' if there are fewer. For `checkpoints/transformer`
      `recovered` ± half contains the truth in 0.88, 0.91, 0.92 and 0.93 of draws of 64,
      128, 256 and 512 pairs.
    seed: The seed of the prompts and of the random sets.
    minutes: The limit of time, above 0. After it the searches and the curve are stopped
      where they are. The scores of all edges, the first eight sets of the search, and
      the shares of what has been found are computed in any case. None means no limit.
      Ctrl-C after the first eight sets stops the search or the curve in the same way;
      pressed again, or before, it raises `KeyboardInterrupt`.
    tokens: Whether the nodes are parts of the model at single tokens, instead of heads
      and networks at all tokens.
    num_searches: The number of searches, at least 1, each with prompts of its own. The
      first one gives the circuit. The others say how far it depends on its prompts.

  Returns:
    All edges with their scores, the curve, and the shares of the circuit. If the work
    was stopped, the field `stopped` says why, and the field `is_kept` is None for edges
    that were not searched.

  Raises:
    UserError: If the model lacks one of the kinds, has loops, or reads the stream or
      the prompt past its taps; if the task does not redraw prompts; or if the gap is
      less than 3 standard errors above 0, or no more than rounding.

  Example:
    >>> saved = zoo.load('checkpoints/transformer')
    >>> found = zoo.probing.circuit(
    ...   saved.model, saved.task, num_prompts=64, num_searches=1
    ... )
    >>> len(found.kept) < len(found.edges)
    True

  References:
    Hanna et al., arXiv 2403.17806; Syed et al., arXiv 2310.10348; Conmy et al., arXiv
    2304.14997.
  """
  require_task(task)
  if keep is not None:
    check_name('keep', keep, KEPT)
  check_count('num_prompts', num_prompts, minimum=_LEAST_PROMPTS)
  check_count('seed', seed, minimum=0)
  if minutes is not None:
    check_number('minutes', minutes, above=0.0)
  check_truth('tokens', tokens)
  check_count('num_searches', num_searches)
  keys = jax.random.split(stream_of(seed, CURVE_STREAM))
  choosing, judging = (_pair(task, keep, num_prompts, key) for key in keys)
  graph = (token_graph_of if tokens else graph_of)(model, choosing[0])
  runner = _Runner(model, task, graph, num_prompts, minutes)
  with contextlib.closing(runner.bar):
    clean_loss, corrupt_loss = runner.checked_ends(*choosing)
    search = _Search(runner, choosing, clean_loss, corrupt_loss)
    search.run()
    judged = _judged(runner, judging, search.order, search.num_kept, seed)
    searches = [search] if search.is_finished else []
    runner.expect((num_searches - 1) * (search.num_sets + 2 + _RUNS_OF_SCORES))
    with runner.until_stopped():
      for i in range(1, num_searches):
        # Splitting the key, for the prompts, takes the first two numbers.
        pair = _pair(task, keep, num_prompts, jax.random.fold_in(keys[1], 1 + i))
        ends = runner.losses(*pair, [np.arange(len(graph.edges)), np.arange(0)])
        other = _Search(runner, pair, *ends)
        other.run()
        if other.is_finished:
          searches.append(other)
  kept_shares = search.kept_shares() if search.is_finished else None
  found = [set(of.order[: of.num_kept]) for of in searches]
  edges = []
  for rank, i in enumerate(search.order):
    sender, receiver = graph.edges[i]
    score = _share(search.by_edge[:, i], clean_loss, corrupt_loss)
    is_kept = rank < search.num_kept or (False if search.has_found else None)
    kept_share = None if kept_shares is None else float(kept_shares[i])
    found_share = None
    if len(found) > 1:
      found_share = float(np.mean([i in of for of in found]))
    edges.append(Edge(sender, receiver, score, is_kept, kept_share, found_share))
  sizes = [of.num_kept for of in searches]
  return Circuit(edges=edges, sizes=sizes, stopped=runner.stopped, **judged)


class _Search:
  """The search for the smallest number of the first edges that recover enough.

  Attributes:
    by_edge: What each edge recovers in each prompt of the search, to the first order.
    order: The edges in the order in which the set grows.
    counts: The numbers of edges of the sets that the search may run.
    recovered: What the sets of the first of these numbers recover in each prompt of the
      search. A search that is not stopped goes to twice the number that it finds, or a
      little more.
    num_kept: The number of edges that it has found. If it was stopped before, this is
      the number of edges that it has searched; the smallest number is larger.
    has_found: Whether the first `num_kept` edges recover enough, or are all edges.
    is_finished: Whether it was not stopped.
  """

  def __init__(
    self,
    runner: _Runner,
    prompts: tuple[Prompt, Prompt],
    clean_loss: Float[np.ndarray, ' b'],
    corrupt_loss: Float[np.ndarray, ' b'],
  ):
    self.runner, self.prompts = runner, prompts
    self.corrupt_loss, self.gap = corrupt_loss, corrupt_loss - clean_loss
    self.by_edge = runner.recovered_by_edge(*prompts)
    self.order = _grown(runner.graph, np.abs(self.by_edge.mean(axis=0)))
    self.counts = _counts(len(self.order))
    self.recovered: list[np.ndarray] = []
    self.num_kept, self.has_found, self.is_finished = 0, False, False

  @property
  def num_sets(self) -> int:
    """The number of sets that were run."""
    return len(self.recovered)

  def run(self) -> None:
    """Searches until it is finished or stopped, at first a few numbers of edges."""
    self._add(_FEW)
    with self.runner.until_stopped():
      # Twice as many at a time find a number n before 2 n are searched.
      while not self.has_found:
        self._add(min(self.num_sets, _AT_ONCE))
      whole = _FEW * math.ceil(2 * self.num_kept / _FEW)
      whole = sum(count <= whole for count in self.counts)
      while self.num_sets < whole:
        self._add(min(whole - self.num_sets, _AT_ONCE))
      self.is_finished = True

  def _add(self, num_sets: int) -> None:
    """Runs the next sets of edges, each of which contains the last."""
    counts = self.counts[self.num_sets : self.num_sets + num_sets]
    losses = self.runner.losses(*self.prompts, [self.order[:n] for n in counts])
    recovered = [self.corrupt_loss - of_set for of_set in losses]
    self.recovered += recovered
    if not self.has_found:
      wanted = _ENOUGH * self.gap.mean()
      pairs = zip(counts, recovered, strict=True)
      enough = [count for count, of_set in pairs if of_set.mean() >= wanted]
      self.num_kept = min(enough, default=counts[-1])
      self.has_found = bool(enough) or self.num_kept == len(self.order)

  def kept_shares(self) -> Float[np.ndarray, ' e']:
    """Returns the share of bootstrap samples in whose circuit each edge is."""
    recovered = np.stack(self.recovered, axis=1)
    columns = np.concatenate([self.by_edge, recovered, self.gap[:, None]], axis=1)
    num_edges, times_kept = len(self.order), np.zeros(len(self.order))
    for means in resampled_means(columns, _NUM_SAMPLES):
      order = _grown(self.runner.graph, np.abs(means[:num_edges]))
      is_enough = means[num_edges:-1] >= _ENOUGH * means[-1]
      last = int(is_enough.argmax()) if is_enough.any() else len(is_enough) - 1
      times_kept[order[: self.counts[last]]] += 1
    return times_kept / _NUM_SAMPLES


def _counts(num_edges: int) -> list[int]:
  """Returns the numbers of edges of the sets of a search: all small ones, then some."""
  counts = [*range(1, min(num_edges, _ONE_BY_ONE) + 1)]
  while counts[-1] < num_edges:
    counts.append(min(num_edges, math.ceil(_GROWTH * counts[-1])))
  return counts


def _judged(
  runner: _Runner,
  judging: tuple[Prompt, Prompt],
  order: Int[np.ndarray, ' e'],
  num_kept: int,
  seed: int,
) -> dict[str, Any]:
  """Returns what the circuit, the rest and random sets recover, on new prompts.

  These are the fields of a `Circuit` but its edges. If the runner is stopped, the curve
  lacks some points; it has that of the circuit in any case.
  """
  num_edges = len(runner.graph.edges)
  generator = np.random.default_rng(seed)
  orders = [
    _grown(runner.graph, generator.permutation(num_edges).astype(float))
    for _ in range(_NUM_RANDOM)
  ]
  counts = sorted({*_sizes(num_edges), num_kept} - {0})
  runner.expect(3 + (1 + _NUM_RANDOM) * len(counts))
  clean_loss, corrupt_loss = runner.checked_ends(*judging)

  def point_of(count: int) -> CurvePoint:
    sets = [order[:count], *(random[:count] for random in orders)]
    losses = runner.losses(*judging, sets)
    recovered = _share(corrupt_loss - losses[0], clean_loss, corrupt_loss)
    random = _of_random(losses[1:], clean_loss, corrupt_loss)
    return CurvePoint(count, recovered, *random)

  (without,) = runner.losses(*judging, [order[num_kept:]])
  points = {num_kept: (point := point_of(num_kept))}
  with runner.until_stopped():
    for count in counts:
      if count != num_kept:
        points[count] = point_of(count)
  return {
    'curve': [points[count] for count in sorted(points)],
    'recovered': point.recovered,
    'random': point.random,
    'largest_random': point.largest_random,
    'without': _share(corrupt_loss - without, clean_loss, corrupt_loss),
    'clean': estimate(clean_loss),
    'corrupt': estimate(corrupt_loss),
    'gap': difference(corrupt_loss, clean_loss),
  }


def _pair(
  task: Task, keep: str | None, num_prompts: int, key: Array
) -> tuple[Prompt, Prompt]:
  """Returns clean and corrupt prompts, which the task holds out."""
  task = task.held_out()
  clean_key, corrupt_key = jax.random.split(key)
  clean = task.sample(clean_key, num_prompts)
  if keep is None:
    corrupt = task.sample(corrupt_key, num_prompts)
  else:
    corrupt = task.redraw(corrupt_key, clean, keep)
  return checked_prompts(clean, corrupt)


class _TimeIsUp(Exception):
  """The limit of time has passed."""


class _Runner:
  """A runner of sets of edges of one model, with a progress bar and a limit of time.

  Attributes:
    graph: The graph of the model.
    bar: The progress bar. Its unit is a run of one set for one batch of prompts.
    stopped: Why the work was stopped. None means that it was not.
  """

  def __init__(
    self,
    model: Predictor,
    task: Task,
    graph: _AnyGraph,
    num_prompts: int,
    minutes: float | None,
  ):
    self.model, self.graph, self.loss = model, graph, LossAtQuery(task)
    self.programs, self.minutes, self.stopped = Programs(), minutes, None
    self.start, self.can_stop = time.monotonic(), False
    most = max(1, _BYTES // graph.bytes_per_prompt)
    self.num_batches = math.ceil(num_prompts / most)
    self.bar = progress_bar('circuit', 0, 'run', delay=1.0)
    # The first number is that of two ends and the scores, and the search comes then.
    self.expect(2 + _RUNS_OF_SCORES + len(graph.edges))

  def expect(self, num_sets: int) -> None:
    """Tells the progress bar how many sets are still to be run."""
    self.bar.total = self.bar.n + num_sets * self.num_batches

  @contextlib.contextmanager
  def until_stopped(self) -> Iterator[None]:
    """Ends the block of the `with` after the limit of time, or after Ctrl-C.

    Nothing is left of the block if the runner was stopped before.
    """
    before, self.can_stop = self.can_stop, True
    try:
      yield
    except KeyboardInterrupt:
      self.stopped = 'by Ctrl-C'
    except _TimeIsUp:
      self.stopped = self.stopped or f'after {self.minutes:g} minutes'
    self.can_stop = before

  def losses(
    self, clean: Prompt, corrupt: Prompt, sets: Sequence[np.ndarray]
  ) -> Float[np.ndarray, 's b']:
    """Returns the loss of each prompt with each set of edges."""
    return self._run(clean, corrupt, sets)[1]

  def checked_ends(
    self, clean: Prompt, corrupt: Prompt
  ) -> tuple[Float[np.ndarray, ' b'], Float[np.ndarray, ' b']]:
    """Returns the losses with all edges and with none.

    Raises:
      UserError: If these two runs do not predict what the model predicts for clean and
        for corrupt prompts, or if the gap is not above 0.
    """
    count = len(self.graph.edges)
    predictions, losses = self._run(clean, corrupt, [np.arange(count), np.arange(0)])
    name = type(self.model).__name__
    plain = [
      np.asarray(self.programs.run(_predict, [self.model], prompt), np.float64)
      for prompt in (clean, corrupt)
    ]
    scale = max(float(np.abs(values).max()) for values in plain)
    # Half of the digits must agree: the runs sum in another order, and add differences.
    rounding = float(np.finfo(predictions.dtype).eps) ** 0.5
    gaps = [np.abs(predictions[i] - plain[i]).max() for i in range(2)]
    if not max(gaps) <= rounding * scale:
      raise UserError(
        f'a run of {name} with all edges, or with none, misses its prediction by '
        f'{max(gaps):.2g}; a part of it reads the residual stream past the taps of the '
        'kinds stream, query, key and value, or the prompt past the stream'
      )
    clean_loss, corrupt_loss = losses
    gap = difference(corrupt_loss, clean_loss)
    ends = estimate(clean_loss), estimate(corrupt_loss)
    if (reason := why_no_share(gap, *ends, is_loss=True)) is not None:
      raise UserError(
        f'corrupt prompts do not raise the loss of {name}: by {gap.mean:.3g} ± '
        f'{gap.half:.3g}; there is no gap to recover, since {reason}'
      )
    return clean_loss, corrupt_loss

  def recovered_by_edge(
    self, clean: Prompt, corrupt: Prompt
  ) -> Float[np.ndarray, 'b e']:
    """Returns what each edge recovers in each prompt, to the first order.

    This is by how much the loss falls.
    """
    function = functools.partial(_loss_changes, graph=self.graph, loss=self.loss)
    found = np.empty((len(clean.x), len(self.graph.edges)))
    for part, *pair in self._batches(clean, corrupt):
      found[part] = -np.asarray(self.programs.run(function, [self.model], *pair)).T
      self.bar.update(_RUNS_OF_SCORES)
    return found

  def _batches(
    self, clean: Prompt, corrupt: Prompt
  ) -> Iterator[tuple[slice, Prompt, Prompt]]:
    """Yields batches of one size; the last two may have some prompts in common."""
    size = math.ceil(len(clean.x) / self.num_batches)
    for i in range(self.num_batches):
      start = min(i * size, len(clean.x) - size)
      part = slice(start, start + size)
      take = operator.itemgetter(part)
      yield part, jax.tree.map(take, clean), jax.tree.map(take, corrupt)

  def _run(
    self, clean: Prompt, corrupt: Prompt, sets: Sequence[np.ndarray]
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns predictions and losses of up to `_AT_ONCE` sets of edges.

    Raises:
      _TimeIsUp: Within `until_stopped`, if it is stopped or the limit has passed.
    """
    has_passed = (
      self.minutes is not None and time.monotonic() > self.start + 60 * self.minutes
    )
    if self.can_stop and (self.stopped or has_passed):
      raise _TimeIsUp
    masks = np.zeros((_AT_ONCE, len(self.graph.edges)), bool)
    for mask, members in zip(masks, sets, strict=False):
      mask[members] = True
    predictions: Any = [None] * len(clean.x)
    losses = np.empty((len(sets), len(clean.x)))
    for part, *pair in self._batches(clean, corrupt):
      count = np.int32(len(sets))
      of_part = self.programs.run(self._measure, [self.model], *pair, masks, count)
      predicted, losses[:, part] = (np.asarray(array)[: len(sets)] for array in of_part)
      predictions[part] = list(np.moveaxis(predicted, 1, 0))
      self.bar.update(len(sets))
    return np.stack(predictions, axis=1), losses

  @functools.cached_property
  def _measure(self) -> Any:
    return functools.partial(_measure, graph=self.graph, loss=self.loss)


def _predict(models: Sequence[Any], prompt: Prompt) -> Array:
  return models[0](prompt)


def _measure(
  models: Sequence[Any],
  clean: Prompt,
  corrupt: Prompt,
  masks: Bool[Array, 's e'],
  count: Int[Array, ''],
  *,
  graph: _AnyGraph,
  loss: LossAtQuery,
) -> tuple[Float[Array, 's b *k'], Float[Array, 's b']]:
  """Returns predictions and losses of the first sets of edges; the others are 0.

  It is called within a function that JAX traces.
  """
  (model,) = models
  ends: Any = graph.ends(model, clean, corrupt)

  def add(i: Int[Array, ''], state: tuple[Array, ...]) -> tuple[Array, ...]:
    predictions, losses, mask_before, added_before = state
    mask = masks[i].astype(ends.clean.dtype)
    last = mask_before, added_before
    run = graph.run(model, clean, ends, mask, last=last)
    return (
      predictions.at[i].set(run.prediction),
      losses.at[i].set(loss(run.prediction, clean)),
      mask,
      run.added,
    )

  def plain() -> tuple[Array, Array]:
    return (prediction := model(clean)), loss(prediction, clean)

  nothing = [
    jnp.zeros((len(masks), *of_set.shape), of_set.dtype)
    for of_set in jax.eval_shape(plain)
  ]
  # Without edges all senders add what they add in the corrupt prompts.
  state = (*nothing, jnp.zeros(masks.shape[1], ends.clean.dtype), ends.corrupt)
  predictions, losses, *_ = jax.lax.fori_loop(0, count, add, state)
  return predictions, losses


def _loss_changes(
  models: Sequence[Any],
  clean: Prompt,
  corrupt: Prompt,
  *,
  graph: _AnyGraph,
  loss: LossAtQuery,
) -> Float[Array, 'e b']:
  """Returns by how much each edge raises the loss of each prompt, to the first order.

  The edge carries the clean value in place of the corrupt one.
  """
  (model,) = models
  ends: Any = graph.ends(model, clean, corrupt)
  whole = jnp.ones(len(graph.edges), ends.clean.dtype)
  nothing = jnp.zeros((len(graph.edges), ends.clean.shape[1]), ends.clean.dtype)

  def slopes(share: Array) -> Float[Array, 'e b']:
    embedded = ends.corrupt[0] + share * (ends.clean[0] - ends.corrupt[0])

    def total(nudges: Float[Array, 'e b']) -> Array:
      run = graph.run(model, clean, ends, whole, embedded=embedded, nudges=nudges)
      return loss(run.prediction, clean).sum()

    return jax.grad(total)(nothing)

  # The steps lead from the corrupt to the clean embedded tokens.
  return mean_over_steps(slopes, nothing, NUM_STEPS, whole.dtype)


def _grown(graph: _AnyGraph, sizes: Float[np.ndarray, ' e']) -> Int[np.ndarray, ' e']:
  """Returns the edges in the order in which a set grows from the readout.

  The next edge is the one of the largest size among those that lead into a part which
  the set has reached.
  """
  edges, outputs = graph.edges, graph.outputs
  into: dict[
    Node | None, list[int]
  ] = {}  # The key is the output of a part, and None for the readout.
  for i, (_, receiver) in enumerate(edges):
    into.setdefault(outputs.get(receiver), []).append(i)
  reached: set[Node | None] = {None}
  order: list[int] = []
  waiting = [(-sizes[i], i) for i in into[None]]
  heapq.heapify(waiting)
  while waiting:
    _, i = heapq.heappop(waiting)
    order.append(i)
    sender = edges[i][0]
    if sender not in reached:
      reached.add(sender)
      for j in into.get(sender, ()):
        heapq.heappush(waiting, (-sizes[j], j))
  return np.array(order)


def _sizes(num_edges: int) -> list[int]:
  """Returns the numbers of edges of a curve.

  For a small graph these are all numbers, otherwise some that are even in log scale.
  """
  if num_edges <= _ALL_SIZES:
    return [*range(1, num_edges + 1)]
  return [*map(int, np.unique(np.geomspace(1, num_edges, _NUM_SIZES).round()))]


def _share(
  part: Float[np.ndarray, ' b'],
  clean_loss: Float[np.ndarray, ' b'],
  corrupt_loss: Float[np.ndarray, ' b'],
) -> Share:
  """Returns a share of the gap, after `checked_ends` has found that there is one."""
  share = share_of_gap(part, clean_loss, corrupt_loss, is_loss=True)
  assert share is not None
  return share


def _of_random(
  losses: Float[np.ndarray, 's b'],
  clean_loss: Float[np.ndarray, ' b'],
  corrupt_loss: Float[np.ndarray, ' b'],
) -> tuple[Interval, float]:
  """Returns what one more random set would recover, and the largest share of these."""
  means = [
    _share(corrupt_loss - of_set, clean_loss, corrupt_loss).mean for of_set in losses
  ]
  return one_more(means), max(means)
