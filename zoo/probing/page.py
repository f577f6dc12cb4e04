"""The report of a probe as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping

from zoo import reports
from zoo.probing.report import Report
from zoo.probing.summaries import tables
from zoo.reports import style

# The title and the caption of each picture.
_CAPTIONS = {
  'alignment': (
    'Alignment',
    'The model and the other predictor on 512 prompts: predictions, gradients in the '
    'query, and the cosine of the two gradients of a prompt.',
  ),
  'examples': (
    'By number of examples',
    'The loss of the model and of the baselines of its task after each number of '
    'examples, with one standard error. A hollow marker is a median.',
  ),
  'step_matrix': (
    'Step matrix',
    "The matrix Γ of the model's step in context, that of the optimum of the linear "
    'family, and their difference.',
  ),
  'attention': (
    'Attention',
    'The attention of each token to each other token, by layer and head: the mean over '
    '256 prompts of the absolute weight. Dark blue is 0, and the colours of each row '
    'end at its largest weight; that of the query, the last row, is in the title.',
  ),
  'heads': (
    'Heads',
    'The value vector b_h and the bilinear form A_h of each head, each divided by its '
    'largest entry.',
  ),
  'out_of_distribution': (
    'Out of distribution',
    'The loss on the shifted tasks that the task defines: by theory where it has no '
    'bar, and otherwise sampled, with one standard error.',
  ),
}


def page(report: Report, title: str, pictures: Mapping[str, style.Figure]) -> str:
  """The HTML of a report, which expects each picture beside it as `NAME.png`."""
  figures = {}
  for name, picture in pictures.items():
    heading, caption = _CAPTIONS[name]
    shown = reports.Picture(picture, f'{heading}. {caption}')
    figures[name] = reports.Figure(heading, caption, [shown], {'PNG': f'{name}.png'})
  return reports.render(
    title,
    f'Is it doing gradient descent? {report.verdict}',
    [
      reports.Section('Numbers', tables=tables(report)),
      reports.Section('Pictures', figures=figures),
    ],
  )
