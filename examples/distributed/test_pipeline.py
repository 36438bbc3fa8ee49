"""Training an MLP-Mixer on two ranks as a pipeline: each has half of the layers, and micro-batches pass both."""

import pytest
import torch
from models.mixer import Mixer
from models.parallel import assert_same_gradients, gradients_alone
from torch import nn
from torch.nn.functional import cross_entropy

pipelining = pytest.importorskip("torch.distributed.pipelining")


class Stage(nn.Module):
    """Blocks of a mixer; the first stage makes patches of images, the last one logits of patches."""

    def __init__(self, mixer, rank, ranks):
        super().__init__()
        share = len(mixer.blocks) // ranks
        self.embed = mixer.embed if rank == 0 else None
        self.blocks = mixer.blocks[rank * share : (rank + 1) * share]
        self.norm, self.head = (mixer.norm, mixer.head) if rank == ranks - 1 else (None, None)

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x).flatten(2).transpose(1, 2)
        x = self.blocks(x).contiguous()  # as gloo sends it
        return x if self.head is None else self.head(self.norm(x).mean(1))


@pytest.mark.perf(ranks=2, backend="gloo")
def test_train_step(perf):
    torch.manual_seed(0)
    mixer = Mixer()
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    expected_loss = cross_entropy(mixer(images), labels)
    expected = gradients_alone(expected_loss, mixer)
    first, last = perf.rank == 0, perf.rank == perf.world_size - 1
    part = Stage(mixer, perf.rank, perf.world_size)
    stage = pipelining.PipelineStage(part, perf.rank, perf.world_size, torch.device("cpu"), group=perf.group)
    schedule = pipelining.Schedule1F1B(stage, n_microbatches=4, loss_fn=cross_entropy)
    optimizer = torch.optim.SGD(mixer.parameters(), lr=1e-12)

    def train_step():
        losses = []
        optimizer.zero_grad()
        schedule.step(*([images] if first else []), target=labels if last else None, losses=losses)
        optimizer.step()
        return torch.stack(losses).mean().detach() if last else None

    loss = perf(train_step, items=len(images) / perf.world_size)

    assert not last or abs(loss - expected_loss) < 1e-3
    assert_same_gradients(part, expected)
