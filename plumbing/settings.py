class UserError(Exception):
    """Something the user can mend; the message is one sentence that says what to do. Ends the program with code 2."""
