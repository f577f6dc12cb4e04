"""Headlines: claims about in-context learning, most of them well known, measured.

Each file of this folder is one `Study`: what the source says, the ranges in which its
numbers are expected, and `measure`, which trains models and returns the numbers.
"""

import os
from collections.abc import Sequence

from studies.headlines import (
  appearance,
  beliefs,
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
  appearance,
  beliefs,
)
# The headlines by name, in the order in which they run.
HEADLINES = {file.HEADLINE.name: file.HEADLINE for file in _FILES}

_ABOUT = About(
  'Well-known numbers of in-context learning, measured again',
  'Results of the literature, measured again by ICL Zoo, and two questions of its own, '
  'with the ranges in which numbers were expected before this measurement. '
  'studies/headlines/README.md says what each number is, how strong each test is, and '
  'why some fail; SETTINGS.md beside it lists the settings that were tried before.',
  'headlines.json',
)


def run(
  wanted: Sequence[Study],
  get_config: GetConfig,
  out: str | os.PathLike[str],
  part: Part | None = None,
) -> list[StudyResult] | None:
  """Measures headlines, judges them, and writes a report on all headlines.

  The report and `headlines.json` list every headline. Those that were not measured in
  this folder are marked as not run.

  Args:
    wanted: The headlines to measure.
    get_config: Returns the config of a file of `configs/` and a variant.
    out: The folder of the results.
    part: Measures only a part of `wanted` and writes no report. Processes that share
      only the folder may measure different parts at the same time.

  Returns:
    The result of each headline. None after SIGTERM; the same call then resumes.

  Raises:
    UserError: If `out` cannot be the folder, or another process is using it.
    RunError: If the folder cannot be written.
    KeyboardInterrupt: After Ctrl-C; the same call then resumes.
  """
  known = [*HEADLINES.values()]
  return run_studies(wanted, get_config, out, part, known=known, about=_ABOUT)
