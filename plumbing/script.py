"""What surrounds the `main` of a lesson that is run as a script: --plan, the sentence for a mistake, exit codes."""

import functools
import os
import sys

from plumbing import processes
from plumbing.memory import plan_for_card
from plumbing.oom import advice, out_of_memory
from plumbing.settings import UserError


def run_safely(main):
    """Decorates a `main`: at its end signals and vLLM are as before; out of memory is a sentence."""

    @functools.wraps(main)
    def safe_main(config, *args, **kwargs):
        with processes.cleaned_up():
            try:
                return main(config, *args, **kwargs)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                part = getattr(error, "part", "start")
                advised = advice(part, config)
            raise UserError(f"Out of memory in the {part}: {advised}.")

    return safe_main


def run_script(
    main, config, after_interrupt="--resume RUN_DIRECTORY continues from the last checkpoint."
):
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
