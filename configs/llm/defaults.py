"""The fields of a language-model experiment for each published benchmark.

The config file of a model, such as configs/llm/smollm2.py, starts from these fields and
sets its own values. studies/llm/config.py says what each field means, which values it
may have and what its default is.
"""

from typing import Any

from studies.llm.config import all_fields
from zoo.core.errors import UserError, check_name

# The section `benchmark` of each published benchmark. The inputs are two sentences
# unless given.
_BENCHMARKS: dict[str, dict[str, Any]] = {
  'stsb': {
    'instruction': (
      'Rate how similar in meaning two sentences are, from 0 (nothing in common) to 5 '
      '(the same meaning).'
    ),
    'label': 'Similarity score',
    'low': 0.0,
    'high': 5.0,
  },
  'sick_relatedness': {
    'instruction': (
      'Rate how related in meaning two sentences are, from 1 (unrelated) to 5 (very '
      'closely related).'
    ),
    'label': 'Relatedness score',
    'low': 1.0,
    'high': 5.0,
  },
  'sick_entailment': {
    'instruction': (
      'Decide whether the second sentence follows from the first (entailment), cannot '
      'be true if the first is (contradiction), or neither (neutral).'
    ),
    'label': 'Relation',
  },
  'trec_qa': {
    'instruction': 'Decide whether a sentence answers a question.',
    'inputs': ('Question', 'Sentence'),
    'label': 'Verdict',
  },
}


def get_config(variant: str = '') -> Any:
  """Returns the experiment of Fig. 6 (arXiv 2512.04268, appendix C.3), without a model.

  Examples of the context are sampled from train, as in the paper. The guess network is
  trained on the same data, so it fits the examples far better than the query. With
  `prompts.context_split = 'dev'` the network has seen neither of them.

  Args:
    variant: The name of a published benchmark (`stsb` by default), `smoke`, or both,
      joined by a comma. `smoke` has four prompts of two examples each.

  Returns:
    A ConfigDict, which is not locked.

  Raises:
    UserError: If a variant is unknown, or if there are several benchmarks.
  """
  parts = [part for part in variant.split(',') if part]
  for part in parts:
    check_name('variant', part, [*_BENCHMARKS, 'smoke'])
  name, *others = [part for part in parts if part != 'smoke'] or ['stsb']
  if others:
    raise UserError(f'the variant {variant!r} has several benchmarks; one is allowed')
  config = all_fields()
  inputs = 'Sentence 1', 'Sentence 2'
  config.benchmark.update({'name': name, 'inputs': inputs, **_BENCHMARKS[name]})
  if name == 'trec_qa':
    config.prompts.num_prompts = 68  # These are all questions of test.
  if 'smoke' in parts:
    config.prompts.num_prompts, config.prompts.num_examples = 4, 2
    config.readouts.max_new_tokens = 20
  return config
