"""Mixtures of experts: all of them, or those that a token's revealed choice leaves."""

from __future__ import annotations

from typing import Any

from aero.families.values import REVEALED, Values


def routing(
    values: Values, experts: int, chosen: int, *, scoring: str = "softmax",
    normalized: bool = False, groups: int = 1, chosen_groups: int = 1, group_best: int = 1,
) -> tuple[dict[str, Any], tuple[str, ...]]:  # fmt: skip
    """Parts of a decoder, and what their price takes for granted.

    Args:
        values: of the configuration.
        experts: side by side.
        chosen: of them, for a token.
        scoring: how logits become weights, as the operation `route` names it.
        normalized: the weights of the chosen ones add up to 1.
        groups: of experts, side by side.
        chosen_groups: of them, for a token; the others' experts are not chosen.
        group_best: how many of a group's largest weights are added up to choose it.
    """
    if experts == 1:
        return {}, ()
    if groups > experts or experts % groups:
        raise values.wrong("n_group", f"a divisor of the {experts} experts", groups)
    if chosen_groups > groups:
        raise values.wrong("topk_group", f"an integer from 1 to {groups}", chosen_groups)
    most = experts // groups * chosen_groups
    if not 1 <= chosen <= most:
        raise values.wrong("num_experts_per_tok", f"an integer from 1 to {most}", chosen)
    revealed = values.flag(REVEALED, default=False)
    route = {
        "experts": experts, "chosen": chosen, "scoring": scoring, "normalized": normalized,
        "revealed": revealed, "groups": groups, "chosen_groups": chosen_groups,
        "group_best": min(group_best, experts // groups),
    }  # fmt: skip
    if not revealed:
        told = (
            f"ffn: all {experts} experts compute every token, so that routing stays secret; "
            f"{REVEALED}=true prices the {chosen} that a revealed choice leaves for a token"
        )
        return {"route": route}, (told,)
    told = (
        f"ffn: both parties see which {chosen} of {experts} experts each token takes; their rows "
        "are priced as whole products, which experts with few tokens exceed"
    )
    return {"route": route}, (told,)
