"""The report of a probe: what is measured, its sentences, tables and pictures."""
