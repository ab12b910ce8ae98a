"""The right wiring of the pair and the mistakes that engines and configs make, one each."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from tiny_pair.model import Drafter, Target, TargetLayer
from tiny_pair.replay import Wiring

RIGHT = "right"
FOREIGN = "foreign drafter"
WRONG_THETAS = (100.0, 1000.0, 500000.0)


def right_wiring(target: Target, drafter: Drafter) -> Wiring:
    return Wiring(target, drafter, drafter.config.capture)


def with_random(drafter: Drafter, part: str) -> Drafter:
    """A part left as a fresh model initialises it: the loader dropped its tensors."""
    broken = copy.deepcopy(drafter)
    generator = torch.Generator().manual_seed(3)
    for name, weight in broken.named_parameters():
        if name.startswith(part):
            noise = 0.02 * torch.randn(weight.shape, generator=generator)
            weight.copy_(torch.ones_like(weight) if weight.ndim == 1 else noise)
    return broken


def with_flipped_norm(drafter: Drafter) -> Drafter:
    changed = copy.deepcopy(drafter)
    changed.norm_before_residual = not drafter.norm_before_residual
    return changed


def with_theta(drafter: Drafter, theta: float) -> Drafter:
    changed = copy.deepcopy(drafter)
    changed.midlayer.self_attn.theta = theta
    return changed


def capture_mistakes(right: Wiring) -> dict[str, Wiring]:
    """Other streams than the drafter learned from."""
    a, b, c = right.capture

    def capture(*indexes: int) -> Wiring:
        return replace(right, capture=indexes)

    table = {
        "ids +1": capture(a + 1, b + 1, c + 1),
        "ids -1": capture(a - 1, b - 1, c - 1),
        "[embedding, a, b]": capture(0, a, b),
        "slot 0 = embedding": capture(0, b, c),
        "slot 1 = embedding": capture(a, 0, c),
        "slot 2 = embedding": capture(a, b, 0),
    }
    for slot in range(3):
        for shift in (-1, 1):
            indexes = list(right.capture)
            indexes[slot] += shift
            table[f"slot {slot} {shift:+d}"] = capture(*indexes)
    return table | {"slots reversed": capture(c, b, a), "slots rotated": capture(b, c, a)}


def loading_mistakes(right: Wiring) -> dict[str, Wiring]:
    """Tensors that were dropped, skipped or read in another sense."""
    target, drafter = right.target, right.drafter
    last = len(target.model.layers)
    embedding = target.model.embed_tokens.weight
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(3)) * embedding.std()

    def after_final_norm(stream: Tensor, index: int) -> Tensor:
        return target.model.norm(stream)

    return {
        "d2t read as ids": replace(right, draft_to_target=drafter.d2t),
        "d2t ignored": replace(right, draft_to_target=torch.arange(len(drafter.d2t))),
        "fc skipped, last stream": replace(right, fused=False, capture=(last,)),
        "fc skipped, after final norm": replace(right, fused=False, capture=(last,), view=after_final_norm),
        "fc random": replace(right, drafter=with_random(drafter, "fc")),
        "midlayer random": replace(right, drafter=with_random(drafter, "midlayer")),
        "lm_head random": replace(right, drafter=with_random(drafter, "lm_head")),
        "embedding random": replace(right, embedding=noise),
    }


def convention_mistakes(right: Wiring) -> dict[str, Wiring]:
    """Right tensors, computed with in another engine's way."""
    target, drafter = right.target, right.drafter

    def after_input_norm(stream: Tensor, index: int) -> Tensor:
        layer = target.model.layers[index]
        assert isinstance(layer, TargetLayer)  # nn.ModuleList forgets the type
        return layer.input_layernorm(stream)

    def after_final_norm(stream: Tensor, index: int) -> Tensor:
        return target.model.norm(stream)

    table = {
        "norm_before_residual flipped": replace(right, drafter=with_flipped_norm(drafter)),
        "streams after input norm": replace(right, view=after_input_norm),
        "streams after final norm": replace(right, view=after_final_norm),
    }
    return table | {
        f"rope theta {theta:.0f}": replace(right, drafter=with_theta(drafter, theta)) for theta in WRONG_THETAS
    }


def wirings(right: Wiring, foreign: Drafter) -> dict[str, Wiring]:
    """The right one first."""
    mistakes = capture_mistakes(right) | loading_mistakes(right) | convention_mistakes(right)
    return {RIGHT: right} | mistakes | {FOREIGN: replace(right, drafter=foreign)}
