"""Pictures of layers and heads: each number stands in its place, with its error."""

import pytest

from tests.compare import refuses
from zoo.measure.intervals import Estimate
from zoo.measure.table import Rows
from zoo.probing import Effect, Effects, Matched, Node, PathEffect, PathEffects
from zoo.reports.head_tables import plot_head_table
from zoo.reports.style import drawing_of

_GAP = Estimate(2.0, 0.1, 64)


def _effect(layer, head, mean, stderr=0.01, token=None) -> Effect:
  share = None if mean is None else Estimate(mean, stderr)
  site = f'layers.{layer}.mixer.heads'
  return Effect(site, head, token, share, None, None, None)


def _effects(*rows) -> Effects:
  return Effects(_GAP, _GAP, _GAP, Rows(rows))


def _texts(axes) -> dict[tuple[float, float], str]:
  """The texts by layer and head."""
  return {text.get_position()[::-1]: text.get_text() for text in axes.texts}


def _labels(axes) -> list[str]:
  return [label.get_text() for label in axes.get_yticklabels()]


def test_each_head_of_a_layer_has_its_number_and_its_error():
  rows = [_effect(2, 1, 0.5), _effect(2, 0, 0.25, 0.001), _effect(4, 0, None)]
  axes = plot_head_table(_effects(*rows), 'recovered', title='Which heads matter')
  found = {place: text for place, text in _texts(axes).items() if text}
  assert found == {(0, 1): '0.50\n± 0.02', (0, 0): '0.25\n± <0.01', (1, 0): '–'}
  assert _labels(axes) == ['layer 2', 'layer 4']
  assert [text.get_text() for text in axes.get_xticklabels()] == ['head 0', 'head 1']
  (image,) = axes.get_images()
  assert (image.norm.vmin, image.norm.vmax) == (0.0, 0.5)
  figure = drawing_of(axes)
  (bar,) = [of for of in figure.axes if of is not axes]
  unit = 'share of the gap that the clean value recovers, ± t·s.e.'
  assert bar.get_xlabel() == unit
  assert axes.get_title() == 'Which heads matter'
  assert '0.25' in figure.numbers


def test_a_negative_number_is_in_the_colours_of_both_signs():
  axes = plot_head_table(_effects(_effect(0, 0, -0.5), _effect(0, 1, 0.1)), 'recovered')
  (image,) = axes.get_images()
  assert (image.norm.vmin, image.norm.vmax) == (-0.5, 0.5)


def test_paths_and_matched_heads_have_pictures():
  share = Estimate(0.25, 0.01)
  paths = [
    PathEffect('layers.0.mixer.heads', 0, None, share, None, None, None),
    PathEffect('layers.0.network.out', None, None, share, None, None, None),
  ]
  table = PathEffects(Node('layers.1.mixer.in'), _GAP, _GAP, _GAP, Rows(paths))
  axes = plot_head_table(table, 'recovered')
  assert _texts(axes) == {(0, 0): '0.25\n± 0.02'}
  row = Matched('blocks.1.heads', 0, 'head 1', 0.9, 0.9, None, None, True)
  axes = plot_head_table(Rows([row]), 'correlation')
  assert _texts(axes) == {(0, 0): '0.90'}
  assert _labels(axes) == ['blocks.1.heads']


@pytest.mark.parametrize(
  ('rows', 'column', 'said'),
  [
    ([], 'recovered', 'the table has no rows of heads'),
    ([_effect(0, None, 0.5)], 'recovered', 'heads=True'),
    ([_effect(0, 0, 0.5)], 'head', "the column is 'head'; it must be one of recovered"),
    ([_effect(0, 0, 0.5)], 'zero', "the column is 'zero'"),
    (
      [_effect(0, 0, 0.5, token=0), _effect(0, 0, 0.5, token=1)],
      'recovered',
      'several rows of head 0 of layers.0.mixer.heads',
    ),
  ],
)
def test_tables_without_one_number_for_each_head_are_refused(rows, column, said):
  with refuses(said):
    plot_head_table(_effects(*rows), column)
