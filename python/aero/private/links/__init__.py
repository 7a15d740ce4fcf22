"""How two parties reach each other: the one connection between them, and wires to try it on."""
