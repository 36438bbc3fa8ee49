"""Gradients of two processes reduced in buckets, as DistributedDataParallel does, instead of one by one."""

import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def other_rank(file, stop):
    """The second process: answers every all-reduce of the first, until the stop signal."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=1, world_size=2)
    while True:
        size = torch.zeros(1, dtype=torch.long)
        dist.broadcast(size, 0)
        if size.item() == stop:
            break
        dist.all_reduce(torch.zeros(size.item()))
    dist.destroy_process_group()


def reduce(tensor):
    """Send the other rank the size, then reduce."""
    dist.broadcast(torch.tensor([tensor.numel()]), 0)
    dist.all_reduce(tensor)


@pytest.fixture
def ranks():
    """This process as rank 0 of 2."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rendezvous"
        other = mp.get_context("spawn").Process(target=other_rank, args=(file, -1), daemon=True)
        other.start()
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=2)
        yield
        dist.broadcast(torch.tensor([-1]), 0)
        dist.destroy_process_group()
        other.join(30)


@pytest.mark.perf
@pytest.mark.usefixtures("ranks")
def test_buckets_are_faster_than_single_gradients(perf):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(16)))
    batch = torch.randn(32, 64)

    def gradients():
        model.zero_grad()
        model(batch).square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    def one_by_one():
        for gradient in gradients():
            reduce(gradient)

    def in_one_bucket():
        found = gradients()
        bucket = torch.cat([gradient.flatten() for gradient in found])
        reduce(bucket)
        for gradient, reduced in zip(found, bucket.split([each.numel() for each in found]), strict=True):
            gradient.copy_(reduced.view_as(gradient))

    perf.compare(one_by_one, in_one_bucket).assert_faster(by="10%")
