"""The page of each study: what it links to, and numbers that the kept tables give."""

import csv
import re

import numpy as np
import pytest

from studies import atlas, headlines
from studies.headlines import broken, ranking
from studies.strategies import phases
from tests.launch.processes import ROOT
from zoo.measure.statistics import estimate
from zoo.reports.plots import from_csv

STUDIES = ROOT / 'studies'
KEPT = ROOT / 'docs' / 'results'
# The numbers that pages write as words.
WORDS = (
  *('zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine'),
  *('ten', 'eleven', 'twelve', 'thirteen', 'fourteen', 'fifteen', 'sixteen'),
  *('seventeen', 'eighteen', 'nineteen', 'twenty', 'twenty-one', 'twenty-two'),
)
NAMES = 'atlas', 'headlines', 'llm', 'paper', 'strategies'
# The parts of each page, in this order; its results stand between them.
PARTS = (
  'The answer',
  'Commands and minutes',
  'How to read the numbers',
  'How sure',
  'What failed, and why',
  'What is not known',
)


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
    headings = re.findall(r'^## (.*)$', text, re.MULTILINE)
    assert tuple(title for title in headings if title in PARTS) == PARTS, study
    # The site has the same page, in which links that begin with a dot lead on.
    assert (
      f'```{{include}} ../studies/{study}/README.md\n:relative-docs: .\n'
      in (ROOT / 'docs' / f'{study}.md').read_text()
    )
  more = STUDIES / 'headlines' / 'SETTINGS.md'
  included = (ROOT / 'docs' / 'headlines_settings.md').read_text()
  assert f'../{more.relative_to(ROOT)}\n:relative-docs: .\n' in included


@pytest.mark.parametrize(
  'page', [*(f'{study}/README.md' for study in NAMES), 'headlines/SETTINGS.md']
)
def test_links_lead_somewhere(page):
  text = (STUDIES / page).read_text()
  for link in re.findall(r'\]\(([^)]+)\)', text):
    if '://' in link:
      continue
    file, _, heading = link.partition('#')
    assert not file or file.startswith(('./', '../')), link
    path = (STUDIES / page).parent.joinpath(file).resolve()
    path = path if file else STUDIES / page
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


def test_the_list_of_headlines_has_the_minutes_of_their_page():
  page = (STUDIES / 'headlines' / 'README.md').read_text()
  rows = re.findall(r'^\| \[`(\w+)`\].*\| ([\d.]+) \|$', page, re.MULTILINE)
  minutes = {name: float(number) for name, number in rows}
  assert minutes.keys() == headlines.HEADLINES.keys()
  for name, study in headlines.HEADLINES.items():
    assert study.minutes == pytest.approx(minutes[name], abs=0.7), name


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
      estimate([float(row[name]) for row in own])
      for name in ('weight of memorising', 'unexplained')
    )
    said = f'| {number} | {weight.mean:.2f} ± {weight.half:.2f} '
    assert f'{said}| {left.mean:.3f} ± {left.half:.3f} |' in page


def test_the_weights_of_context_and_weights_are_the_kept_ones():
  text = (KEPT / 'strategies_clusters.csv').read_text()
  page = (STUDIES / 'strategies' / 'README.md').read_text()
  section = page.partition('## In context or in weights')[2].partition('\n## ')[0]
  kept = [*csv.DictReader(text.splitlines())]
  assert {row['seed'] for row in kept} == {*'01234'}
  lines = re.findall(r'^\| (\d) \| (\d+) \| (.*) \|$', section, re.MULTILINE)
  assert len(lines) == 7
  for decay, step, said in lines:
    own = [
      row
      for row in kept
      if (row['optimizer.weight_decay'], row['step']) == (decay, step)
    ]
    names = 'weight of context_1', 'weight of weights', 'unexplained'
    for name, cell in zip(names, said.split(' | '), strict=True):
      found = estimate([float(row[name]) for row in own])
      digits = len(cell.split(' ± ')[0].partition('.')[2])
      assert cell == f'{found.mean:.{digits}f} ± {found.half:.{digits}f}', (decay, step)


def verdicts_of_headlines():
  """The seeds and the verdict of each headline, from the table of all of them."""
  page = (STUDIES / 'headlines' / 'README.md').read_text()
  table = page[page.index('## All numbers') : page.index('### ')]
  rows = re.findall(r'^\| \[`(\w+)`\]\(.*?\) \|(.*)\|$', table, re.MULTILINE)
  cells = {name: [cell.strip() for cell in row.split('|')] for name, row in rows}
  assert len(cells) == len(rows)
  assert all(float(row[-1]) > 0 for row in cells.values())  # minutes
  return {name: (seeds, verdict) for name, (_, seeds, verdict, _) in cells.items()}


def sections_of_headlines():
  """The section of each headline."""
  page = (STUDIES / 'headlines' / 'README.md').read_text()
  parts = page[: page.index('## How sure')].split('\n### ')[1:]
  return {re.findall(r'`(\w+)`', part.splitlines()[0])[0]: part for part in parts}


def rows_of_headlines():
  """The name, what it is, the source's value, the range and the measured value."""
  rows: dict[str, list[list[str]]] = {}
  for name, section in sections_of_headlines().items():
    table = re.search(r'(?:^\|.*\|\n)+', section, re.MULTILINE)
    assert table is not None, name
    head, _, *lines = table[0].splitlines()
    assert head == (
      '| number | what is measured | source’s value | holds if | measured |'
    )
    cells = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    rows[name] = [[row[0].strip('`'), *row[1:]] for row in cells]
  return rows


def ends_of(measured):
  """The measured number; of several seeds the least and the largest."""
  seeds = re.fullmatch(r'\S+ ± \S+ \((\S+) to (\S+)\)', measured)
  return [float(end) for end in (seeds.groups() if seeds else [measured])]


def test_the_table_of_headlines_has_their_ranges_and_the_verdicts_that_follow():
  table, verdicts = rows_of_headlines(), verdicts_of_headlines()
  sections = sections_of_headlines()
  assert table.keys() == verdicts.keys() == headlines.HEADLINES.keys()
  failed = set()
  for name, rows in table.items():
    expected = headlines.HEADLINES[name].expected
    assert {row[0]: row[3] for row in rows if row[3] != 'no range'} == {
      number: str(range_) for number, range_ in expected.items()
    }
    outside = 0
    for number, meaning, source, _, measured in rows:
      assert len(meaning) > 10, number
      if number not in expected:
        continue
      assert source != '–', number
      for value in ends_of(measured):
        # Four digits are shown: what is meant may lie half of the last one away.
        half = 10.0 ** (np.floor(np.log10(abs(value) or 1)) - 3) / 2
        low, high = expected[number].low - half, expected[number].high + half
        outside += not low <= value <= high
    verdict = 'fails' if outside else 'holds'
    assert verdicts[name][1] == verdict, name
    for part in '**Claim.**', '**Setting.**', f'**Verdict: {verdict}':
      assert f'\n{part}' in sections[name], (name, part)
    failed |= {name} if outside else set()
  hold, fail = WORDS[len(table) - len(failed)], WORDS[len(failed)]
  (named,) = re.findall(
    f'{hold.capitalize()} headlines hold, and {fail} fail: (.*?)\\.', prose('headlines')
  )
  assert {*re.findall(r'`(\w+)`', named)} == failed
  page = (STUDIES / 'headlines' / 'README.md').read_text()
  why = page[page.index('## What failed') : page.index('## What is not known')]
  assert {*re.findall(r'^- \[`(\w+)`\]', why, re.MULTILINE)} == failed


def test_the_page_has_what_a_broken_model_gives_in_each_headline():
  with open(KEPT / 'broken_headlines.csv', newline='') as file:
    header, *rows = csv.reader(file)
  assert tuple(header) == broken.HEADER
  page = (STUDIES / 'headlines' / 'README.md').read_text()
  assert f'\n{broken.table_of(rows).markdown()}\n' in page
  measured = {(row[0], row[2]): row[3] for row in rows}
  assert measured == {
    (name, number): str(range_)
    for name, headline in headlines.HEADLINES.items()
    for number, range_ in headline.expected.items()
  }
  assert {row[0] for row in rows if row[-1] == 'fails'} == headlines.HEADLINES.keys()


def test_the_table_of_headlines_has_the_seeds_of_each():
  """They are those that its code says, in the statement or in the setting."""
  for name, (seeds, _) in verdicts_of_headlines().items():
    study = headlines.HEADLINES[name]
    one = seeds in ('1', '1 checkpoint')
    assert study.statement.startswith('One seed: ') == one, name
    if not one:
      said = re.findall(r'(\w+) seeds|seed of (\w+)', study.setting)
      numbers = [(first or second).lower() for first, second in said]
      known = [] if seeds == 'none trained' else [int(seeds)]
      assert [
        WORDS.index(number) if number in WORDS else int(number) for number in numbers
      ] == known, name


def kept_curves(name):
  """The values of the curves of a kept figure, by panel and name."""
  panels = from_csv(name, (KEPT / f'figure_{name}.csv').read_text()).panels
  return [{line.name: line.y for line in panel.series} for panel in panels]


def ends_of_curve(name, line, place):
  """The least and the largest value of the seeds, in the first panel of a figure."""
  panel = from_csv(name, (KEPT / f'figure_{name}.csv').read_text()).panels[0]
  (series,) = (series for series in panel.series if series.name == line)
  return [series.low[place], series.high[place]]


def test_the_table_of_the_ranking_has_the_kept_curves():
  section = sections_of_headlines()['ranking']
  lines = re.findall(r'^\| `(\w+)` \| (\S+) \| (\S+) \| (\S+) \|$', section, re.M)
  said = {model: numbers for model, *numbers in lines}
  (curves,) = kept_curves('ranking')
  assert said == {
    model: [f'{curves[model][8]:.3f}', f'{curves[model][32]:.3f}', f'{source:g}']
    for model, (*_, source) in ranking._MODELS.items()
  }
  at_end = {model: curve[8] for model, curve in curves.items()}
  measured = {
    'best_recurrent': min(at_end[model] for model in ('lstm', 'gru', 's4d'))
    / max(at_end[model] for model in ('softmax', 'retention', 'mamba2')),
    'retention_beyond': curves['retention'][32] / at_end['retention'],
    'softmax_beyond': curves['softmax'][32] / at_end['softmax'],
  }
  rows = {row[0]: row[4] for row in rows_of_headlines()['ranking']}
  for name, number in measured.items():
    assert rows[name] == f'{number:.4g}'


def test_what_is_said_of_the_pictures_is_in_their_kept_tables():
  said = prose('headlines')
  free, decayed = kept_curves('transience')
  first, last = free['in context'][0], free['in context'][-1]
  assert f'labels {first:.2f} of the queries of new classes rightly at step 250' in said
  known = free['in weights'][-1]
  assert f'it labels {last:.2f} rightly, and knows {known:.2f} from the weights' in said
  stays = 'in-context learning stays, and'
  assert f'{stays} {decayed["in weights"][-1]:.2f} are known' in said
  (chains,) = kept_curves('laplace')
  mean, without = np.mean(chains['mamba']), np.mean(chains['without convolution'])
  assert f'{mean:.4f} nats from the Bayes predictor' in said
  assert f'Without its convolution it is {without:.3f} nats away' in said
  (filters,) = kept_curves('filter')
  softmax, mamba, trigram = (
    np.mean(filters[name]) for name in ('softmax', 'mamba', 'trigram')
  )
  assert (
    f'are {softmax:.3f} bits above that of the forward algorithm with attention and '
    f'{mamba:.3f} with Mamba' in said
  )
  assert f'the best rule of the last two symbols is {trigram:.3f} above' in said
  # The numbers of the table of all headlines follow from the same curves.
  table = rows_of_headlines()
  rows = {name: {row[0]: row[4] for row in table[name]} for name in table}
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
