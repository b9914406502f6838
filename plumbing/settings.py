"""What every file of this project needs first: the error that a user can mend.

It imports nothing heavy, so that --help and wrong flags answer at once.
"""


class UserError(Exception):
    """Something the user can mend; the message is one sentence that says what to do. Ends the program with code 2."""
