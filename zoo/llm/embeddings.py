"""Sentence embeddings by an encoder of `transformers`, such as all-MiniLM-L6-v2."""

# pyright: reportMissingImports=false

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
import torch
import transformers
from jaxtyping import Float
from tqdm import tqdm

from zoo.core.errors import RunError
from zoo.host.files import read_json
from zoo.llm.language_model import read

_BATCH = 64  # sentences of similar length in one call


@torch.inference_mode()
def embed(folder: pathlib.Path, texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
  """The mean of the last layer over each text's tokens, scaled to norm 1.

  The folder is one of Hugging Face; `max_seq_length` of its
  `sentence_bert_config.json`, if it exists, limits the tokens of a text. Raises
  UserError if the folder cannot be read, and RunError if a number is not finite.
  """
  model, tokenizer = read(
    transformers.AutoModel, folder, 'a sentence encoder', torch.float32
  )
  model.to('cuda' if torch.cuda.is_available() else 'cpu')
  limits, limit = (
    folder / 'sentence_bert_config.json',
    model.config.max_position_embeddings,
  )
  if limits.is_file():
    limit = min(limit, read_json(limits, dict).get('max_seq_length', limit))
  tokenizer.model_max_length = limit
  order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
  embedded = np.zeros((len(texts), model.config.hidden_size), np.float32)
  for start in tqdm(range(0, len(order), _BATCH), desc='embedding', mininterval=1):
    batch = order[start : start + _BATCH]
    tokens = tokenizer(
      [texts[i] for i in batch], padding=True, truncation=True, return_tensors='pt'
    ).to(model.device)
    states = model(**tokens).last_hidden_state
    mask = tokens['attention_mask'][..., None].to(states.dtype)
    means = (states * mask).sum(dim=1) / mask.sum(dim=1)
    embedded[batch] = torch.nn.functional.normalize(means, dim=-1).cpu().numpy()
  if not np.isfinite(embedded).all():
    raise RunError('the sentence encoder gives numbers that are not finite')
  return embedded
