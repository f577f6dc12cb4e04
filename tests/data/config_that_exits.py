"""A config that ends the program."""

import sys

sys.exit(7)
