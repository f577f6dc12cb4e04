"""Tools of maintainers, which are no part of the package; run them from here."""
