"""Chat templates: as Jinja alone renders them, and in bounds whatever they ask for."""

import jinja2.sandbox
import pytest

from tests.compare import refuses
from zoo.language_models import chat_template
from zoo.language_models.chat_template import ChatTemplate

# What templates of real models use, in the words of several of them.
TEMPLATES = [
  '{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}',
  "{% for m in messages %}{{ m['role'] ~ ': ' ~ m['content'] | trim }}{% endfor %}",
  '{% if tools is not none %}{{ tools | tojson(indent=4) }}{% else %}none{% endif %}',
  '{% if add_generation_prompt is defined %}a{% endif %}{{ strftime_now is defined }}',
  """{%- set ns = namespace(found=false, text='') %}
{%- for m in messages %}
  {%- if m.role == 'user' %}{% set ns.found = true %}{% endif %}
  {%- set ns.text = ns.text + m.content[:3] %}
{%- endfor %}
{{- ns.text if ns.found else raise_exception('no user') }}""",
  '{% for i in range(7) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}'
  '{% break %}{% endif %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}{% endfor %}',
  '{% for k, v in messages[0].items() %}{{ loop.cycle("a", "b") }}{{ k }}={{ v }}'
  '{% else %}empty{% endfor %}',
  '{% for x in [] %}{{ x }}{% else %}empty{% endfor %}',
  '{% for x in range(9) if x is even %}{{ loop.previtem }}{{ x }}{% endfor %}',
  '{% macro turn(role, text="?") %}<{{ role }}>{{ text }}{{ caller() if caller }}'
  '{% endmacro %}{{ turn("a") }}{% call turn("b", text="c") %}inner{% endcall %}',
  '{% set block %}  {{ messages[0].content.upper() }} {% endset %}{{ block.strip() }}',
  '{% filter upper | trim %}  abc {% endfilter %}',
  "{{ messages | map(attribute='role') | join(', ') }}{{ [1, 2] | join }}",
  "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
  "{{ 'a-b-c'.split('-')[1:] }}{{ 'a-b'.replace('-', '+') }}{{ '-'.join(['x', 'y']) }}",
  "{{ 'abc' | replace('b', 'd') }}{{ 'a\\nb' | indent(2) }}{{ ' x ' | trim }}",
  "{{ '%s is %d' % ('x', 3) }}{{ 7 // 2 + 2 ** 3 - 1 * 5 }}{{ 'ab' * 2 }}{{ [0] * 3 }}",
  "{{ {'a': [1, (2, 3)]} }}{{ (1, 2)[0] }}{{ [1, 2, 3][::-1] }}{{ 1 in [1] }}",
  '{% with a = 1, b = (2, 3) %}{% set c, d = b %}{{ a }}{{ c }}{{ d }}{% endwith %}',
  '{{ undefined_name }}{{ none }}{{ true }}{{ 1.5 }}{{ messages[0].nothing }}',
]


@pytest.mark.parametrize('source', TEMPLATES)
def test_a_template_gives_what_jinja_alone_gives(source):
  alone = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=['jinja2.ext.loopcontrols']
  )
  expected = alone.from_string(source).render(
    messages=[{'role': 'user', 'content': 'Hello, <you> & me'}],
    tools=None,
    documents=None,
    add_generation_prompt=True,
    bos_token='<s>',
  )
  template = ChatTemplate(source, 'model')
  for _ in range(2):  # the second time it is compiled already
    assert template.render('Hello, <you> & me', {'bos_token': '<s>'}) == expected


def test_json_is_written_as_by_transformers():
  """There `tojson` is json.dumps without ASCII; Jinja's would escape for HTML."""
  source = "{{ messages | tojson }}{{ {'a': [1]} | tojson(indent=1) }}"
  assert ChatTemplate(source, 'model').render('<é> & "x"', {}) == (
    '[{"role": "user", "content": "<é> & \\"x\\""}]{\n "a": [\n  1\n ]\n}'
  )


MANY = 'it makes too many or too large values'


@pytest.mark.parametrize(
  ('source', 'said'),
  [
    # Mistakes.
    ('{{ 1 / 0 }}', 'ZeroDivisionError: division by zero'),
    ('{{ messages + 1 }}', 'TypeError: '),
    ("{{ raise_exception('no system turn') }}", 'fails: no system turn'),
    ('{% for %}', 'Expected an expression'),
    ('{{ messages.__class__.__base__.__subclasses__() }}', 'unsafe'),
    ("{% include 'file' %}", 'no loader'),
    ('x' * 2**18, '262144 characters'),
    # Recursion, in the text and in what it does.
    ('{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}', 'RecursionError'),
    ('{{' + '(' * 5000 + '1' + ')' * 5000 + '}}', 'RecursionError'),
    ('{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}', 'recursive loops'),
    (
      '{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}'
      '{{ f(60) }}',
      MANY,
    ),
    # Loops.
    ('{{ range(10**9) }}', 'Range too big'),
    (
      '{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}',
      MANY,
    ),
    ('{% for a in range(999) if range(999) | select("odd") | list %}.{% endfor %}',
     MANY),
    # One operation that makes much.
    ("{{ 'x' * 10**9 }}", MANY),
    ('{{ [[1, 2]] * 10**9 }}', MANY),
    ('{{ 10 ** 5000 }}', 'an integer has more than 4096 bits'),
    ("{{ ('f' * 5000) | int(0, 16) }}", 'an integer has more than 4096 bits'),
    ("{{ '%1000000000d' % 1 }}", 'a width in a format'),
    ("{{ '%*d' % (10**9, 1) }}", 'a width in a format'),
    ("{{ '%(a).*f' % {'a': 1} }}", 'a width in a format'),
    ("{{ 'x'.ljust(10**9) }}", "'ljust' of 'str' object is unsafe"),
    ("{{ '{:1000000000}'.format(1) }}", "'format' of 'str' object is unsafe"),
    ('{{ (1).to_bytes(10**9) }}', "'to_bytes' of 'int' object is unsafe"),
    ("{{ 'x' | center(10**9) }}", "No filter named 'center'"),
    ('{{ lipsum(10**6) }}', "'lipsum' is undefined"),
    ('{{ [1] | tojson(indent=10**9) }}', 'the indent 1000000000'),
    # Products of two that are not large.
    ("{{ ('a' * 10**6).replace('', 'b' * 10**6) }}", MANY),
    ("{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}", MANY),
    ("{{ ['a' * 10**5] | map('replace', 'a', 'b' * 10**5) | list }}", MANY),
    ("{{ ('a' * 10**6).join('b' * 10**6) }}", MANY),
    ("{{ range(99999) | join('a' * 10**6) }}", MANY),
    ("{{ ('\\n' * 10**6) | indent(10**6) }}", MANY),
    ("{{ ('x' * 10**5 ~ 'y').strip('y' ~ 'z' * 10**5 ~ 'x') }}", MANY),
    ("{{ ('x' * 10**5) | trim('z' * 10**5 ~ 'x') }}", MANY),
    ("{{ '%s' * 9999 % ('x' * 10**5) }}", MANY),
    # Doubling.
    ("{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
     '{% endfor %}', MANY),
    ("{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x %}{{ n.x }}"
     '{{ n.x }}{% endset %}{% endfor %}', MANY),
    ('{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}'
     '{% endfor %}', MANY),
    ('{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}'
     '{% endfor %}{{ n.x }}', MANY),
    ('{% set n = namespace(x=1) %}{% for i in range(99) %}'
     "{% set n.x = {'a': n.x, 'b': n.x}.items() %}{% endfor %}{{ n.x }}", MANY),
    ('{{ ' + ' ~ '.join(["('x' * 10**5)"] * 100) + ' }}', MANY),
    ('{{ [' + ', '.join(["('x' * 10**5)[1:]"] * 300) + '] }}', MANY),
    ("{{ ('a' * 10**6) | map('list') | list }}", MANY),
    # Output.
    ('{% for i in range(99999) %}' + 'y' * 9999 + '{% endfor %}', MANY),
    ("{% set x = 'y' * 10**6 %}{% for i in range(999) %}{{ x }}{% endfor %}", MANY),
  ],
)  # fmt: skip
def test_a_template_that_fails_or_takes_too_much_is_one_line(monkeypatch, source, said):
  # What is counted is refused on a machine of any speed, however busy.
  monkeypatch.setattr(chat_template, 'MAX_SECONDS', 300.0)
  with refuses('the chat template of model fails: ', said):
    ChatTemplate(source, 'model').render('Hello', {})


def test_what_is_not_counted_stops_at_the_deadline(monkeypatch):
  """Each test looks through 10⁵ numbers, and there are 10⁵ tests."""
  monkeypatch.setattr(chat_template, 'MAX_SECONDS', 0.05)
  source = "{{ range(10**5) | select('in', range(10**5) | reverse | list) | list }}"
  with refuses('it takes more than 0.05 seconds'):
    ChatTemplate(source, 'model').render('Hello', {})


def test_a_long_text_has_a_larger_budget():
  long_text = 'a word ' * 10**5
  source = '{% for m in messages %}{{ (m.content | trim).upper() }}!{% endfor %}'
  rendered = ChatTemplate(source, 'model').render(long_text, {})
  assert rendered == long_text.strip().upper() + '!'


def test_namespaces_that_hold_each_other_are_written_in_short():
  source = '{% set n = namespace() %}{% set n.x = [n, n] %}{{ n.x }}'
  rendered = ChatTemplate(source, 'model').render('Hello', {})
  assert rendered == '[<Namespace>, <Namespace>]'
