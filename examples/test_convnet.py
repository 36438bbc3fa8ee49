"""Classifying a batch of images with a small residual network."""

import pytest
import torch
from models.convnet import ConvNet, classify, for_inference


@pytest.fixture
def model():
    torch.manual_seed(0)
    return for_inference(ConvNet())


@pytest.fixture
def images():
    return torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.perf
def test_classify(perf, model, images):
    classes = perf(classify, model, images, items=len(images))
    assert classes.shape == (len(images),)
