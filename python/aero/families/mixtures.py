"""Mixtures of experts: all of them, or those that a token's revealed choice leaves."""

from __future__ import annotations

from typing import Any

from aero.families.values import Values

# An entry that no model has: the user's word that the choice of experts may be seen.
REVEALED = "revealed_routing"


def routing(values: Values, experts: int, chosen: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Parts of a decoder, and what their price leaves out.

    Args:
        values: of the configuration.
        experts: side by side.
        chosen: of them, for a token.
    """
    if experts == 1:
        return {}, ()
    if not 1 <= chosen <= experts:
        raise values.wrong("num_experts_per_tok", f"an integer from 1 to {experts}", chosen)
    unpriced = (
        f"ffn: the router's softmax and its choice of {chosen} of {experts} experts have no price"
    )
    if not values.flag(REVEALED, default=False):
        told = (
            f"ffn: all {experts} experts compute every token, so that routing stays secret; "
            f"{REVEALED}=true prices the {chosen} that a revealed choice leaves for a token"
        )
        return {"experts": experts}, (told, unpriced)
    told = (
        f"ffn: both parties see which {chosen} of {experts} experts each token takes; their rows "
        "are priced as whole products, which experts with few tokens exceed"
    )
    return {"experts": experts, "revealed": chosen}, (told, unpriced)
