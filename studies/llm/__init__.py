"""The language-model experiment: does a model refine an initial guess (Fig. 6)?

model = studies.llm.load_model('SmolLM2-135M-Instruct.gguf')
model.generate([model.chat('What is 3 + 4?')], max_new_tokens=20)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from zoo.core.errors import not_installed

if TYPE_CHECKING:
  from studies.llm.language_model import LanguageModel

_EXTRA = 'accelerate', 'gguf', 'safetensors', 'tokenizers', 'torch', 'transformers'


def load_model(path: str | os.PathLike[str], dtype: str = 'float32') -> LanguageModel:
  """Loads a GGUF file or a folder of Hugging Face, onto GPUs where there are some.

  `dtype` is float32 or bfloat16. Nothing is downloaded, no pickle is read, and no code
  beside the weights is run. Raises UserError for files that are damaged, incomplete or
  do not fit each other, for a model without keys and values, and without the extra
  `llm`.
  """
  return of_extra().load(path, dtype)


def of_extra() -> Any:
  """The module `studies.llm.language_model`.

  Raises UserError without the extra `llm`.
  """
  try:
    from studies.llm import language_model
  except ModuleNotFoundError as error:
    if error.name not in _EXTRA:
      raise
    raise not_installed(error.name, 'language models need', 'llm') from None
  return language_model
