"""Networks whose every parameter matters, for the tests of exports."""

import torch

from ..models.labels import tiny


def trained(label, family="gpt2", dtype=torch.float64, **overrides):
    """A network with no parameter at its start and with running statistics of one batch."""
    torch.manual_seed(0)
    model = tiny(label, family, **overrides).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.rand_like(parameter)
        model.train()(torch.randint(256, (4, 32)))
    return model.eval()


def tokens(batch=2, length=19):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (batch, length), generator=generator)
