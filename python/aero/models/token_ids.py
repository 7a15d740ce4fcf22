"""Token ids that the vocabulary does not have, in words."""

from __future__ import annotations

from torch import Tensor


def check_token_ids(model: str, token_ids: Tensor, vocabulary: int) -> None:
    """Names ids that have no embedding; torch's own IndexError names neither them nor the limit.

    That reads all ids, so networks ask only once torch has refused them.

    Args:
        model: whose input they are, for the message.
        token_ids: integers of any shape.
        vocabulary: how many ids there are.

    Raises:
        ValueError: an id below 0 or not below `vocabulary`.

    Example:
        >>> from aero.models.token_ids import check_token_ids
        >>> import torch
        >>> check_token_ids("AeroModel", torch.tensor([[7, 300]]), 256)
        Traceback (most recent call last):
            ...
        ValueError: AeroModel: input_ids must be from 0 to 255, the vocabulary, got 300
    """
    if token_ids.numel() == 0:
        return
    lowest, highest = (int(id_) for id_ in token_ids.aminmax())
    if lowest < 0 or highest >= vocabulary:
        raise ValueError(
            f"{model}: input_ids must be from 0 to {vocabulary - 1}, the vocabulary, "
            f"got {lowest if lowest < 0 else highest}"
        ) from None
