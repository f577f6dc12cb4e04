"""Reproduces the synthetic figures and the claims of arXiv 2512.04268.

  python -m launch.paper --objective=exact      # trains on the exact risk: one minute
  python -m launch.paper                        # on sampled prompts, as in the paper
  python -m launch.paper --figures=2,3 --seeds=1 --out=runs/two_figures
  python -m launch.paper --llm=runs/smollm2     # adds figure 6, a result of launch.llm

Rerun the same command to resume after an interruption. N processes divide the runs if
each is started with --part=I/N, I = 1, …, N; afterwards the command without --part
writes the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

import configs
from launch import cli
from launch.drawing import Drawing
from zoo.core.tables import format_table

if TYPE_CHECKING:
  from zoo.config.read import Readable
  from zoo.reports import JudgedClaim

flags.adopt_module_key_flags(cli)
_FIGURES = flags.DEFINE_list(
  'figures',
  None,
  'Figures to reproduce: `1`, `2`, `3`, `4` and `5` are figures of the paper. '
  '`context` and `covariance` are figures that the paper does not have. Default: all.',
)
_SEEDS = flags.DEFINE_integer(
  'seeds', 3, 'Number of runs of each point, with the seeds 0, 1, …', lower_bound=1
)
_OBJECTIVE = flags.DEFINE_string(
  'objective',
  'sampled',
  'What training minimises: `sampled` is the loss on sampled prompts, as in the paper, '
  'and `exact` is the risk by its formula, which is faster.',
)
_OUT = flags.DEFINE(
  cli.Workdir(),
  'out',
  'checkpoints/runs/paper',
  'Folder for the runs, the figures (PNG, SVG and CSV), `claims.json` and '
  '`report.html`.',
)
_PART = cli.define_part('runs')
_LLM = flags.DEFINE(
  cli.Folder(),
  'llm',
  None,
  'Folder of a finished run of `launch.llm`, whose result is shown as figure 6. '
  'Default: the report has no figure 6.',
)
_SMOKE = flags.DEFINE_bool(
  'smoke', False, 'Train for a few steps only: fast, but the results mean nothing.'
)
_DRAWING = Drawing(has_texts=False)


def main() -> None:
  # Imported here so that a mistyped flag is reported at once.
  from studies import paper

  out, part = _OUT.value, _PART.value
  figures = list(paper.FIGURES) if _FIGURES.value is None else _FIGURES.value
  with _DRAWING.wishes():
    judged = paper.reproduce(
      out, _get_config, figures, _SEEDS.value, _OBJECTIVE.value, _LLM.value, part
    )
  where = f'the report is {out}/report.html'
  cli.print_results(judged, _table, where, out, part)


def _table(judged: Sequence[JudgedClaim]) -> str:
  return format_table(
    [(claim['source'], claim['verdict'] or 'not measured') for claim in judged]
  )


def _get_config(name: str, variant: str) -> Readable:
  return configs.get_config(name, 'smoke' if _SMOKE.value else variant)


if __name__ == '__main__':
  cli.run(main)
