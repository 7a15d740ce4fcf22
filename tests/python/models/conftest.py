import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded_on_one_thread():
    """The networks are so small that a second thread only waits."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
