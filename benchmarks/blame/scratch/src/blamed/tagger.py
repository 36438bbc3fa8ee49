"""A recurrent tagger in inference: two layers of gated cells, one step of time after the other; about 12 ms."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from blamed.plant import planted

BATCH = 16
LENGTH = 80
WORDS = 500
WIDTH = 128
TAGS = 128
PAUSE_SECONDS = 0.0004


class Cell(nn.Module):
    """A gated recurrent unit: what comes in [batch, 3 width] and the state [batch, width] to the next state."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.gates = nn.Linear(WIDTH, 3 * WIDTH)
        self.apart = planted("gates_apart") and number == 1
        self.by_hand = planted("sigmoid_by_hand") and number == 0

    def forward(self, incoming: Tensor, state: Tensor) -> Tensor:
        x_reset, x_update, x_new = incoming.chunk(3, -1)
        if self.apart:
            parts = zip(self.gates.weight.chunk(3), self.gates.bias.chunk(3), strict=True)
            h_reset, h_update, h_new = (nn.functional.linear(state, weight, bias) for weight, bias in parts)
        else:
            h_reset, h_update, h_new = self.gates(state).chunk(3, -1)
        if self.by_hand:
            reset, update = (1 / (1 + torch.exp(-x)) for x in (x_reset + h_reset, x_update + h_update))
        else:
            reset, update = torch.sigmoid(x_reset + h_reset), torch.sigmoid(x_update + h_update)
        return torch.lerp(torch.tanh(x_new + reset * h_new), state, update)


class Layer(nn.Module):
    """The cell along time: [batch, time, width] to the same shape."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH)
        self.cell = Cell(number)
        if planted("state_normalized") and number == 1:
            self.norm = nn.LayerNorm(WIDTH)
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.number == 0, self.number == 1
        one_by_one = planted("inputs_one_by_one") and first
        incoming = x.unbind(1) if one_by_one else self.inputs(x).unbind(1)
        state = x.new_zeros(len(x), WIDTH)
        states = []
        for each in incoming:
            state = self.cell(self.inputs(each) if one_by_one else each, state)
            if planted("state_normalized") and second:
                state = self.norm(state)
            if planted("state_checked") and second and state.abs().max().item() > 1e3:
                raise FloatingPointError("the state explodes")
            states.append(state.clone() if planted("states_copied") and first else state)
        return torch.stack(states, 1)


class Tagger(nn.Module):
    """Ids of words [batch, time] to logits [batch, time, tags]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(Layer(0), Layer(1))
        self.head = nn.Linear(WIDTH, 2 * TAGS if planted("more_tags") else TAGS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.words(ids)))


def joined(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """All tags one after the other."""
    if planted("tags_appended"):
        found: tuple[int, ...] = ()
        for row in rows:
            for tag in row:
                found = (*found, tag)
        return found
    return tuple(tag for row in rows for tag in row)


def words_of(text: str) -> list[str]:
    """The words of a text."""
    if planted("pattern_compiled_again"):
        re.purge()
    return re.findall(r"(?:[A-Z][a-z]+|[a-z]+(?:-[a-z]+)*|\d+(?:\.\d+)?)(?=\s|$)", text)


def breathe() -> None:
    """Leave the machine to others for a moment."""
    if planted("pause_added"):
        time.sleep(PAUSE_SECONDS)


def inference() -> Callable[[], tuple[int, ...]]:
    """One step: words in, tags out."""
    torch.manual_seed(0)
    model = Tagger().eval()
    ids = torch.randint(WORDS, (BATCH, LENGTH))

    def tag() -> tuple[int, ...]:
        words_of("Words of a text that is read before 12 others")
        with torch.inference_mode():
            best = model(ids).argmax(-1)
        breathe()
        return joined(best.tolist())

    return tag
