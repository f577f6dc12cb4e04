"""The report on the paper: claims, figures and facts on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zoo import reports
from zoo.reports.plots import Plot

Facts = Mapping[str, str]

_TITLE = 'The Initialization Determines Whether In-Context Learning Is Gradient Descent'


def page(
  plots: Sequence[tuple[str, str, Plot]],
  claims: Sequence[reports.Claim],
  facts: Mapping[str, Facts],
) -> str:
  """The page: `plots` with titles and captions, and tables of facts by heading."""
  figures = {
    f'figure_{plot.name}': reports.figure_of(plot, _numbered(plot, title), caption)
    for title, caption, plot in plots
  }
  return reports.render(
    _TITLE,
    'The synthetic figures and the claims of arXiv 2512.04268, reproduced by ICL Zoo, '
    f'with exact results and trained models. {verdicts_of(claims)}',
    [
      reports.Section(
        'Claims',
        'A verdict follows from the numbers by the rule below it; each number is shown '
        'with the source that computes it.',
        {'claims.json': 'claims.json'},
        claims,
      ),
      reports.Section('Figures', figures=figures),
      *(
        reports.Section(heading, tables=[reports.Table(list(table.items()))])
        for heading, table in facts.items()
      ),
    ],
  )


def verdicts_of(claims: Sequence[reports.Claim]) -> str:
  """How many claims of the paper have each verdict, and how many that go beyond it."""
  beyond = [claim for claim in claims if claim['source'].startswith('Beyond the paper')]
  of_paper = [claim for claim in claims if claim not in beyond]
  text = f'Verdicts on the {len(of_paper)} claims of the paper: {_counts(of_paper)}.'
  if beyond:
    text += (
      f' On {len(beyond)} that the paper does not make, with the source “Beyond the '
      f'paper”: {_counts(beyond)}.'
    )
  return text


def _counts(claims: Sequence[reports.Claim]) -> str:
  verdicts = [claim['verdict'] for claim in claims]
  return '; '.join(
    f'{verdict or "not measured in this run"}: {verdicts.count(verdict)}'
    for verdict in ('holds', 'holds, not sharp', 'fails', None)
    if verdict in verdicts
  )


def _numbered(plot: Plot, title: str) -> str:
  number = f'Figure {plot.name}' if plot.name.isdecimal() else 'Beyond the paper'
  return f'{number}. {title}'
