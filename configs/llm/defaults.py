"""The defaults of all configs of the language-model experiment.

`FIELDS` of zoo/llm/config.py has each field with its range and its meaning.
"""

from typing import Any

from zoo.core.errors import check_name
from zoo.llm.config import Config, default_config


def get_config(variant: str = '') -> Config:
  """The experiment of Fig. 6 on STS-B (2512.04268, appendix C.3), without a model.

  The variant `smoke` has four prompts of two examples each. Context examples are
  sampled from train, as in the paper, whose guess network fits them far better than the
  query. With `dev` the network was trained on neither.
  """
  config: Any = default_config()
  benchmark = config.benchmark
  benchmark.instruction = (
    'Rate how similar in meaning two sentences are, from 0 (nothing in common) to 5 '
    '(the same meaning).'
  )
  benchmark.inputs = ('Sentence 1', 'Sentence 2')
  benchmark.label = 'Similarity score'
  benchmark.low, benchmark.high = 0.0, 5.0
  if variant:
    check_name('variant', variant, ['smoke'])
    config.prompts.num_prompts, config.prompts.num_examples = 4, 2
    config.readouts.max_new_tokens = 20
  return config
