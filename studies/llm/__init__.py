"""The language-model experiment: does a model refine an initial guess (Fig. 6)?

Example:
  >>> model = studies.llm.load_model('SmolLM2-135M-Instruct.gguf')
  >>> model.generate([model.chat('What is 3 + 4?')], max_new_tokens=20)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from zoo.core.errors import not_installed

if TYPE_CHECKING:
  from studies.llm.language_model import LanguageModel

_EXTRA = 'accelerate', 'gguf', 'safetensors', 'tokenizers', 'torch', 'transformers'


def load_model(path: str | os.PathLike[str], dtype: str = 'float32') -> LanguageModel:
  """Loads a language model from a GGUF file or a Hugging Face folder.

  The model is placed on GPUs if there are some. Nothing is downloaded, no pickle is
  read, and no code that comes with the weights is run.

  Args:
    path: The file or the folder.
    dtype: The type of the weights in memory, 'float32' or 'bfloat16'.

  Returns:
    The model with its tokenizer.

  Raises:
    UserError: If the files are damaged, incomplete or do not fit each other, if the
      model keeps no keys and values, or if the extra `llm` is not installed.
  """
  return of_extra().load(path, dtype)


def of_extra() -> Any:
  """Returns the module `studies.llm.language_model`.

  Returns:
    The module, which has the class of models and the function that opens one.

  Raises:
    UserError: If the extra `llm` is not installed.
  """  # noqa: DOC501
  try:
    from studies.llm import language_model
  except ModuleNotFoundError as error:
    if error.name not in _EXTRA:
      raise
    raise not_installed(error.name, 'language models need', 'llm') from None
  return language_model
