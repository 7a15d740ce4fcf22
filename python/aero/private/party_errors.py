"""What ends a private run that the user can mend."""


class PartyError(Exception):
    """A party cannot go on: another configuration, a peer that died, a limit of time.

    The text never holds a weight, a token, a share or a part of the prompt.

    Example:
        >>> str(PartyError("private: the server closed the connection"))
        'private: the server closed the connection'
    """
