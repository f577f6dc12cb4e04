"""The headline numbers of in-context learning, one study per file."""

import os
from collections.abc import Sequence

from studies.headlines import (
  clusters,
  deep_linear,
  diversity,
  filter,
  garg,
  induction,
  laplace,
  markov_phases,
  one_step,
  pool_crossing,
  pool_lines,
  prior_mean,
  ranking,
  recall,
  saddles,
  state_tracking,
  tabular,
  transience,
)
from studies.runner import GetConfig
from studies.study import About, Study, StudyResult
from studies.study import run as run_studies
from zoo.host.parts import Part

_FILES = (
  one_step,
  deep_linear,
  prior_mean,
  pool_lines,
  pool_crossing,
  markov_phases,
  induction,
  recall,
  ranking,
  garg,
  saddles,
  state_tracking,
  clusters,
  transience,
  diversity,
  laplace,
  filter,
  tabular,
)
# All headlines by name, in the order in which they are run.
HEADLINES = {file.HEADLINE.name: file.HEADLINE for file in _FILES}

_ABOUT = About(
  'Numbers that in-context learning must reproduce',
  'Results of the literature, measured again by ICL Zoo, with the ranges in which they '
  'were expected before this measurement. studies/headlines/README.md has the settings '
  'that were tuned before, how strong each test is, and why some fail.',
  'headlines.json',
)


def run(
  wanted: Sequence[Study],
  get_config: GetConfig,
  out: str | os.PathLike[str],
  part: Part | None = None,
) -> list[StudyResult] | None:
  """As `studies.study.run`; the report and `headlines.json` have all headlines."""
  known = [*HEADLINES.values()]
  return run_studies(wanted, get_config, out, part, known=known, about=_ABOUT)
