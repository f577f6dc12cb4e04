"""Tokens against transformers, splits against the real tokenizers, chat templates."""

import json

import pytest
import tokenizers as hf

from tests.compare import refuses
from tests.language_models import smollm2, tiny
from zoo.core.fields import Fields
from zoo.language_models import tokenizer as tokenizers
from zoo.language_models.weights import GGUFWeights, open_weights

SPLITS = json.loads((smollm2.DATA / 'splits.json').read_text('utf-8'))
BYTES = sorted(hf.pre_tokenizers.ByteLevel.alphabet())


def metadata(**changes):
  """That of a GGUF file whose vocabulary is the 256 bytes and two special tokens."""
  known = {
    'model': 'gpt2',
    'pre': 'qwen2',
    'tokens': [*BYTES, '<|end|>', '<tool>', '[unused]'],
    'token_type': [1] * 256 + [3, 4, 5],
    'merges': [],
    'eos_token_id': 256,
  } | changes
  known = {f'tokenizer.ggml.{name}': value for name, value in known.items()}
  known['tokenizer.chat_template'] = tiny.TEMPLATE
  return Fields(known, 'Bytes')


def from_gguf(**changes):
  return tokenizers.from_gguf(metadata(**changes), 'Bytes')


def test_smollm2_encodes_and_chats_as_transformers_does():
  with open_weights(smollm2.path()) as weights:
    assert isinstance(weights, GGUFWeights)
    tokenizer = tokenizers.from_gguf(weights.metadata, 'SmolLM2')
  for text, tokens in smollm2.SAID['tokens'].items():
    assert tokenizer.encode(text) == [int(token) for token in tokens.split()]
  assert tokenizer.chat(smollm2.SAID['question']) == smollm2.SAID['prompt']
  assert tokenizer.end_tokens == (2,)


@pytest.mark.parametrize('kind', ['qwen2', 'llama-bpe'])
def test_text_is_split_as_the_real_tokenizer_splits_it(kind):
  """With a merge that joins two pieces, tokens would differ where splits do."""
  real = from_gguf(pre=kind)._tokenizer
  for text, pieces in SPLITS[kind].items():
    normal = real.normalizer.normalize_str(text) if real.normalizer else text
    found = [piece for piece, _ in real.pre_tokenizer.pre_tokenize_str(normal)]
    assert found == pieces.split(' ')


@pytest.mark.parametrize('kind', ['smollm', 'qwen2', 'llama-bpe'])
def test_text_comes_back_without_its_special_tokens(kind):
  tokenizer = from_gguf(pre=kind)
  text = 'Two  words,\n\ttab, 3.80, Zürich, 東京 🙂.'
  tokens = tokenizer.encode(f'{text}<tool><|end|>')
  assert tokens[-2:] == [257, 256]
  assert tokenizer.decode(tokens) == f'{text}<tool>'
  assert tokenizer.largest_token == 257  # no text gives the unused one


def test_a_merge_is_used_within_a_piece_only():
  number = BYTES.index('1')
  tokens = [*BYTES, '12', '<|end|>']
  changes = {'tokens': tokens, 'token_type': [1] * 257 + [3], 'merges': ['1 2']}
  changes['eos_token_id'] = 257
  assert from_gguf(pre='llama-bpe', **changes).encode('12') == [256]
  for kind in 'qwen2', 'smollm':  # digit by digit
    assert from_gguf(pre=kind, **changes).encode('12') == [number, BYTES.index('2')]


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'pre': 'deepseek-r1-qwen'}, ("'deepseek-r1-qwen'", 'smollm, qwen2, llama-bpe')),
    ({'model': 'llama'}, ("'llama'", "'gpt2'")),
    ({'eos_token_id': None}, ('no end token', 'eos_token_id')),
    ({'eos_token_id': 259}, ('eos_token_id', '259', 'from 0 to 258')),
    ({'eos_token_id': -1}, ('eos_token_id', '-1')),
    ({'eos_token_id': [256]}, ('eos_token_id', '[256]', 'an integer')),
    ({'bos_token_id': '0'}, ('bos_token_id', "'0'")),
    ({'tokens': None}, ("lacks 'tokenizer.ggml.tokens'",)),
    ({'tokens': [1, 2]}, ('tokenizer.ggml.tokens', 'a list of texts')),
    ({'token_type': [1, 2]}, ('259 tokens and 2 types',)),
    ({'token_type': 'ones'}, ('token_type', "'ones'", 'integers')),
    ({'merges': ['ab']}, ('vocabulary of Bytes is damaged',)),
  ],
)
def test_a_vocabulary_of_another_kind_is_refused(changes, said):
  with refuses('Bytes', *said):
    from_gguf(**changes)


@pytest.mark.parametrize('form', ['folder', 'gguf'])
def test_folder_and_gguf_file_have_the_same_tokens_and_template(models, form):
  path = models['tied_llama'][form]
  with open_weights(path) as weights:
    if isinstance(weights, GGUFWeights):
      tokenizer = tokenizers.from_gguf(weights.metadata, 'Tiny')
    else:
      tokenizer = tokenizers.from_folder(path, 'Tiny')
  prompt = tokenizer.chat('Are the lamps lit?', 'Score: ')
  assert prompt == '<|start|><|user|>Are the lamps lit?<|end|><|assistant|>Score: '
  tokens = tokenizer.encode(prompt)
  assert [token for token in tokens if token < 4] == [0, 2, 1, 3]
  assert tokens == tiny.tokenizer().encode(prompt).ids
  assert tokenizer.decode(tokens) == 'Are the lamps lit?Score: '
  assert tokenizer.end_tokens == (tiny.END_TOKEN,)


def test_the_template_beside_the_tokenizer_comes_first(models, tmp_path):
  folder = tiny.save_folder('tied_llama', tmp_path / 'model')
  (folder / 'chat_template.jinja').write_text('{{ messages[0].content }}!')
  assert tokenizers.from_folder(folder, 'Tiny').chat('Hello') == 'Hello!'
  for name, template, said in (
    ('fails', "{{ raise_exception('no system turn') }}", 'no system turn'),
    ('runs code', '{{ messages.__class__.__base__.__subclasses__() }}', 'unsafe'),
    ('is none', '{% for %}', 'Expected an expression'),
  ):
    (folder / 'chat_template.jinja').write_text(template)
    with refuses('chat template', 'Tiny', said):
      tokenizers.from_folder(folder, 'Tiny').chat(name)


def test_a_folder_without_tokenizer_or_template_is_refused(models, tmp_path):
  folder = tiny.save_folder('tied_llama', tmp_path / 'model')
  (folder / 'tokenizer_config.json').unlink()
  with refuses('Tiny has no chat template'):
    tokenizers.from_folder(folder, 'Tiny').chat('Hello')
  (folder / 'tokenizer.json').write_text('{}')
  with refuses('tokenizer.json', 'not a tokenizer'):
    tokenizers.from_folder(folder, 'Tiny')


def changed(change, file='tokenizer_config.json'):
  """Changes the fields of a file beside the tokenizer, or of the tokenizer itself."""

  def write(folder):
    fields = json.loads((folder / file).read_text())
    change(fields)
    (folder / file).write_text(json.dumps(fields))

  return write


def update(file='tokenizer_config.json', **fields):
  return changed(lambda found: found.update(fields), file)


def replace(content, times=1):
  rule = {'type': 'Replace', 'pattern': {'String': 'a'}, 'content': content}
  normalizers = {'type': 'Sequence', 'normalizers': [rule] * times}
  return update('tokenizer.json', normalizer=normalizers)


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (update('config.json', eos_token_id='1'), ['eos_token_id', "'1'", 'integers']),
    (update('config.json', eos_token_id=[1, [2]]), ['eos_token_id', 'integers']),
    (update('config.json', eos_token_id=10**9), ['end token 1000000000', '0 to 299']),
    (update('generation_config.json', eos_token_id=-1), ['eos_token_id', '-1']),
    (update(eos_token=7), ['eos_token', 'is 7', 'a text']),
    (update(eos_token={'content': 7}), ['content of eos_token', 'a text']),
    (update(chat_template=7), ['chat_template', 'is 7', 'a text']),
    (update(chat_template=[{'name': 'default'}]), ["lacks 'template'"]),
    (update(chat_template=['x']), ['chat_template', 'is a str', 'an object']),
    (update('tokenizer.json', model=[]), ['tokenizer.json is not a tokenizer']),
    (replace('x' * 1000), ['normalizer', '1001 times as long']),
    (replace('xx', 60), ['normalizer', 'times as long; the limit']),
    (
      update('tokenizer.json', post_processor=['x' * 5000]),
      ['post_processor', '4096 characters'],
    ),
  ],
)
def test_fields_of_another_type_or_range_are_refused(tmp_path, change, said):
  folder = tiny.save_folder('tied_llama', tmp_path / 'model')
  change(folder)
  with refuses(*said):
    tokenizers.from_folder(folder, 'Tiny')


def test_truncation_and_padding_of_the_file_are_not_those_of_prompts(tmp_path):
  """A stride that is not below the length would end in a panic."""
  folder = tiny.save_folder('tied_llama', tmp_path / 'model')
  expected = tokenizers.from_folder(folder, 'Tiny').encode('the old bridge')
  update(
    'tokenizer.json',
    truncation={
      'direction': 'Right',
      'max_length': 2,
      'strategy': 'LongestFirst',
      'stride': 8,
    },
    padding={
      'strategy': {'Fixed': 10**9},
      'direction': 'Right',
      'pad_to_multiple_of': None,
      'pad_id': 0,
      'pad_type_id': 0,
      'pad_token': '<|start|>',
    },
  )(folder)
  assert tokenizers.from_folder(folder, 'Tiny').encode('the old bridge') == expected


def test_what_the_tokenizer_cannot_encode_is_one_line():
  with refuses('the tokenizer of Bytes fails'):
    from_gguf().encode('\ud800')


# As in Gemma's tokenizer_config.json, but for turns of the system and lists of items.
GEMMA_TEMPLATE = """{{ bos_token }}
{%- for message in messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}"""


@pytest.fixture(scope='module')
def gemma(tmp_path_factory):
  """A folder whose tokenizer is of Gemma's kind: characters, merges, and bytes."""
  special = ['<pad>', '<eos>', '<bos>', '<unk>', '<start_of_turn>', '<end_of_turn>']
  made = hf.Tokenizer(hf.models.BPE(unk_token='<unk>', byte_fallback=True))
  made.normalizer = hf.normalizers.Replace(' ', '▁')
  made.pre_tokenizer = hf.pre_tokenizers.Split(' ', 'merged_with_previous')
  made.decoder = hf.decoders.Sequence(
    [hf.decoders.Replace('▁', ' '), hf.decoders.ByteFallback(), hf.decoders.Fuse()]
  )
  trainer = hf.trainers.BpeTrainer(
    vocab_size=310,
    special_tokens=[*special, *(f'<0x{byte:02X}>' for byte in range(256))],
    show_progress=False,
  )
  made.train_from_iterator(['the old bridge, and the lamps are lit 3.80'] * 9, trainer)
  rules = json.loads(made.to_str())
  rules['added_tokens'] = rules['added_tokens'][: len(special)]  # bytes are not special
  folder = tiny.save_folder('gemma3', tmp_path_factory.mktemp('gemma') / 'model')
  (folder / 'tokenizer.json').write_text(json.dumps(rules))
  named = {'bos_token': '<bos>', 'eos_token': '<eos>', 'chat_template': GEMMA_TEMPLATE}
  (folder / 'tokenizer_config.json').write_text(json.dumps(named))
  (folder / 'generation_config.json').write_text('{"eos_token_id": [1, 5]}')
  return folder


def test_a_vocabulary_of_characters_and_bytes_is_read(gemma):
  """Of Gemma: spaces are ▁, and what is not in the vocabulary is spelled in bytes."""
  tokenizer = tokenizers.from_folder(gemma, 'Gemma')
  assert tokenizer.end_tokens == (1, 5)
  tokens = tokenizer.encode('é\n the')
  assert tokens[:3] == [6 + byte for byte in 'é\n'.encode()]
  assert tokens[3] > 6 + 255
  for text in 'the old bridge', '  two  spaces, 3.80,\n\ttab: Zürich, 東京 🙂. ':
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_turns_of_gemma_are_rendered(gemma):
  tokenizer = tokenizers.from_folder(gemma, 'Gemma')
  prompt = tokenizer.chat('Are the lamps lit? ', 'Score: ')
  assert prompt == (
    '<bos><start_of_turn>user\nAre the lamps lit?<end_of_turn>\n'
    '<start_of_turn>model\nScore: '
  )
  special = [token for token in tokenizer.encode(prompt) if token < 6]
  assert special == [2, 4, 5, 4]


# As SmolLM3's does; Llama 3.2's asks whether the function is there.
DATED = "{{ 'Today: ' ~ strftime_now('%d %B %Y') }}"


def test_a_template_that_depends_on_the_date_is_refused(tmp_path):
  folder = tiny.save_folder('smollm3', tmp_path / 'model')
  (folder / 'chat_template.jinja').write_text(DATED)
  with refuses('chat template', 'Tiny', "'strftime_now' is undefined"):
    tokenizers.from_folder(folder, 'Tiny').chat('Hello')
  guarded = '{% if strftime_now is defined %}' + DATED + '{% else %}26 Jul{% endif %}'
  (folder / 'chat_template.jinja').write_text(guarded)
  assert tokenizers.from_folder(folder, 'Tiny').chat('Hello') == '26 Jul'


class Panic(BaseException):
  """As the tokenizers package raises one."""


Panic.__name__ = 'PanicException'


@pytest.mark.parametrize('error', [Panic, ValueError])
def test_a_panic_of_the_package_is_one_line_and_an_interruption_is_none(error):
  def fails(error):
    raise error('retry-limit\nover')

  with refuses('it fails: retry-limit over'):
    tokenizers.guarded('it fails', fails, error)
  with pytest.raises(KeyboardInterrupt):
    tokenizers.guarded('it fails', fails, KeyboardInterrupt)
