"""The command line of the report: python -m nano_report out/NAME."""

import sys

import tyro

from nano_report.viewer import write

try:
    path = tyro.cli(write, prog="python -m nano_report")
except (ValueError, OSError) as error:
    sys.exit(f"nano_report: {error}")
print(f"Open {path} in a browser.")
