"""Training a GPT whose MLPs are split over two ranks: the first layer by its outputs, the second by its inputs."""

import pytest
import torch
from models.parallel import (
    assert_same_gradients,
    gpt_and_batch,
    gradients_alone,
    next_token_loss,
    train_step,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def split_mlps(model, mesh):
    """Each rank computes half of each MLP's hidden channels, and the halves are added in one all-reduce."""
    for block in model.blocks:
        parallelize_module(block.mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


@pytest.mark.perf(ranks=2, backend="gloo")
def test_train_step(perf):
    model, ids = gpt_and_batch(batch=2)
    expected_loss = next_token_loss(model(ids[:, :-1]), ids)
    expected = gradients_alone(expected_loss, model)
    split_mlps(model, init_device_mesh("cpu", (perf.world_size,)))

    # The fused AdamW of the other examples takes no mix of split and whole weights.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    # Both ranks compute on the whole batch; their items add up.
    loss = perf(train_step, model, optimizer, ids, items=ids.numel() / perf.world_size)

    assert abs(loss - expected_loss) < 1e-3
    assert_same_gradients(model, expected)
