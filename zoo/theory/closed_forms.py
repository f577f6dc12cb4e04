"""Risks of estimators that are no learning rules and yet have a closed form."""

from typing import Any


def closed_form(subject: Any, task: Any) -> float | None:
  return None
