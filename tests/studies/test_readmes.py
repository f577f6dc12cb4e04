"""The page of each study: what it links to, and numbers that the kept tables give."""

import csv
import re

import numpy as np
import pytest

from studies import atlas, headlines
from studies.strategies import phases
from tests.launch.processes import ROOT
from zoo.measure.statistics import interval
from zoo.reports.plots import from_csv

STUDIES = ROOT / 'studies'
KEPT = ROOT / 'docs' / 'results'
NAMES = 'atlas', 'headlines', 'llm', 'paper', 'strategies'


def prose(study):
  """The page of a study without code, addresses of links, and ends of lines."""
  text = (STUDIES / study / 'README.md').read_text()
  text = re.sub(r'```.*?```', ' ', text, flags=re.DOTALL)
  text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', text)
  return ' '.join(text.split())


def test_each_study_has_a_page_of_one_form():
  folders = {path.parent.name for path in STUDIES.glob('*/__init__.py')}
  # What launch.tabular compares is found by its user; docs/tabular.md has our findings.
  assert folders == {*NAMES, 'tabular'}
  assert 'python -m launch.tabular' in (ROOT / 'docs' / 'tabular.md').read_text()
  for study in NAMES:
    text = (STUDIES / study / 'README.md').read_text()
    assert text.splitlines()[0].endswith('?')
    assert f'python -m launch.{study}' in text
    parts = re.findall(r'^\*\*([\w ]+)\.\*\*', text, re.MULTILINE)
    assert parts == ['Time', 'What came out', 'How sure', 'Where things are']
    # The site has the same page, in which links that begin with a dot lead on.
    assert (
      f'```{{include}} ../studies/{study}/README.md\n:relative-docs: .\n'
      in (ROOT / 'docs' / f'{study}.md').read_text()
    )


@pytest.mark.parametrize('study', NAMES)
def test_links_lead_somewhere(study):
  text = (STUDIES / study / 'README.md').read_text()
  for link in re.findall(r'\]\(([^)]+)\)', text):
    if '://' in link:
      continue
    file, _, heading = link.partition('#')
    assert not file or file.startswith(('./', '../')), link
    path = (STUDIES / study / (file or 'README.md')).resolve()
    assert path.is_file(), link
    if heading:
      headings = re.findall(r'^#+ (.*)$', path.read_text(), re.MULTILINE)
      slugs = [re.sub(r'[^\w -]', '', h).lower().replace(' ', '-') for h in headings]
      assert heading in slugs, link


def test_the_atlas_is_summed_up_as_its_kept_rows_say():
  rows = atlas.from_csv((KEPT / 'atlas.csv').read_text(), 'atlas.csv')
  (hours,) = re.findall(r'took ([\d.]+) hours of a core', atlas.summary(rows))
  assert f'took {hours} hours of a core' in prose('atlas')
  words = {line[0]: line for line in atlas.beside_softmax(rows).rows}
  assert words['linear'][2].startswith('rwkv7')
  assert re.findall(r'[a-z]+', words['parity'][2]) == ['gru', 'lstm']


def test_the_weights_of_the_diagram_are_the_kept_ones():
  text = (KEPT / 'strategies.csv').read_text()
  (diagram,) = phases.diagrams(phases.from_csv(text))
  urns = ', '.join(map(str, diagram.values[:3]))
  assert f'With {urns.replace(", 64", " and 64")} urns models memorise' in prose(
    'strategies'
  )
  winners = [diagram.names[number] for number in diagram.winners[:, -1]]
  assert winners == ['memorising'] * 3 + ['generalising'] * 2
  # Rounded once, from the table: means over three seeds and Student's t intervals.
  page = (STUDIES / 'strategies' / 'README.md').read_text()
  rows = [row for row in csv.DictReader(text.splitlines()) if row['step'] == '2000']
  for number in diagram.values:
    own = [row for row in rows if row['task.num_urns'] == str(number)]
    weight, left = (
      interval([float(row[name]) for row in own])
      for name in ('weight of memorising', 'unexplained')
    )
    said = f'| {number} | {weight.mean:.2f} ± {weight.half:.2f} '
    assert f'{said}| {left.mean:.3f} ± {left.half:.3f} |' in page


def rows_of_headlines():
  """The number, the range, the measured value and the verdict, by headline."""
  page = (STUDIES / 'headlines' / 'README.md').read_text()
  table = page[page.index('## All numbers') : page.index('## How strong')]
  rows: dict[str, list[list[str]]] = {}
  for line in re.findall(r'^\|(.*)\|$', table, re.MULTILINE)[2:]:
    first, *cells = (cell.strip() for cell in line.split('|'))
    name = first.strip('`') or [*rows][-1]
    rows.setdefault(name, []).append(cells)
  return rows


def ends_of(measured):
  """The measured number; of several seeds the least and the largest."""
  seeds = re.fullmatch(r'\S+ ± \S+ \((\S+) to (\S+)\)', measured)
  return [float(end) for end in (seeds.groups() if seeds else [measured])]


def test_the_table_of_headlines_has_their_ranges_and_the_verdicts_that_follow():
  table = rows_of_headlines()
  assert table.keys() == headlines.HEADLINES.keys()
  failed = set()
  for name, rows in table.items():
    expected = headlines.HEADLINES[name].expected
    assert {row[0]: row[1] for row in rows if row[1]} == {
      number: str(range_) for number, range_ in expected.items()
    }
    outside = 0
    for number, _, measured, *_ in rows:
      if number not in expected:
        continue
      for value in ends_of(measured):
        # Four digits are shown: what is meant may lie half of the last one away.
        half = 10.0 ** (np.floor(np.log10(abs(value) or 1)) - 3) / 2
        low, high = expected[number].low - half, expected[number].high + half
        outside += not low <= value <= high
    verdict = rows[0][3]
    assert verdict == ('fails' if outside else 'holds'), name
    failed |= {name} if outside else set()
  assert len(table) - len(failed) == 11
  named = re.findall(r'Eleven hold; (.*?) fail ', prose('headlines'))[0]
  assert {*re.findall(r'`(\w+)`', named)} == failed


def kept_curves(name):
  """The values of the curves of a kept figure, by panel and name."""
  panels = from_csv(name, (KEPT / f'figure_{name}.csv').read_text()).panels
  return [{line.name: line.y for line in panel.series} for panel in panels]


def ends_of_curve(name, line, place):
  """The least and the largest value of the seeds, in the first panel of a figure."""
  panel = from_csv(name, (KEPT / f'figure_{name}.csv').read_text()).panels[0]
  (series,) = (series for series in panel.series if series.name == line)
  return [series.low[place], series.high[place]]


def test_what_is_said_of_the_pictures_is_in_their_kept_tables():
  said = prose('headlines')
  free, decayed = kept_curves('transience')
  first, last = free['in context'][0], free['in context'][-1]
  assert (
    f'knows {first:.2f} of new classes after 250 steps and {last:.2f} after' in said
  )
  assert f'while {free["in weights"][-1]:.2f} are known from the weights' in said
  assert f'it stays, and {decayed["in weights"][-1]:.2f} are known' in said
  (chains,) = kept_curves('laplace')
  mean, without = np.mean(chains['mamba']), np.mean(chains['without convolution'])
  assert f'{mean:.4f} nats from the Bayes predictor' in said
  assert f'Without its convolution it is {without:.3f} nats away' in said
  (filters,) = kept_curves('filter')
  softmax, mamba, trigram = (
    np.mean(filters[name]) for name in ('softmax', 'mamba', 'trigram')
  )
  assert f'are {softmax:.3f} bits above it with attention and {mamba:.3f} with' in said
  assert f'the best rule of the last two symbols is {trigram:.3f} above' in said
  # The numbers of the table of all headlines follow from the same curves.
  table = rows_of_headlines()
  rows = {name: dict(row[:3:2] for row in table[name]) for name in table}
  assert f'{mean:.4g}' == rows['laplace']['kl_mamba']
  assert f'{without:.4g}' == rows['laplace']['kl_without_convolution']
  assert f'{softmax:.4g}' == rows['filter']['excess_softmax']
  assert ends_of(rows['transience']['free_in_weights']) == pytest.approx(
    ends_of_curve('transience', 'in weights', -1), rel=1e-3
  )
  assert ends_of(rows['transience']['free_peak']) == pytest.approx(
    ends_of_curve('transience', 'in context', 0), rel=1e-3
  )
  page = (STUDIES / 'headlines' / 'README.md').read_text().splitlines()
  ways = 'in_context', 'swapped', 'in_weights'
  starts = {'32': 'few', '8192 classes, b': 'many', '8192 classes by': 'both'}
  for start, case in starts.items():
    means = (rows['clusters'][f'{case}_{way}'].split(' ± ')[0] for way in ways)
    cells = [float(mean) for mean in means]
    (line,) = [line for line in page if line.startswith(f'| {start}')]
    assert line.endswith('| ' + ' | '.join(f'{cell:.3f}' for cell in cells) + ' |')
