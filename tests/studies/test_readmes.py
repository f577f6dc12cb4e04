"""The page of each study: what it links to, and numbers that the kept tables give."""

import re

import pytest

from studies import atlas, headlines
from studies.strategies import phases
from tests.launch.processes import ROOT

STUDIES = ROOT / 'studies'
KEPT = ROOT / 'docs' / 'results'
# The page of docs/ that says more, and has each number.
PAGES = {
  'atlas': 'results.md',
  'headlines': 'headlines.md',
  'paper': 'paper.md',
  'llm': 'llm.md',
  'strategies': 'strategies.md',
}


def prose(study):
  """The page of a study without code, addresses of links, and ends of lines."""
  text = (STUDIES / study / 'README.md').read_text()
  text = re.sub(r'```.*?```', ' ', text, flags=re.DOTALL)
  text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', text)
  return ' '.join(text.split())


def test_each_study_has_a_page_of_one_form():
  folders = {path.parent.name for path in STUDIES.glob('*/__init__.py')}
  assert folders == PAGES.keys()
  for study in PAGES:
    text = (STUDIES / study / 'README.md').read_text()
    assert text.splitlines()[0].endswith('?')
    assert f'python -m launch.{study}' in text
    parts = re.findall(r'^\*\*([\w ]+)\.\*\*', text, re.MULTILINE)
    assert parts == ['Time', 'What came out', 'How sure', 'Where things are']


@pytest.mark.parametrize('study', PAGES)
def test_links_lead_somewhere_and_the_page_of_the_documents_links_back(study):
  text = (STUDIES / study / 'README.md').read_text()
  links = re.findall(r'\]\(([^)]+)\)', text)
  for link in links:
    file, _, heading = link.partition('#')
    path = (STUDIES / study / file).resolve()
    assert path.is_file(), link
    if heading:
      headings = re.findall(r'^#+ (.*)$', path.read_text(), re.MULTILINE)
      slugs = [re.sub(r'[^\w -]', '', h).lower().replace(' ', '-') for h in headings]
      assert heading in slugs, link
  page = (ROOT / 'docs' / PAGES[study]).read_text()
  assert f'../docs/{PAGES[study]}' in text
  assert f'(../studies/{study}/README.md)' in page


@pytest.mark.parametrize('study', PAGES)
def test_numbers_are_those_of_the_documents(study):
  """A number has one home; the page of the study repeats some."""
  page = (ROOT / 'docs' / PAGES[study]).read_text()
  page += (ROOT / 'docs' / 'results' / 'README.md').read_text()
  page += (ROOT / 'docs' / 'results.md').read_text()
  numbers = re.findall(r'\d+\.\d+|\d{1,3},\d{3}', re.sub(r'`[^`]*`', '', prose(study)))
  for number in numbers:
    assert number in page, number


def test_the_atlas_is_summed_up_as_its_kept_rows_say():
  rows = atlas.from_csv((KEPT / 'atlas.csv').read_text(), 'atlas.csv')
  (hours,) = re.findall(r'took ([\d.]+) hours of a core', atlas.summary(rows))
  assert f'took {hours} hours of a core' in prose('atlas')
  words = {line[0]: line for line in atlas.beside_softmax(rows).rows}
  assert words['linear'][2].startswith('rwkv7')
  assert re.findall(r'[a-z]+', words['parity'][2]) == ['gru', 'lstm']


def test_the_weights_of_the_diagram_are_the_kept_ones():
  (diagram,) = phases.diagrams(phases.from_csv((KEPT / 'strategies.csv').read_text()))
  first = diagram.names.index('memorising')
  weights = phases.mean_over_seeds(diagram.weights)[first, :, -1]
  shown = ', '.join(f'{weight:.2f}' for weight in weights)
  assert ' and '.join(shown.rsplit(', ', 1)) in prose('strategies')
  urns = ', '.join(map(str, diagram.values[:3]))
  assert f'With {urns.replace(", 64", " and 64")} urns models memorise' in prose(
    'strategies'
  )
  winners = [diagram.names[number] for number in diagram.winners[:, -1]]
  assert winners == ['memorising'] * 3 + ['generalising'] * 2


def test_the_headlines_that_fail_are_named():
  page = (ROOT / 'docs' / 'headlines.md').read_text()
  table = page[page.index('## What came out') : page.index('## How strong')]
  verdicts = dict(
    re.findall(r'^\| `(\w+)` \|.*\| (holds|fails) \|', table, re.MULTILINE)
  )
  assert verdicts.keys() == headlines.HEADLINES.keys()
  failed = [name for name, verdict in verdicts.items() if verdict == 'fails']
  assert len(verdicts) - len(failed) == 13
  named = re.findall(r'Thirteen hold; (.*?) fail\.', prose('headlines'))[0]
  assert {*re.findall(r'`(\w+)`', named)} == {*failed}
