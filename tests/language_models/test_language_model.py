"""Answers and their probabilities, and SmolLM2 against transformers."""

import importlib.util
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy.special import log_softmax

from tests.compare import refuses
from tests.language_models import smollm2, tiny
from tests.language_models.test_decoder import (
  TOLERANCE,
  loaded,
  logits_of,
  make_mesh,
)
from zoo.core.errors import RunError
from zoo.language_models import LanguageModel
from zoo.language_models.tokenizer import from_gguf
from zoo.language_models.weights import GGUFWeights, load_decoder, open_weights

PROMPTS = [
  'Rain falls on the old bridge.',
  'The lamps are lit, and the old bridge is wet. Score: ',
  '1.25',
]


@pytest.fixture(scope='module')
def model(models):
  return LanguageModel.load(models['qwen2']['folder'], cache_length=160)


def one_by_one(path, model, prompt, continuation):
  """log p(continuation | prompt), by one forward pass over both."""
  first, second = map(model._tokenizer.encode, (prompt, continuation))
  logits = logits_of(loaded(path), np.asarray(first + second, np.int32))
  log_p = log_softmax(logits.astype(np.float64), axis=-1)
  places = np.arange(len(first) - 1, len(first) + len(second) - 1)
  return log_p[places, second].sum()


# Some start alike, one is the start of another, one is twice there, one is empty.
CONTINUATIONS = ['3.80', '3.85', '3', 'on the old bridge', '3.80', '', ' lit, and']


def assert_each_is_as_alone(path, model):
  (found,) = model.log_probabilities(PROMPTS[1:2], CONTINUATIONS)
  expected = [one_by_one(path, model, PROMPTS[1], text) for text in CONTINUATIONS]
  assert found.dtype == np.float64
  # Logits are known to 1e-5, and the longest continuation has ten tokens.
  np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
  assert found[5] == 0


def test_probabilities_are_those_of_each_continuation_alone(model, models):
  assert_each_is_as_alone(models['qwen2']['folder'], model)
  assert model.log_probabilities(PROMPTS[1:2], []).shape == (1, 0)
  assert model.log_probabilities([], CONTINUATIONS).shape == (0, 7)


def test_probabilities_of_all_next_tokens_add_up_to_one(model):
  """Each number has one spelling, so that none is counted twice."""
  texts = [f'{number / 20:.2f}' for number in range(101)]
  total = np.exp(model.log_probabilities(PROMPTS[1:2], texts)).sum()
  assert 0 < total < 1
  digits = model.log_probabilities(PROMPTS[1:2], list('0123456789'))
  assert np.exp(digits).sum() > total


LONG = 'The lamps are lit, and rain falls on the wet bridge of the old town. ' * 5
# What was read before, of each prompt or of one for all, and the prompts.
PASTS = {
  'nothing in common': (['Rain', '3.80', 'and so'], PROMPTS),
  'one token in common': (['3.80'], ['3 and', '3, and so on', '3' * 9]),
  'a prompt of one token': (['3.80'], ['3', '3 and']),
  'a whole prompt': (PROMPTS, PROMPTS),
  'all prompts equal': ([PROMPTS[0]], [PROMPTS[0]] * 3),
  'the start of an answer': (PROMPTS, [prompt + ' Score: ' for prompt in PROMPTS]),
  'other last tokens': (['Rain fa', 'The lam', '1.2'], PROMPTS),
  'chunks of each': (
    [LONG[:n] + 'old' for n in (300, 9, 180)],
    [LONG[:n] + 'wet 3.80' for n in (300, 9, 180)],
  ),
  'chunks for all': ([LONG], [LONG + 'Score: ', LONG[:-9], LONG + 'old']),
}


# Gemma has whatever these have, but for layers without positions.


@pytest.fixture(scope='module')
def long_model(models):
  return LanguageModel.load(models['qwen2']['folder'], cache_length=256)


def assert_what_follows_is_one_forward_pass(model, decoder, prompts, *pasts):
  tokenizer = model._tokenizer
  letters = list('aeinorst,0358')
  tokens = np.ravel([tokenizer.encode(letter) for letter in letters])
  log_p, answers = [], []
  for prompt in prompts:
    ids = tokenizer.encode(prompt)
    logits = logits_of(decoder, ids)[-1]
    log_p.append(log_softmax(logits.astype(np.float64))[tokens])
    for _ in range(4):
      ids.append(int(logits_of(decoder, ids)[-1].argmax()))
    answers.append(tokenizer.decode(ids[-4:]))
  for past in pasts:
    found = model.log_probabilities(prompts, letters, past)
    assert np.abs(found - log_p).max() <= TOLERANCE
    assert model.generate(prompts, 4, past) == answers


@pytest.mark.parametrize(('before', 'prompts'), PASTS.values(), ids=PASTS)
def test_what_follows_a_past_is_one_forward_pass(long_model, models, before, prompts):
  """Also if the past was itself read on top of what its prompts have in common."""
  assert_what_follows_is_one_forward_pass(
    long_model,
    loaded(models['qwen2']['folder']),
    prompts,
    long_model.read(before),
    long_model.read(before, long_model.read_beginning(before)),
    long_model.read(prompts, long_model.read(before)),
  )


@pytest.mark.parametrize('kind', ['gemma3', 'qwen3', 'smollm3'])
def test_other_layers_follow_a_past_that_is_longer_than_their_window(models, kind):
  folder = models[kind]['folder']
  model = LanguageModel.load(folder, cache_length=160)
  prompts = [LONG[:30] + text for text in PROMPTS]
  past = model.read(prompts, model.read_beginning(prompts))
  assert_what_follows_is_one_forward_pass(model, loaded(folder), prompts, past)


@pytest.mark.parametrize('kind', ['gemma3', 'qwen3', 'smollm3'])
def test_a_tree_may_be_longer_than_a_window(models, kind):
  folder = models[kind]['folder']
  assert_each_is_as_alone(folder, LanguageModel.load(folder, cache_length=160))


def test_prompts_of_any_length_share_programs(long_model):
  """A past is of whole chunks, except what is common to all."""
  for texts in (PROMPTS, [LONG[:250], LONG[:99], 'old']):
    prompts = [LONG[:40] + text for text in texts]
    past = long_model.read(prompts, long_model.read_beginning(prompts))
    assert past.positions.shape[1] % 128 == 0


def test_a_past_of_other_prompts_is_refused(model):
  with refuses('the past is of 2 prompts', 'must be of 1 or 3'):
    model.generate(PROMPTS, 3, model.read(PROMPTS[:2]))
  with refuses('no prompts'):
    model.read([])


def test_answers_are_text_and_the_same_in_a_batch_as_alone(model):
  together = model.generate(PROMPTS, 12)
  assert together == [model.generate([prompt], 12)[0] for prompt in PROMPTS]
  assert all(answer and '<|' not in answer for answer in together)
  assert model.generate([], 12) == []
  # Fewer new tokens give the start of the same answer.
  for short, long in zip(model.generate(PROMPTS, 5), together, strict=True):
    assert long.startswith(short.rstrip('\ufffd'))  # half a character may end it


def test_answers_on_a_mesh_are_those_of_one_device(model, models):
  split = LanguageModel.load(
    models['qwen2']['folder'], cache_length=160, mesh=make_mesh(2, 4)
  )
  assert split.generate(PROMPTS, 12) == model.generate(PROMPTS, 12)
  prompts = [PROMPTS[0] + prompt for prompt in PROMPTS]
  past = split.read(prompts, split.read_beginning(prompts))
  assert split.generate(prompts, 12, past) == model.generate(prompts, 12)


def test_probabilities_on_a_mesh_are_those_of_one_device(model, models):
  split = LanguageModel.load(
    models['qwen2']['folder'], cache_length=160, mesh=make_mesh(2, 4)
  )
  found = split.log_probabilities(PROMPTS, ['3.80', '2'])
  expected = model.log_probabilities(PROMPTS, ['3.80', '2'])
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_a_model_knows_its_name_and_size(model, models):
  assert model.name == 'qwen2'
  assert model.num_params == sum(a.size for a in tiny.tensors('qwen2').values())
  assert LanguageModel.load(models['qwen2']['gguf']).name == 'qwen2'
  assert model.num_tokens(PROMPTS[2]) == len(tiny.tokenizer().encode(PROMPTS[2]).ids)


def test_a_model_in_bfloat16_answers(models):
  rounded = LanguageModel.load(models['qwen2']['folder'], dtype='bfloat16')
  assert len(rounded.generate(PROMPTS, 3)) == len(PROMPTS)
  assert np.isfinite(rounded.log_probabilities(PROMPTS, ['3', '4'])).all()


def test_probabilities_that_are_not_numbers_are_an_error(models, tmp_path):
  """Finite weights, whose products are beyond float32."""
  folder = shutil.copytree(models['qwen2']['folder'], tmp_path / 'model')
  tensors = load_file(folder / 'model.safetensors')
  tensors['lm_head.weight'] *= np.float32(1e38)
  save_file(tensors, folder / 'model.safetensors')
  model = LanguageModel.load(folder, cache_length=160)
  with pytest.raises(RunError, match='probabilities that are not finite'):
    model.log_probabilities(PROMPTS, ['3'])


def test_a_prompt_that_fits_exactly_is_answered_and_one_more_token_refused(model):
  used = model.num_tokens(PROMPTS[1])
  model.generate([PROMPTS[1]], model.cache_length - used)
  with refuses(f'{used} tokens', 'and with 1', ' 161;', 'cache_length, which is 160'):
    model.generate(PROMPTS, model.cache_length - used + 1)
  with refuses('cache_length, which is 160'):
    model.log_probabilities(PROMPTS, ['3', ' old' * 200])
  with refuses('empty'):
    model.generate([''], 3)
  with refuses('max_new_tokens', '0'):
    model.generate(PROMPTS, 0)


def test_what_does_not_fit_together_is_refused(models, tmp_path):
  with refuses("'float16'", 'bfloat16, float32'):
    LanguageModel.load(models['qwen2']['folder'], dtype='float16')
  folder = tiny.save_folder('tied_llama', tmp_path / 'model')
  text = json.loads((folder / 'tokenizer.json').read_text())
  text['added_tokens'].append(text['added_tokens'][0] | {'id': 400, 'content': '<x>'})
  text['model']['vocab']['<x>'] = 400
  (folder / 'tokenizer.json').write_text(json.dumps(text))
  with refuses('token 400', '320 tokens'):
    LanguageModel.load(folder)


def test_smollm2_is_what_it_is_in_transformers():
  """Logits, greedy tokens and probabilities, in float32."""
  with open_weights(smollm2.path()) as weights:
    assert isinstance(weights, GGUFWeights)
    decoder = load_decoder(weights, make_mesh(), jnp.float32)
    tokenizer = from_gguf(weights.metadata, weights.name)
  expected = smollm2.arrays('smollm2.npz')
  prompt = tokenizer.chat(smollm2.SAID['question'])
  # Logits reach 31; thirty layers of float32 leave 7e-5 of error.
  found = logits_of(decoder, tokenizer.encode(prompt))[::-8, ::16]
  assert np.abs(found - expected['logits']).max() <= 1e-3
  model = LanguageModel(decoder, tokenizer, cache_length=256, mesh=make_mesh())
  assert model.num_params == 134_515_008
  answer = smollm2.SAID['answer']
  assert model.generate([prompt], model.num_tokens(answer)) == [answer]
  (found,) = model.log_probabilities([prompt], list('0123456789'))
  assert np.abs(found - expected['log_p_digits']).max() <= 1e-3


def test_the_test_of_smollm2_leaves_no_file_open_when_it_is_skipped(monkeypatch):
  """An open file would become an error in another test, at garbage collection."""
  opened, load = [], np.load
  monkeypatch.setattr(np, 'load', lambda path: opened.append(load(path)) or opened[-1])
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(pytest.skip.Exception):
    test_smollm2_is_what_it_is_in_transformers()
  assert all(file.fid is None for file in opened)
