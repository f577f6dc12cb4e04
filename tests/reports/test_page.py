"""The page of a report: whole, escaped, and with ids that are its own."""

import collections
import html.parser
import re
from typing import cast

import pytest

from zoo import reports
from zoo.reports.plots import Panel, Plot, series
from zoo.reports.style import BLUE, Figure

ODD = '"><script>alert(1)</script>&\'{{ 7 * 7 }}$x_'


class Outline(html.parser.HTMLParser):
  """The tags that were opened, the attributes by tag, and all the text."""

  def __init__(self, page):
    super().__init__()
    self.tags = collections.Counter()
    self.attributes = collections.defaultdict(list)
    self.text = ''
    self.open = []
    self.feed(page)

  def handle_starttag(self, tag, attrs):
    self.tags[tag] += 1
    for name, value in attrs:
      self.attributes[name].append(value)
    if tag not in ('meta', 'link', 'path', 'use', 'rect', 'stop', 'image', 'br'):
      self.open.append(tag)

  def handle_endtag(self, tag):
    if tag in self.open:
      assert self.open.pop() == tag

  def handle_data(self, data):
    self.text += data


def claim(**fields) -> reports.JudgedClaim:
  made = {
    'key': 'a-claim',
    'source': 'Theorem 1',
    'statement': 'One is less than two.',
    'verdict': 'holds',
    'exact': {'one': 1.0, 'noise': -3e-16},
    'measured': {'two': None},
    'function': 'claims.a_claim',
    'figures': [],
    'note': 'So it is.',
    **fields,
  }
  return cast(reports.JudgedClaim, made)


def plot(text):
  dots = series(text, 'dots', BLUE, [1, 2], [3, 4])
  panel = Panel('a', text, text, (dots,))
  return Plot('6', (panel, Panel('b', 'x', 'y', (dots,))))


@pytest.fixture(scope='module')
def page():
  """A page all of whose texts try to leave their places."""
  odd = claim(**dict.fromkeys(('key', 'source', 'statement', 'note', 'function'), ODD))
  unmeasured = claim(verdict=None)
  table = reports.Table([[ODD, ODD]], [ODD, ODD], ODD, ODD)
  two = reports.figure_of(plot(ODD), ODD, ODD)
  one = reports.CaptionedFigure(ODD, ODD, two.pictures[:1])
  return reports.render(
    ODD,
    ODD,
    [
      reports.Section(ODD, ODD, {ODD: 'claims.json'}, [odd, unmeasured]),
      reports.Section('Figures', figures={'two': two, 'one': one}),
      reports.Section('Tables', tables=[table]),
    ],
  )


def test_no_text_leaves_its_place(page):
  outline = Outline(page)
  assert not outline.open, 'each tag that is opened is closed'
  assert outline.tags['script'] == 0
  assert not [name for name in outline.attributes if name.startswith('on')]
  # As text: title twice, lead, heading, text, link, six of the claim, caption and title
  # of two figures, and six of the table. Those of the figures' axes are drawn.
  assert outline.text.count(ODD) == 5 + 1 + 4 + 4 + 6


def test_it_needs_nothing_from_elsewhere(page):
  addresses = set(re.findall(r'https?://[^\s"<]+', page))
  assert addresses <= {'http://www.w3.org/2000/svg', 'http://www.w3.org/1999/xlink'}
  assert '<!--' not in re.sub(r'<svg.*?</svg>', '', page, flags=re.DOTALL)


def test_ids_are_unique_and_what_refers_to_them_finds_them(page):
  names = collections.Counter(Outline(page).attributes['id'])
  assert max(names.values()) == 1
  assert {'one', 'two', 'a-claim', ODD} <= names.keys()
  referred = re.findall(r'(?:href="#|url\(#)([^")]+)', page)
  assert referred
  assert set(referred) <= names.keys()


def test_each_picture_says_what_it_shows(page):
  labels = Outline(page).attributes['aria-label']
  assert labels[:2] == [
    f'Panel a: {ODD} against {ODD}. Shown: {ODD}.',
    f'Panel b: y against x. Shown: {ODD}.',
  ]


def test_claims_show_verdict_numbers_and_source():
  text = Outline(
    reports.render('t', 'l', [reports.Section('c', claims=[claim()])])
  ).text
  words = ' '.join(text[text.index('Theorem 1') :].split())
  assert words == (
    'Theorem 1 One is less than two.So it is. holds one = 1 exact noise = 0 exact '
    'two = not in this run measured by claims.a_claim'
  )
  text = Outline(
    reports.render('t', 'l', [reports.Section('c', claims=[claim(verdict=None)])])
  ).text
  assert 'not measured' in text


def test_an_id_is_a_name():
  picture = reports.Picture(Figure(1.0), 'empty')
  figure = reports.CaptionedFigure('t', 'c', [picture])
  with pytest.raises(ValueError, match='cannot be an id'):
    reports.render('t', 'l', [reports.Section('f', figures={'"x': figure})])


def test_parts_are_indented_and_empty_cells_have_no_name_on_a_phone():
  table = reports.Table([['whole', '3', ''], ['  part', '1', '33 %']], ('', 'n', 'of'))
  text = reports.render('', '', [reports.Section('', tables=[table])])
  assert '<span class="cell">  part</span>' in text
  assert '.cell { white-space: pre-wrap; }' in text
  assert text.count('<td class="empty" data-label="of">') == 1
  assert 'td.empty { display: none; }' in text
