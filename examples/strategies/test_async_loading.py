"""Batches made by a worker while the step computes, instead of before it."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset


class Photographs(Dataset):
    """Images that take a while to make."""

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        image = torch.full((3, 96, 96), index / 10_000)
        for _ in range(4):
            image = torch.nn.functional.avg_pool2d(image, 3, 1, 1)
        return image


class Training:
    """Takes one batch a step, and begins anew when the loader ends."""

    def __init__(self, workers):
        torch.manual_seed(0)
        self.loader = DataLoader(Photographs(), batch_size=8, num_workers=workers, persistent_workers=workers > 0)
        self.batches = iter(self.loader)
        self.model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3))

    def step(self):
        images = next(self.batches, None)
        if images is None:
            self.batches = iter(self.loader)
            images = next(self.batches)
        self.model.zero_grad()
        self.model(images).square().mean().backward()


@pytest.mark.perf
def test_a_worker_hides_loading(perf):
    before, after = Training(workers=0), Training(workers=1)

    def in_process():
        before.step()

    def with_worker():
        after.step()

    perf.compare(in_process, with_worker).assert_faster(by="5%")
