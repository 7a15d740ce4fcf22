"""How parties reach each other: the one connection between two, and wires to try it on."""
