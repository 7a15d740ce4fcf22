"""Networks whose every parameter matters, for the tests of exports."""

import torch

from ..models.labels import tiny


def trained(label, family="gpt2", dtype=torch.float64, **overrides):
    """A network with no parameter at its start and with running statistics of one batch."""
    torch.manual_seed(0)
    model = tiny(label, family, **overrides).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_matrix = parameter.dim() > 1 and "temperature" not in name
            noise = torch.randn_like(parameter) if is_matrix else torch.rand_like(parameter)
            parameter += 0.2 * noise
        model.train()(torch.randint(256, (4, 32)))
    return model.eval()


def tokens(batch=2, length=19):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (batch, length), generator=generator)
