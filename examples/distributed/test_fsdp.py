"""Training a GPT on two ranks with FSDP2: each holds half of the weights, gradients and optimizer states."""

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
from torch.distributed.device_mesh import init_device_mesh

fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = pytest.mark.skipif(
    not hasattr(getattr(fsdp, "FSDPModule", None), "set_force_sum_reduction_for_comms"),
    reason="this torch cannot average gradients by a sum, and its gloo has no average",
)


def shard(model, mesh):
    """Shard each block by itself, so that the next one's weights are gathered while this one computes."""
    for module in (*model.blocks, model):
        fsdp.fully_shard(module, mesh=mesh)
        # gloo has no average in many versions of torch: sum, then divide.
        module.set_force_sum_reduction_for_comms(True)


@pytest.mark.perf(ranks=2, backend="gloo")
def test_train_step(perf):
    model, ids = gpt_and_batch()
    expected_loss = next_token_loss(model(ids[:, :-1]), ids)
    expected = gradients_alone(expected_loss, model)
    shard(model, init_device_mesh("cpu", (perf.world_size,)))
    mine = ids.chunk(perf.world_size)[perf.rank]

    loss = perf(train_step, model, still_adamw(model), mine, items=mine.numel())

    dist.all_reduce(loss, group=perf.group)
    assert abs(loss / perf.world_size - expected_loss) < 1e-3
    assert_same_gradients(model, expected)
