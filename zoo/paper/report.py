"""The report: one HTML page that needs nothing else, with figures, claims, settings."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.plots import Plot, draw

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #57606a;
  --line: #d0d7de; --card: #f6f8fa; --link: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117;
  --soft: #9aa4af; --line: #30363d; --card: #161b22; --link: #79c0ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; }
a { color: var(--link); }
p, figcaption { max-width: 46rem; }
.soft, figcaption { color: var(--soft); }
figure { margin: 1.5rem 0 2.5rem; }
.panels { display: grid; gap: .75rem; margin: .5rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
/* The figures are drawn on white, and stay on white in the dark. */
.panels > div { background: #fff; border: 1px solid var(--line); border-radius: .5rem;
  padding: .25rem; max-width: 34rem; }
svg { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .5rem .75rem .5rem 0;
  border-top: 1px solid var(--line); overflow-wrap: anywhere; }
thead th { border-top: 0; color: var(--soft); font-weight: 600; }
td > :first-child { margin-top: 0; }
code { font: .85em/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
.number { font-variant-numeric: tabular-nums; }
ul { list-style: none; margin: 0; padding: 0; }
.verdict { white-space: nowrap; font-weight: 600; }
.verdict::before { display: inline-block; width: 1.3em; }
.holds::before { content: '✓'; } .weak::before { content: '≈'; }
.fails::before { content: '✗'; } .open::before { content: '–'; }
details { margin-top: .25rem; } summary { cursor: pointer; color: var(--link); }
details li { padding: .15rem 0; }
.claims th:nth-child(1) { width: 14%; } .claims th:nth-child(2) { width: 36%; }
.claims th:nth-child(3) { width: 14%; }
@media (max-width: 45rem) {
  thead { display: none; } tr, td { display: block; } tr { padding: .5rem 0;
    border-top: 1px solid var(--line); } td { border: 0; padding: .2rem 0; }
  td[data-label]::before { content: attr(data-label) ': '; color: var(--soft); }
}
"""

_MARKS = {
  'holds': 'holds',
  'holds, not sharp': 'weak',
  'fails': 'fails',
  None: 'open',
}


def page(
  plots: Sequence[tuple[str, str, Plot]],
  claims: Sequence[Mapping[str, Any]],
  facts: Mapping[str, Mapping[str, Any]],
) -> str:
  """The page: `plots` with title and caption each, and tables of facts by heading."""
  verdicts = [claim['verdict'] for claim in claims]
  counts = [
    f'{verdict or "not measured in this run"}: {verdicts.count(verdict)}'
    for verdict in _MARKS
    if verdict in verdicts
  ]
  return '\n'.join(
    [
      '<!doctype html>',
      '<html lang="en"><head><meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width, initial-scale=1">',
      '<link rel="icon" href="data:,">',
      '<title>The paper, reproduced</title>',
      f'<style>{_STYLE}</style></head><body>',
      '<h1>The Initialization Determines Whether In-Context Learning Is Gradient '
      'Descent</h1>',
      '<p>The synthetic figures and the claims of arXiv 2512.04268, reproduced by ICL '
      'Zoo, with exact answers beside what was trained. Verdicts: '
      f'{"; ".join(counts)}.</p>',
      '<h2 id="claims">Claims</h2>',
      '<p class="soft">A verdict follows from the numbers by the rule under it; each '
      'number has the expression that computes it again '
      '(<a href="claims.json">claims.json</a>).</p>',
      _claims(claims),
      '<h2 id="figures">Figures</h2>',
      *(_figure(*entry) for entry in plots),
      *(_facts(heading, table) for heading, table in facts.items()),
      '</body></html>\n',
    ]
  )


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
  head = 'Where', 'Claim', 'Verdict', 'Numbers'
  rows = [
    f'<tr id="{claim["key"]}">'
    f'<td>{_escape(claim["source"])}</td>'
    f'<td><p>{_escape(claim["statement"])}</p>'
    f'<p class="soft">{_escape(claim["note"])}</p></td>'
    f'<td>{_verdict(claim)}</td>'
    f'<td>{_numbers(claim)}</td></tr>'
    for claim in claims
  ]
  cells = ''.join(f'<th>{name}</th>' for name in head)
  return (
    f'<table class="claims"><thead><tr>{cells}</tr></thead>'
    f'<tbody>{"".join(rows)}</tbody></table>'
  )


def _verdict(claim: Mapping[str, Any]) -> str:
  verdict = claim['verdict']
  text = verdict or 'not measured'
  rules = [f'holds if <code>{_escape(claim["holds_if"])}</code>']
  if claim['sharp_if'] != 'True':
    rules.append(f'sharp if <code>{_escape(claim["sharp_if"])}</code>')
  return (
    f'<span class="verdict {_MARKS[verdict]}">{text}</span><details><summary>rule'
    f'</summary><ul>{"".join(f"<li>{rule}</li>" for rule in rules)}</ul></details>'
  )


def _numbers(claim: Mapping[str, Any]) -> str:
  lines, calls = [], []
  for kind in 'exact', 'measured':
    for name, value in claim[kind].items():
      # What rounding leaves of a 0 is no news.
      shown = f'{0 if abs(value or 0) < 1e-12 else value:.6g}'
      shown = 'not in this run' if value is None else shown
      lines.append(
        f'<li><code>{name}</code> = <span class="number">{shown}</span> '
        f'<span class="soft">{kind}</span></li>'
      )
      calls.append(f'<li><code>{name} = {_escape(claim["calls"][name])}</code></li>')
  return (
    f'<ul>{"".join(lines)}</ul><details><summary>calls</summary>'
    f'<ul>{"".join(calls)}</ul></details>'
  )


def _figure(title: str, caption: str, plot: Plot) -> str:
  name = f'figure_{plot.name}'
  panels = ''.join(f'<div>{_svg(plot, panel.key)}</div>' for panel in plot.panels)
  heading = f'Figure {plot.name}' if plot.name.isdecimal() else 'Beyond the paper'
  return (
    f'<figure id="{name}"><h3>{heading}. {_escape(title)}</h3>'
    f'<div class="panels">{panels}</div><figcaption>{_escape(caption)} '
    f'Numbers: <a href="{name}.csv">{name}.csv</a>; '
    f'<a href="{name}.svg">SVG</a>, <a href="{name}.png">PNG</a>.</figcaption></figure>'
  )


def _svg(plot: Plot, key: str) -> str:
  """One panel as an SVG element whose names are its own on the page."""
  (panel,) = (panel for panel in plot.panels if panel.key == key)
  text = io.StringIO()
  draw([panel]).savefig(text, format='svg', metadata={'Date': None, 'Creator': None})
  svg = text.getvalue()
  svg = svg[svg.index('<svg') :]
  svg = re.sub(r'<metadata>.*?</metadata>', '', svg, flags=re.DOTALL)
  prefix = f'f{plot.name}{key}-'
  svg = re.sub(r'\bid="', f'id="{prefix}', svg)
  svg = re.sub(r'href="#', f'href="#{prefix}', svg)
  svg = re.sub(r'url\(#', f'url(#{prefix}', svg)
  names = ', '.join(one.name for one in panel.series)
  label = f'Panel {key}: {panel.y_axis} against {panel.x_axis}. Shown: {names}.'
  return svg.replace('<svg', f'<svg role="img" aria-label="{_escape(label)}"', 1)


def _facts(heading: str, table: Mapping[str, Any]) -> str:
  rows = ''.join(
    f'<tr><td>{_escape(name)}</td><td><code>{_escape(str(value))}</code></td></tr>'
    for name, value in table.items()
  )
  return f'<h2>{_escape(heading)}</h2><table><tbody>{rows}</tbody></table>'


def _escape(text: str) -> str:
  return html.escape(text)
