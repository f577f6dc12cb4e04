"""Chat templates: programs that come with a model, run within limits.

Jinja's sandbox protects the machine from a template, but limits neither time nor
memory. Here the size of each expression's value is charged to a budget; a value that
can be far larger than its operands (`*`, `**`, `%`, `join`, `replace`, `indent`, …) is
charged before it is computed. Iterations, calls and tests are charged too, and check a
deadline. Filters, methods and globals that are not listed here do not exist.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import (
  Callable,
  ItemsView,
  Iterable,
  Iterator,
  KeysView,
  Mapping,
  ValuesView,
)

import jinja2
import jinja2.filters
import jinja2.sandbox
from jinja2 import nodes
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from zoo.core.errors import UserError, in_one_line

MAX_SOURCE = 2**17  # characters of a template; real models have at most 20,000
MAX_SECONDS = 5.0  # real templates take a millisecond
_BUDGET, _BUDGET_OF_CHARACTER = 2**22, 2**8  # the second per character of the user
_OBJECT, _STEP = 2**4, 2**8  # per item of a list; per iteration, call or test
_MAX_BITS = 2**12  # of an integer

_FILTERS = (
  *('abs', 'attr', 'capitalize', 'count', 'd', 'default', 'dictsort', 'e', 'escape'),
  *('first', 'float', 'int', 'items', 'last', 'length', 'list', 'lower', 'map', 'max'),
  *('min', 'reject', 'rejectattr', 'reverse', 'safe', 'select', 'selectattr', 'sort'),
  *('string', 'title', 'unique', 'upper'),
)
_METHODS = {  # of texts, numbers, lists and dicts
  *('capitalize', 'casefold', 'count', 'endswith', 'find', 'index', 'isalnum'),
  *('isalpha', 'isdecimal', 'isdigit', 'islower', 'isnumeric', 'isspace', 'istitle'),
  *('isupper', 'join', 'lower', 'lstrip', 'partition', 'removeprefix', 'removesuffix'),
  *('replace', 'rfind', 'rindex', 'rpartition', 'rsplit', 'rstrip', 'split'),
  *('splitlines', 'startswith', 'strip', 'swapcase', 'title', 'upper'),
  *('get', 'items', 'keys', 'values'),
}
# A width or a precision of four digits or more, or one given by an argument.
_WIDTH = re.compile(r'%(\([^)]*\))?[-+ #0]*(\*|\d{4}|\d*\.(\*|\d{4}))')
_VIEWS = KeysView | ValuesView | ItemsView
_BUILT_IN = str, bytes, int, float, list, tuple, set, frozenset, Mapping


class ChatTemplate:
  """A Jinja chat template, rendered as by the library transformers."""

  def __init__(self, source: str, name: str):
    """`name` is the model's name, for messages."""
    self._source, self._name = source, name

  def render(self, user_text: str, special_tokens: Mapping[str, str]) -> str:
    """The prompt of one user turn, up to the start of the answer.

    `special_tokens` are the template's `bos_token` and `eos_token`. Raises
    UserError for a template that fails, or that takes too much time or memory.
    """
    try:
      environment, template = self._compiled
      environment.start(_BUDGET + _BUDGET_OF_CHARACTER * len(user_text))
      return template.render(
        messages=[{'role': 'user', 'content': user_text}],
        tools=None,
        documents=None,
        add_generation_prompt=True,
        **special_tokens,
      )
    except Exception as error:  # a template may raise any error
      kind = '' if isinstance(error, jinja2.TemplateError) else type(error).__name__
      said = ': '.join(filter(None, (kind, in_one_line(error))))
      raise UserError(f'the chat template of {self._name} fails: {said}') from None

  @functools.cached_property
  def _compiled(self) -> tuple[_Environment, jinja2.Template]:
    if len(self._source) > MAX_SOURCE:
      raise jinja2.TemplateError(
        f'it has {len(self._source)} characters; it may have at most {MAX_SOURCE}'
      )
    environment = _Environment()
    tree = _Charging().visit(environment.parse(self._source))
    return environment, environment.from_string(tree)


class _Charging(NodeTransformer):
  """Passes values of expressions, output and iterations through charging filters."""

  def charged(self, node: nodes.Expr) -> nodes.Filter:
    self.generic_visit(node)
    return _filter(node, 'charged')

  visit_Add = visit_Sub = visit_Mul = visit_Div = visit_FloorDiv = charged
  visit_Mod = visit_Pow = visit_Call = visit_Filter = visit_List = visit_Dict = charged

  def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
    return self.charged(node) if node.ctx == 'load' else node

  def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
    if isinstance(node.arg, nodes.Slice):
      return self.charged(node)
    self.generic_visit(node)
    return node

  def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
    self.generic_visit(node)
    return _filter(nodes.List(node.nodes), 'concatenated')

  def visit_Output(self, node: nodes.Output) -> nodes.Output:
    node.nodes = [_filter(self.visit(child), 'charged') for child in node.nodes]
    return node

  def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
    self.generic_visit(node.call)  # it must remain a call
    for field in 'defaults', 'body':
      setattr(node, field, [self.visit(child) for child in getattr(node, field)])
    return node

  def visit_For(self, node: nodes.For) -> nodes.For:
    if node.recursive:
      raise jinja2.TemplateError('recursive loops are not supported')
    self.generic_visit(node)
    node.iter = _filter(node.iter, 'iterated')
    return node


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
  return nodes.Filter(node, name, [], [], None, None)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
  """A sandbox with a budget of characters and objects, and a deadline."""

  intercepted_binops = frozenset({'*', '**', '%'})

  def __init__(self):
    super().__init__(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=['jinja2.ext.loopcontrols'],
      optimized=False,  # otherwise constants would be computed while compiling
    )
    self._budget, self._deadline = 0, 0.0
    self.globals = {
      'raise_exception': _raise,
      'namespace': _Namespace,
      'range': jinja2.sandbox.safe_range,
      'dict': dict,
    }
    self.tests = {name: self._timed(test) for name, test in self.tests.items()}
    self.filters = {
      **{name: self.filters[name] for name in _FILTERS},
      'charged': jinja2.pass_context(lambda _, value: self._charged(value)),
      'concatenated': jinja2.pass_context(lambda _, values: self._concatenated(values)),
      'iterated': jinja2.pass_context(lambda _, value: self._iterated(value)),
      'join': self._join,
      'replace': self._replace,
      'indent': self._indent,
      'tojson': self._to_json,
      'trim': self._trim,
    }

  def start(self, budget: int) -> None:
    """Starts the budget and the deadline of one rendering."""
    self._budget, self._deadline = budget, time.monotonic() + MAX_SECONDS

  def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
    if isinstance(obj, _BUILT_IN) and attr not in _METHODS:
      return False
    return super().is_safe_attribute(obj, attr, value)

  def wrap_str_format(self, value: object) -> None:
    """Leaves `format` to `is_safe_attribute`, which rejects it."""

  def call(
    self, context: Context, function: Callable, /, *args: object, **kwargs: object
  ) -> object:
    self._spend(_STEP)
    text = getattr(function, '__self__', None)
    if isinstance(text, str) and args:
      first, *rest = args
      match function.__name__:
        case 'join' if isinstance(first, Iterable):
          args = (self._joined(text, first),)
        case 'replace' if rest:
          self._charge_replace(text, str(first), str(rest[0]))
        case 'strip' | 'lstrip' | 'rstrip':
          self._spend(len(text) * len(str(first)))
    return super().call(context, function, *args, **kwargs)

  def call_binop(
    self, context: Context, operator: str, left: object, right: object
  ) -> object:
    match operator, left, right:
      case '*', int(), int():
        self._check_bits(left.bit_length() + right.bit_length())
      case '*', int(), _:
        self._spend(self._size(right) * max(left, 0))
      case '*', _, int():
        self._spend(self._size(left) * max(right, 0))
      case '**', int(), int():
        self._check_bits(left.bit_length() * max(right, 0))
      case '%', str(), _:
        if _WIDTH.search(left):
          raise jinja2.TemplateError('a width in a format must be below 1000')
        values = left.count('%')
        self._spend(len(left) + values * (1000 + self._size(right)))
    return super().call_binop(context, operator, left, right)

  def _spend(self, units: int) -> None:
    self._budget -= units
    if self._budget < 0:
      raise jinja2.TemplateError('it makes too many or too large values')
    if time.monotonic() > self._deadline:
      raise jinja2.TemplateError(f'it takes more than {MAX_SECONDS:g} seconds')

  def _check_bits(self, bits: int) -> None:
    if bits > _MAX_BITS:
      raise jinja2.TemplateError(f'an integer has more than {_MAX_BITS} bits')

  def _size(self, value: object) -> int:
    """The size in characters and objects, counting repeated parts each time."""
    total, values = 0, [value]
    while values:
      value = values.pop()
      total += _OBJECT
      if isinstance(value, str | bytes):
        total += len(value)
      elif isinstance(value, int):
        self._check_bits(value.bit_length())
      elif isinstance(value, Mapping):
        values += [*value, *value.values()]
      elif isinstance(value, list | tuple | set | frozenset | _VIEWS):
        values += list(value)
      if total + _OBJECT * len(values) > self._budget:
        self._spend(self._budget + 1)
    return total

  def _charged(self, value: object) -> object:
    if isinstance(value, Iterator):
      return map(self._charged, value)
    self._spend(self._size(value))
    return value

  def _concatenated(self, values: list[object]) -> str:
    self._spend(self._size(values))
    return ''.join(map(str, values))

  def _iterated(self, values: Iterable[object]) -> Iterator[object]:
    for value in values:
      self._spend(_STEP)
      yield value

  def _timed(self, test: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(test)
    def timed(*args: object) -> bool:
      self._spend(_STEP)
      return test(*args)

    return timed

  # Methods and filters whose result may be far larger than their arguments.

  def _joined(self, separator: str, values: Iterable[object]) -> list[object]:
    values = list(values)
    self._spend(self._size(values) + len(separator) * len(values))
    return values

  @jinja2.pass_eval_context
  def _join(
    self,
    eval_ctx: EvalContext,
    values: Iterable[object],
    d: object = '',
    attribute: str | int | None = None,
  ) -> str:
    values = self._joined(str(d), values)
    return jinja2.filters.sync_do_join(eval_ctx, values, str(d), attribute)

  def _charge_replace(self, text: str, old: str, new: str) -> None:
    self._spend(len(text) + text.count(old) * len(new))

  @jinja2.pass_eval_context
  def _replace(
    self, eval_ctx: EvalContext, text: object, old: object, new: object, count: int = -1
  ) -> str:
    self._charge_replace(str(text), str(old), str(new))
    return jinja2.filters.do_replace(eval_ctx, str(text), str(old), str(new), count)

  def _indent(
    self, text: str, width: int | str = 4, first: bool = False, blank: bool = False
  ) -> str:
    one = width if isinstance(width, int) else len(width)
    self._spend(len(text) + (len(text.splitlines()) + 1) * max(one, 0))
    return jinja2.filters.do_indent(text, width, first, blank)

  def _trim(self, text: object, characters: str | None = None) -> str:
    self._spend(len(str(text)) * len(characters or ''))
    return str(text).strip(characters)

  def _to_json(
    self, value: object, ensure_ascii: bool = False, indent: int | None = None
  ) -> str:
    """JSON as in transformers; Jinja's own filter would escape quotes and brackets."""
    if indent is not None and not 0 <= indent <= 16:
      raise jinja2.TemplateError(f'tojson has the indent {indent}; it must be 0 to 16')
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent)
    return ''.join(map(str, map(self._charged, encoder.iterencode(value))))


class _Namespace(Namespace):
  """A namespace printed without its values, which may contain each other."""

  def __repr__(self) -> str:
    return '<Namespace>'


def _raise(message: object) -> None:
  raise jinja2.TemplateError(str(message))
