"""Links that leave docs/, which must also work on a git forge.

A link to README.md of the study NAME leads to the page NAME of the site, which includes
it. Each other file of the repository that a page links to gets a page with its text,
and each folder a page with its files.
"""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge
from sphinx.transforms import SphinxTransform

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
RESULTS = DOCS / 'results'  # whose files are no pages


class FileLinks(SphinxTransform):
  """Points links at the pages of files and folders."""

  default_priority = 10  # before downloads are collected and missing pages reported

  def apply(self, **kwargs: Any) -> None:
    here = pathlib.Path(self.env.doc2path(self.env.docname)).parent
    links = self.document.findall(
      lambda node: isinstance(
        node, (addnodes.download_reference, addnodes.pending_xref)
      )
    )
    for node in list(links):
      if node.get('refdomain') == 'py':
        continue
      target = (here / node['reftarget']).resolve()
      is_page = DOCS in target.parents and RESULTS not in target.parents
      if not is_page and target.with_suffix('.md').is_file():
        target = target.with_suffix('.md')  # Sphinx takes it for one of its pages
      if target.name == 'README.md' and target.parent.parent == ROOT / 'studies':
        node['reftarget'] = target.parent.name
        continue
      is_download = DOCS in target.parents and target.suffix != '.md'
      if not target.is_dir() and (is_download or not target.exists()):
        continue
      page = f'files/{target.relative_to(ROOT).as_posix()}'
      self.env.metadata[self.env.docname].setdefault('files', '')
      self.env.metadata[self.env.docname]['files'] += f'{page}\n'
      start = os.path.dirname(self.env.docname)
      uri = f'{os.path.relpath(page, start or ".")}.html'
      link = nodes.reference('', '', *node.children, refuri=uri, internal=True)
      node.replace_self(link)


def file_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
  """The pages of the files and folders that other pages link to."""
  listed = (data.get('files', '') for data in app.env.metadata.values())
  for page in sorted({page for text in listed for page in text.split()}):
    path = ROOT / page.removeprefix('files/')
    name = path.relative_to(ROOT).as_posix()
    body = _folder(path) if path.is_dir() else _text(path)
    yield page, {'title': name, 'body': f'<h1>{name}</h1>\n{body}'}, 'page.html'


def _text(path: pathlib.Path) -> str:
  language = {'.py': 'python', '.md': 'markdown', '.sh': 'bash'}.get(
    path.suffix, 'text'
  )
  bridge = PygmentsBridge('html', 'default')
  return bridge.highlight_block(path.read_text(), language)


def _folder(path: pathlib.Path) -> str:
  names = [file.name for file in sorted(path.iterdir()) if file.is_file()]
  items = ''.join(f'<li><code>{name}</code></li>' for name in names)
  return f'<ul>{items}</ul>'


def setup(app: Sphinx) -> dict[str, Any]:
  app.connect('html-collect-pages', file_pages)
  app.add_transform(FileLinks)
  return {'parallel_read_safe': True, 'parallel_write_safe': True}
