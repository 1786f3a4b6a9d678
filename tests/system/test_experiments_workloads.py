"""What is trained: the same on every rank, each with a shard of its own, and it learns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiments import dataset, digits, workloads
from experiments.device_clock import DeviceClock
from experiments.emulated_layers import EmulatedLayer
from experiments.train import digest
from p3.profile import LayerProfile

pytestmark = pytest.mark.native_threads


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    dataset.save(path)
    return path


def numel(name: str, data: Path) -> int:
    model = workloads.make(name, 0, 1, data).model
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "millions"), [("digits-small", 0.4), ("digits-medium", 1.4), ("digits-large", 4.5)]
)
def test_sizes_of_the_real_models(name: str, millions: float, data: Path) -> None:
    assert numel(name, data) / 1e6 == pytest.approx(millions, abs=0.05)


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of digits-small"):
        workloads.make("digits-huge", 0, 1)


def test_the_saved_data_set_is_the_real_one(data: Path) -> None:
    saved, real = digits.load(data), digits.load()
    assert torch.equal(saved.train_images, real.train_images)
    assert torch.equal(saved.test_labels, real.test_labels)
    assert len(real.train_labels) + len(real.test_labels) == 1797
    assert real.train_images.shape[1:] == (1, digits.SIDE, digits.SIDE)


@pytest.mark.parametrize("name", ["digits-small", "resnet50"])
def test_all_ranks_begin_alike(name: str, data: Path) -> None:
    models = [workloads.make(name, rank, 4, data).model for rank in range(2)]
    assert digest(models[0]) == digest(models[1])


def test_an_epoch_shows_every_image_of_a_shard_at_most_once(data: Path) -> None:
    loaded = digits.load(data)
    seen: list[bytes] = []
    for rank in range(4):
        for iteration in range(len(loaded.train_labels) // 4 // digits.BATCH):
            images, labels = loaded.batch(rank, 4, iteration)
            assert len(images) == len(labels) == digits.BATCH
            seen += [image.numpy().tobytes() for image in images]
    assert len(set(seen)) == len(seen)


def test_the_classifier_learns(data: Path) -> None:
    workload = workloads.make("digits-small", 0, 1, data)
    assert workload.accuracy is not None
    optimizer = workload.optimizer()
    for iteration in range(60):
        inputs, wanted = workload.batch(iteration)
        optimizer.zero_grad()
        torch.autograd.backward(workload.loss(workload.model(inputs), wanted))
        optimizer.step()
    assert workload.accuracy(workload.model) > 0.8


def test_an_emulated_layers_gradient_is_its_rank_s_share_of_its_value() -> None:
    layer = EmulatedLayer(LayerProfile("", (3, 2), 0.0, 0.0), DeviceClock(), gradient_scale=0.5)
    output = layer(torch.zeros(()))
    first = torch.stack([parameter[0] for parameter in layer.parameters()])
    assert torch.equal(output, first.sum())
    torch.autograd.backward(output)
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, parameter.detach() * 0.5)


def test_gradients_differ_from_rank_to_rank() -> None:
    gradients = []
    for rank in range(2):
        workload = workloads.make("resnet50", rank, 2)
        inputs, wanted = workload.batch(0)
        torch.autograd.backward(workload.loss(workload.model(inputs), wanted))
        gradients.append([parameter.grad for parameter in workload.model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert not torch.equal(one, other)


def test_layers_take_their_time_and_what_one_overran_is_taken_off_the_next() -> None:
    clock = DeviceClock()
    began = time.perf_counter()
    clock.begin_forward(0.02)
    time.sleep(0.03)  # the host's own work, longer than the layer
    clock.end_forward()
    clock.begin_forward(0.04)
    clock.end_forward()
    assert clock.free_at >= began + 0.06  # no layer is shortened by more than it overran
    assert time.perf_counter() >= clock.free_at


def test_in_backward_the_device_goes_on_while_the_host_runs_hooks() -> None:
    clock = DeviceClock()
    clock.begin_forward(0.0)
    clock.end_forward()
    first = clock.free_at
    clock.begin_backward(0.01)
    clock.end_backward()
    time.sleep(0.02)  # a hook
    clock.begin_backward(0.05)
    assert clock.free_at == pytest.approx(first + 0.06)
    clock.end_backward()
    assert time.perf_counter() >= clock.free_at
    time.sleep(0.02)
    now = time.perf_counter()
    clock.begin_forward(0.01)
    assert clock.free_at >= now + 0.01  # the next iteration begins when the host comes
