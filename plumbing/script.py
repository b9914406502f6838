"""What surrounds the `main` of a lesson that is run as a script: --plan, the sentence for a mistake, exit codes."""

import os
import sys

from plumbing import processes
from plumbing.memory import plan_for_card
from plumbing.settings import UserError


def run_script(main, config, after_interrupt="--resume RUN_DIRECTORY continues from the last checkpoint."):
    """Run a script's main, and end the program: 0, 2 for an error of the user's, 128 + signal when asked to stop."""
    prog = os.path.basename(sys.argv[0])
    try:
        if config.plan:
            text, fits = plan_for_card(config)
            print(text)
            sys.exit(0 if fits else 1)
        main(config)
        processes.shutdown()
        sys.exit(processes.exit_code())
    except UserError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"\nInterrupted. {after_interrupt}", file=sys.stderr)
        sys.exit(130)
