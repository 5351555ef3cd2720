"""A checkpoint is complete, byte for byte, or it is not used."""

import os

import pytest
import torch
from torch import nn

from bertrelay.errors import WorkError
from bertrelay.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, unique_tensors

FILES = ["model.safetensors", "optimizer.safetensors", "best.safetensors", "checkpoint.json"]


def checkpoint(step):
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model": {"weight": torch.randn(3, 2, generator=generator), "ids": torch.arange(4)},
        "optimizer": {"step weight": torch.tensor(float(step)), "exp_avg weight": torch.full((3, 2), 1e-40)},
        "best": {"weight": torch.randn(3, 2, generator=generator).bfloat16()},
    }
    return Checkpoint(step, {"best_metrics": {"score": 0.1 + 0.2, "none": None}, "seconds": 1e-9}, tensors)


def assert_equal(loaded, expected):
    assert (loaded.step, loaded.state) == (expected.step, expected.state)
    assert loaded.tensors.keys() == expected.tensors.keys()
    for file, tensors in expected.tensors.items():
        assert loaded.tensors[file].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded.tensors[file][name].dtype == tensor.dtype
            assert torch.equal(loaded.tensors[file][name], tensor)


@pytest.fixture
def folder(tmp_path):
    """A folder with the checkpoints of steps 10 and 20."""
    for step in (10, 20):
        save_checkpoint(tmp_path, checkpoint(step))
    return tmp_path


def test_all_but_the_newest_two_are_removed(folder):
    save_checkpoint(folder, checkpoint(100))
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-00000020", "checkpoint-00000100"]


def test_an_intact_one_of_the_same_step_stays_and_a_damaged_one_is_replaced(folder):
    """So there is no moment without an intact one."""
    other = Checkpoint(20, {"other": 1}, checkpoint(20).tensors)
    save_checkpoint(folder, other)
    assert_equal(load_checkpoint(folder), checkpoint(20))
    flip(folder / "checkpoint-00000020" / "model.safetensors")
    save_checkpoint(folder, other)
    assert_equal(load_checkpoint(folder), other)


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "flipped": flip,
    "cut off": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_one_is_reported_and_the_one_before_it_used(folder, capsys, file, damage):
    DAMAGES[damage](folder / "checkpoint-00000020" / file)
    assert_equal(load_checkpoint(folder), checkpoint(10))
    assert f"{folder}/checkpoint-00000020: this checkpoint is damaged ({file} " in capsys.readouterr().err
    assert not (folder / "checkpoint-00000020").exists()


def test_a_folder_without_an_intact_one_is_reported_unless_it_is_empty(folder, tmp_path_factory, capsys):
    for path in folder.iterdir():
        flip(path / "model.safetensors")
    assert load_checkpoint(folder) is None
    assert "no intact checkpoint is left; starting from step 0" in capsys.readouterr().err
    assert load_checkpoint(tmp_path_factory.mktemp("empty")) is None
    assert capsys.readouterr().err == ""


@pytest.mark.promise("Half-written checkpoints are removed", about="complete")
def test_a_half_written_one_is_removed(folder):
    (folder / "checkpoint-00000020").rename(folder / "checkpoint-00000030.partial")
    assert_equal(load_checkpoint(folder), checkpoint(10))
    assert [path.name for path in folder.iterdir()] == ["checkpoint-00000010"]


def test_a_full_disk_is_reported_and_its_space_freed(folder, monkeypatch):
    """/dev/full is the kernel's own full disk."""
    monkeypatch.setattr("bertrelay.training.checkpoint.MANIFEST", "/dev/full")
    with pytest.raises(WorkError, match=r"checkpoint-00000030: No space left on device; free space"):
        save_checkpoint(folder, checkpoint(30))
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-00000010", "checkpoint-00000020"]


class Tied(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(5, 3)
        self.output = nn.Linear(3, 5)
        self.output.weight = self.embedding.weight
        self.zeros, self.others = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(5))
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("nothing_else", torch.empty(0))


def test_tied_tensors_are_written_once_and_tied_when_read(tmp_path):
    written, read = Tied(1), Tied(2)
    tensors = unique_tensors(written)
    assert set(tensors) == {"embedding.weight", "output.bias", "zeros", "others", "nothing", "nothing_else"}
    save_checkpoint(tmp_path, Checkpoint(1, {}, {"model": tensors}))
    read.load_state_dict(load_checkpoint(tmp_path).tensors["model"], strict=False)
    for name, tensor in written.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor)
    assert read.output.weight is read.embedding.weight
