"""What needs torch, where it is installed: the tests of the package do not install it."""

import importlib

import numpy as np
import pytest

import upwash
from upwash.errors import MissingPackageError

torch = pytest.importorskip("torch")


def test_untested_versions_of_pytorch_are_named(monkeypatch, recwarn):
    import upwash.torch

    importlib.reload(upwash.torch)
    assert not recwarn.list
    monkeypatch.setattr(torch, "__version__", "2.99.1+cu130")
    with pytest.warns(
        UserWarning, match=r"up to 2\.11, and this is 2\.99\.1\+cu130.*pip install 'torch==2\.11"
    ) as caught:
        importlib.reload(upwash.torch)
    assert len(caught) == 1
    monkeypatch.setattr(torch, "__version__", "2.3.1")
    with pytest.raises(MissingPackageError, match=r"2\.4 or newer, and this is 2\.3\.1: pip install"):
        importlib.reload(upwash.torch)


def test_tensor_datasets_are_the_arrays_in_them():
    pixels = np.random.default_rng(0).integers(0, 256, (48, 1, 4, 4)).astype(np.uint8)
    labels = np.arange(48) % 3
    part = torch.utils.data.TensorDataset(torch.tensor(pixels), torch.tensor(labels))
    items = torch.utils.data.Subset(part, range(48))
    config = {"graph.topology": "ring:2", "model": "softmax"}
    expected = upwash.Experiment(config, data=((pixels, labels), (pixels, labels))).batch(1, 0)
    for data in (upwash.Dataset.of(part, part), upwash.Dataset.of(items, items), (part, part)):
        values, found = upwash.Experiment(config, data=data).batch(1, 0)
        np.testing.assert_array_equal(values, expected[0])
        np.testing.assert_array_equal(found, expected[1])


def test_a_model_is_a_state_dict_of_the_same_network():
    run = upwash.train({"graph.topology": "ring:4", "training.epochs": 2}, progress=False)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    network.load_state_dict(run.model("torch"))
    values, labels = upwash.Experiment({"graph.topology": "ring:4"}).batch(0, 0)
    with torch.no_grad():
        predicted = network(torch.tensor(values)).argmax(dim=1).numpy()
    assert (predicted == labels).mean() > 0.5
