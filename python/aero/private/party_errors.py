"""Errors that end a private run and that the user can mend."""


class PartyError(Exception):
    """A party cannot go on: another configuration, a peer that died, a limit of time.

    The text never holds a weight, a token, a share or a part of the prompt.
    """


class PeerFailedError(PartyError):
    """The other party gave up and said why.

    Args:
        peer: "client", "server" or "helper".
        reason: in its words, as one printable line.
        where: it stood.
    """

    def __init__(self, peer: str, reason: str, where: str) -> None:
        self.peer, self.where = peer, where[:100]
        super().__init__(f"the {peer} gave up {self.where}: {reason}"[:400])
