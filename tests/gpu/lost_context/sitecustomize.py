"""On the PYTHONPATH of a worker: SIGUSR1 makes a kernel of its fail, and with it everything that comes after."""

import signal


def lose_context(*_: object) -> None:
    import torch

    torch.zeros(1, device="cuda")[torch.tensor([7], device="cuda")]  # an assertion on the device: out of bounds


signal.signal(signal.SIGUSR1, lose_context)
