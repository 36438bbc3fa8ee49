"""Training a GPT on two ranks with DistributedDataParallel: each has half of the batch, and gradients are averaged."""

import pytest
import torch.distributed as dist
from models.parallel import (
    assert_same_gradients,
    gpt_and_batch,
    gradients_alone,
    next_token_loss,
    still_adamw,
    train_step,
)
from torch.nn.parallel import DistributedDataParallel


@pytest.mark.perf(ranks=2, backend="gloo")
def test_train_step(perf):
    model, ids = gpt_and_batch()
    expected_loss = next_token_loss(model(ids[:, :-1]), ids)
    expected = gradients_alone(expected_loss, model)
    # Buckets of 512 KiB: the first are reduced while the backward pass computes the last.
    replica = DistributedDataParallel(model, bucket_cap_mb=0.5)
    mine = ids.chunk(perf.world_size)[perf.rank]

    loss = perf(train_step, replica, still_adamw(model), mine, items=mine.numel())

    dist.all_reduce(loss, group=perf.group)
    assert abs(loss / perf.world_size - expected_loss) < 1e-3
    assert_same_gradients(model, expected)
