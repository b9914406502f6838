"""The command line of the report: python -m report out/NAME."""

import sys

import tyro

from report.viewer import write

try:
    path = tyro.cli(write, prog="python -m report")
except (ValueError, OSError) as error:
    sys.exit(f"report: {error}")
print(f"Open {path} in a browser.")
