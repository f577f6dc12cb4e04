"""The documentation site: how Sphinx builds it. CONTRIBUTING.md has the command."""

import importlib.metadata
import importlib.util
import os
import pathlib
import sys

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
docs = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(docs), str(docs.parent)]  # the package of this checkout

project = 'ICL Zoo'
author = 'the authors of ICL Zoo'
version = release = importlib.metadata.version('icl-zoo')

extensions = [
  'myst_nb',
  'sphinx.ext.autodoc',
  'sphinx.ext.napoleon',
  'sphinx.ext.viewcode',
  'site_pages',
  'site_reference',
  'site_links',
]
exclude_patterns = ['baselines', 'results']
nitpicky = True
# There are no links to other libraries.
nitpick_ignore_regex = [('py:.*', r'(?!zoo\.|studies\.).*')]
smartquotes_action = 'D'  # Dashes become typographic; quotation marks stay.
default_role = 'code'  # Docstrings have code in single backticks.

# The outputs in the notebooks are shown as they are stored: tests run the notebooks.
nb_execution_mode = 'off'
myst_heading_anchors = 4  # links to headings are those of a git forge

# Pages are built without the extra `llm`, too.
autodoc_mock_imports = [
  name
  for name in ('tokenizers', 'torch', 'transformers')
  if importlib.util.find_spec(name) is None
]
autodoc_typehints_format = 'short'
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # Attributes are a list, not entries of the index.
napoleon_attr_annotations = False  # Fields stand with their types below the docstring.
autoclass_content = 'both'  # a class may name its arguments in the constructor
autodoc_member_order = 'bysource'
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = 'furo'
html_title = 'ICL Zoo'
html_static_path = ['static']
html_css_files = ['site.css']
html_js_files = ['site.js']
html_copy_source = False
html_show_sphinx = False
