"""Reports as single self-contained HTML pages."""

from zoo.core.tables import Table as Table
from zoo.reports.page import CaptionedFigure as CaptionedFigure
from zoo.reports.page import JudgedClaim as JudgedClaim
from zoo.reports.page import Picture as Picture
from zoo.reports.page import Section as Section
from zoo.reports.page import figure_of as figure_of
from zoo.reports.page import render as render
