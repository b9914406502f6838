"""The command line of the report: python -m plumbing.report out/NAME."""

import argparse
import os
import sys

from plumbing.report import MEGABYTES, write
from plumbing.settings import UserError


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m plumbing.report", description="Look inside a run, in a browser."
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run's directory; two are shown side by side"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="where to write it; left out: in the directory of the first run",
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        type=int,
        metavar="N",
        help="whose completions are in it; left out: all",
    )
    size = f"choose steps evenly so that the file is no larger; left out: {MEGABYTES}"
    parser.add_argument("--megabytes", type=float, default=MEGABYTES, metavar="MB", help=size)
    args = parser.parse_args(argv)
    try:
        path = write(args.runs, args.output, args.steps, args.megabytes)
    except UserError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"{path}  {os.path.getsize(path) / 1e6:.1f} MB; open it in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
