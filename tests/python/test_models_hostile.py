"""Checkpoints that are broken or wrong on purpose: typed errors, and no memory taken for what a file only claims."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import checkpoints
from mimo_cache import FileError, MimoCacheError
from mimo_cache.models import CheckpointError, load, loader
from mimo_cache.models.checkpoint import Checkpoint
from mimo_cache.models.header import MAX_HEADER, read_header
from test_models_load import walk

Header = dict[str, Any]
TINY: dict[str, Any] = {
    "hidden_size": 8,
    "vocab_size": 8,
    "head_dim": 24,
    "swa_head_dim": 24,
    "v_head_dim": 4,
    "swa_v_head_dim": 4,
    "intermediate_size": 4,
    "moe_intermediate_size": 2,
    "num_nextn_predict_layers": 1,
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny fp8 checkpoint in one file, which loads."""
    path = checkpoints.checkpoint(tmp_path_factory.mktemp("good"), "pro", fp8=True, **TINY)
    load(path)
    return path


@pytest.fixture
def nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test when weights are allocated."""

    def never(*_: object) -> None:
        raise AssertionError("memory was taken before the files were checked")

    monkeypatch.setattr(loader, "empty_weights", never)


def copy(good: Path, path: Path) -> Path:
    """Another directory with the same files."""
    path.mkdir(exist_ok=True)
    for file in good.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def parts(file: Path) -> tuple[Header, bytes]:
    """Header and data of a safetensors file."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def raw(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header, whatever it says."""
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def rewrite(file: Path, change: Callable[[Header], Any], data: bytes | None = None) -> None:
    """Changes the header of a file and keeps its data."""
    header, old = parts(file)
    change(header)
    file.write_bytes(raw(json.dumps(header).encode(), old if data is None else data))


ONE = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
TWO = ONE | {"b": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]}}


def with_a(**changes: Any) -> bytes:
    """The header of one tensor of 8 bytes, with other words."""
    return json.dumps({"a": ONE["a"] | changes}).encode()


FILES: list[tuple[str, bytes, str]] = [
    ("empty", b"", "the header's length is 0, allowed is none in a file of 0 bytes"),
    ("short", b"\x01\x00", "allowed is none in a file of 2 bytes"),
    ("no header", raw(b""), "is not a JSON object"),
    ("length beyond the file", raw(b"{}", length=3), "the header's length is 3, allowed is at most 2"),
    ("largest length", raw(b"{}", length=2**64 - 1), "the header's length is 18446744073709551615"),
    ("not JSON", raw(b"{a"), "is not a JSON object"),
    ("a list", raw(b"[]"), "is a JSON list, allowed is an object"),
    ("not text", raw(b"\xff\xff"), "is not a JSON object"),
    ("deep", raw(b'{"a":' + b"[" * 100_000), "is not a JSON object"),
    ("deep objects", raw(b'{"a":' * 100_000), "is not a JSON object"),
    ("twice", raw(with_a()[:-1] + b"," + with_a()[1:], bytes(8)), 'the name "a" is there twice'),
    (
        "dtype twice",
        raw(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        '"dtype" is there twi',
    ),
    ("metadata", raw(b'{"__metadata__": {"a": 1}}'), "__metadata__ is an object of 1"),
    ("metadata list", raw(b'{"__metadata__": []}'), "__metadata__ is a list of 0"),
    ("no description", raw(b'{"a": 5}'), 'the description of "a" is 5'),
    ("part missing", raw(b'{"a": {"dtype": "F32", "shape": [2]}}'), 'the description of "a" is an object of 2'),
    ("part too many", raw(with_a(x=1), bytes(8)), 'the description of "a" is an object of 4'),
    ("unknown dtype", raw(with_a(dtype="F33"), bytes(8)), 'dtype of "a" is "F33"'),
    ("dtype of a list", raw(with_a(dtype=["F32"]), bytes(8)), 'dtype of "a" is a list of 1'),
    ("shape", raw(with_a(shape=2), bytes(8)), 'shape of "a" is 2'),
    ("negative shape", raw(with_a(shape=[-2]), bytes(8)), 'shape of "a" is a list of 1'),
    ("two negatives", raw(with_a(shape=[-2, -1]), bytes(8)), 'shape of "a" is a list of 2'),
    ("shape of true", raw(with_a(shape=[2, True]), bytes(8)), 'shape of "a" is a list of 2'),
    ("shape of floats", raw(with_a(shape=[2.0]), bytes(8)), 'shape of "a" is a list of 1'),
    ("huge shape", raw(with_a(shape=[2**40, 2**40]), bytes(8)), '"a" has 8 bytes, allowed is what F32'),
    ("shape beyond 64 bits", raw(with_a(shape=[2**64]), bytes(8)), 'shape of "a"'),
    ("shape that wraps", raw(with_a(shape=[2**62, 2**62, 2]), bytes(8)), '"a" has 8 bytes'),
    ("many dims", raw(with_a(shape=[1] * 9), bytes(4)), 'shape of "a" is a list of 9'),
    ("shape and bytes differ", raw(with_a(shape=[3]), bytes(8)), "allowed is what F32 [3] takes, 12"),
    ("offsets backwards", raw(with_a(data_offsets=[8, 0]), bytes(8)), 'data_offsets of "a" is a list of 2'),
    ("negative offset", raw(with_a(data_offsets=[-8, 0]), bytes(8)), 'data_offsets of "a"'),
    ("three offsets", raw(with_a(data_offsets=[0, 8, 8]), bytes(8)), 'data_offsets of "a" is a list of 3'),
    ("offset of NaN", raw(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,NaN]}}'), "NaN is not JSON"),
    ("huge number", raw(b'{"a":{"dtype":"F32","shape":[' + b"9" * 9999 + b"]}}"), "is not a JSON object"),
    ("no data", raw(json.dumps(ONE).encode()), '"a" ends at byte 8, allowed is at most 0'),
    ("cut data", raw(json.dumps(ONE).encode(), bytes(7)), '"a" ends at byte 8, allowed is at most 7'),
    ("more data", raw(json.dumps(ONE).encode(), bytes(9)), "its tensors end at byte 8 of 9"),
    ("hole", raw(with_a(data_offsets=[1, 9]), bytes(9)), '"a" starts at byte 1, which leaves a hole'),
    (
        "overlap",
        raw(json.dumps(TWO | {"b": TWO["b"] | {"data_offsets": [7, 10]}}).encode(), bytes(10)),
        '"b" starts at byte 7, which overlaps',
    ),
    (
        "same bytes",
        raw(json.dumps(ONE | {"b": ONE["a"]}).encode(), bytes(8)),
        '"b" starts at byte 0, which overlaps',
    ),
]


@pytest.mark.parametrize(("data", "message"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_headers_that_cannot_be(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(data)
    with pytest.raises(CheckpointError) as info:
        read_header(file)
    assert str(info.value).startswith(str(file))
    assert message in str(info.value), info.value
    assert len(str(info.value)) < 500 + len(str(file))


def test_good_headers(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(raw(json.dumps(TWO | {"__metadata__": {"format": "pt"}}).encode(), bytes(11)))
    assert {name: (e.dtype, e.shape, e.start, e.size) for name, e in read_header(file).items()} == {
        "a": ("F32", (2,), 0, 8),
        "b": ("U8", (3,), 8, 3),
    }
    empty = {"a": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}}
    file.write_bytes(raw(json.dumps(ONE | {"c": empty["a"]}).encode(), bytes(8)))
    assert read_header(file)["c"].size == 0
    file.write_bytes(raw(b"{}   "))  # padded, as writers do
    assert read_header(file) == {}


def test_headers_that_are_too_long(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(raw(b"{", length=MAX_HEADER + 1))
    os.truncate(file, 1 << 40)
    with pytest.raises(CheckpointError, match=f"allowed is at most {MAX_HEADER} in a file of"):
        read_header(file)


def test_every_tensor_that_is_wrong_is_named_at_once(good: Path, tmp_path: Path, nothing_is_taken: None) -> None:
    path = copy(good, tmp_path)

    def change(header: Header) -> None:
        header["model.norm.wait"] = header.pop("model.norm.weight")
        header["evil\n\x1b[31m"] = header.pop("model.layers.1.mlp.experts.2.up_proj.weight_scale_inv")
        header["lm_head.weight"]["shape"] = [4, 16]
        header["model.layers.0.input_layernorm.weight"]["dtype"] = "I16"

    rewrite(path / "model.safetensors", change)
    with pytest.raises(CheckpointError) as info:
        load(path)
    assert str(info.value) == (
        f"{path}: the weights are not those of the config: "
        "2 missing (model.layers.1.mlp.experts.2.up_proj.weight_scale_inv, model.norm.weight); "
        "2 unexpected (model.norm.wait, evil\\n\\u001b[31m); "
        "2 misshapen (model.layers.0.input_layernorm.weight is I16 [8], allowed is F32 or BF16 or F16 [8], "
        "lm_head.weight is BF16 [4, 16], allowed is F32 or BF16 or F16 [8, 8])"
    )


def test_long_lists_are_cut(good: Path, tmp_path: Path, nothing_is_taken: None) -> None:
    path = copy(good, tmp_path)
    (path / "model.safetensors").write_bytes(raw(json.dumps(ONE).encode(), bytes(8)))
    with pytest.raises(CheckpointError) as info:
        load(path)
    header, _ = parts(good / "model.safetensors")
    # Factors count once their weight is there.
    count = sum(1 for name in header if not name.endswith("_scale_inv") and name != "__metadata__")
    message = str(info.value)
    assert f": {count} missing (model.embed_tokens.weight, " in message
    assert f", and {count - 20} more); 1 unexpected (a)" in message
    assert message.count("model.") < 24


def test_another_model_than_the_config_says(tmp_path: Path, nothing_is_taken: None) -> None:
    said = checkpoints.small("flash", **TINY)
    path = checkpoints.write(tmp_path, said, checkpoints.weights(said))

    def refused(config: checkpoints.Config) -> str:
        (path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError) as info:
            load(path)
        return str(info.value)

    # 64 TB in float32.
    message = refused(said | {"vocab_size": 1 << 24, "hidden_size": 1 << 20})
    assert "model.embed_tokens.weight is F32 [8, 8], allowed is F32 or BF16 or F16 [16777216, 1048576]" in message
    # Three matrices where one is expected, in three layers and a head.
    message = refused(checkpoints.small("pro", **TINY))
    assert "4 missing (model.layers.0.self_attn.qkv_proj.weight, " in message
    assert "12 unexpected (model.layers.0.self_attn.k_proj.weight, " in message
    # Two layers with experts.
    message = refused(said | {"n_routed_experts": 1 << 14})
    assert f"{2 * 3 * ((1 << 14) - 3)} missing (model.layers.1.mlp.experts.3.gate_proj.weight, " in message
    assert (
        "4 misshapen (model.layers.1.mlp.gate.weight is F32 [3, 8], allowed is F32 or BF16 or F16 [16384, 8], "
        in message
    )


def test_weights_that_are_not_finite(good: Path, tmp_path: Path) -> None:
    wrong = {
        "model.embed_tokens.weight": torch.nan,
        "model.layers.1.mlp.experts.0.up_proj.weight": torch.nan,  # fp8
        "model.layers.2.self_attn.qkv_proj.weight_scale_inv": torch.inf,
        "model.mtp.layers.0.hnorm.weight": -torch.inf,
    }
    config = json.loads((good / "config.json").read_text())
    tensors = checkpoints.store(config, checkpoints.weights(config), fp8=True)
    for name, value in wrong.items():
        flat = tensors[name].view(-1).float()
        flat[-1] = value
        tensors[name] = flat.to(tensors[name].dtype).view(tensors[name].shape)
    path = checkpoints.write(tmp_path, config, tensors)
    with pytest.raises(CheckpointError, match=r"not finite in torch.float32 in 4 tensors: ") as info:
        load(path)
    named = str(info.value).partition("4 tensors: ")[2].split(", ")
    assert sorted(named) == sorted(name.removesuffix("_scale_inv") for name in wrong)


def test_values_beyond_the_dtype(tmp_path: Path) -> None:
    config = checkpoints.small("flash", **TINY)
    tensors = checkpoints.weights(config)
    tensors["model.norm.weight"][3] = 1e30
    path = checkpoints.write(tmp_path, config, tensors)
    load(path, dtype="bfloat16")
    with pytest.raises(CheckpointError, match=r"not finite in torch.float16 in 1 tensors: model.norm.weight$"):
        load(path, dtype="float16")


def test_more_than_the_memory(good: Path, monkeypatch: pytest.MonkeyPatch, nothing_is_taken: None) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 2, "SC_PAGE_SIZE": 4096}[name])
    with pytest.raises(CheckpointError, match=r"the weights take .* GB in torch.float32, this machine has 8.19e-06 GB"):
        load(good)


def indexed(good: Path, path: Path, weight_map: Any) -> Path:
    """The checkpoint as one shard with this index."""
    copy(good, path)
    (path / "model.safetensors").rename(path / "one.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.mark.parametrize(
    "shard",
    [
        "../good/model.safetensors",
        "a/../../model.safetensors",
        "/etc/passwd",
        "/elsewhere/model.safetensors",
        "..",
        "",
        ".",
        "config.json",
        "a\0.safetensors",
        "a\n.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "model.safetensors/..",
    ],
)
def test_shards_outside_of_the_directory(good: Path, tmp_path: Path, shard: str, nothing_is_taken: None) -> None:
    header, _ = parts(good / "model.safetensors")
    path = indexed(good, tmp_path, dict.fromkeys(header, shard))
    with pytest.raises(CheckpointError, match=r"names a shard, allowed is a .safetensors file inside the directory"):
        load(path)


def test_indexes_that_cannot_be(good: Path, tmp_path: Path, nothing_is_taken: None) -> None:
    header, _ = parts(good / "model.safetensors")
    header.pop("__metadata__", None)
    names = dict.fromkeys(header, "one.safetensors")
    path = indexed(good, tmp_path, names)
    index = path / "model.safetensors.index.json"
    first, *_ = names
    cases: list[tuple[str, str]] = [
        ("", "is not a JSON object"),
        ("[]", "is a JSON list"),
        ("{}", "weight_map is null"),
        ('{"weight_map": []}', "weight_map is a list of 0"),
        ('{"weight_map": {"a": 5}}', "weight_map is an object of 1"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', 'the name "a" is there twice'),
        ('{"weight_map": {}, "weight_map": {}}', 'the name "weight_map" is there twice'),
        ('{"weight_map": ' * 100_000, "is not a JSON object"),
        (json.dumps({"weight_map": {f"{i}": f"{i}.safetensors" for i in range(5000)}}), "names 5000 files"),
        (
            json.dumps({"weight_map": {n: f for n, f in names.items() if n != first}}),
            f'1 in a file and not in the index ("{first}" in one.safetensors)',
        ),
        (
            json.dumps({"weight_map": names | {"more": "one.safetensors"}}),
            '1 in the index and not in its file ("more" of one.safetensors)',
        ),
    ]
    for text, message in cases:
        index.write_text(text)
        with pytest.raises(CheckpointError) as info:
            load(path)
        assert message in str(info.value), info.value
        assert len(str(info.value)) < 600
    # One tensor in two files.
    (path / "two.safetensors").write_bytes((path / "one.safetensors").read_bytes())
    index.write_text(json.dumps({"weight_map": names | {first: "two.safetensors"}}))
    with pytest.raises(CheckpointError, match=f"{len(names)} in a file and not in the index"):
        load(path)
    index.write_text(json.dumps({"weight_map": names | {first: "three.safetensors"}}))
    with pytest.raises(FileError, match=r"three.safetensors: No such file"):
        load(path)
    index.write_bytes(b"")
    os.truncate(index, 1 << 40)
    with pytest.raises(CheckpointError, match="it is too long"):
        load(path)


def test_directories_without_weights(good: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        load(tmp_path / "nowhere")
    path = copy(good, tmp_path / "copy")
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights, allowed is a directory with model.safetensors or"):
        load(path)
    (path / "model.safetensors").mkdir()
    with pytest.raises(FileError, match=r"model.safetensors"):
        load(path)
    (path / "model.safetensors").rmdir()
    os.mkfifo(path / "model.safetensors")
    with pytest.raises(FileError, match="not a regular file"):
        load(path)
    with pytest.raises(FileError, match="no such directory"):
        Checkpoint(tmp_path / "nowhere")
    # The hub's cache is a directory of links.
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").symlink_to(good / "model.safetensors")
    load(path)


MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("byte"), st.floats(0, 1), st.integers(0, 255)),
        st.tuples(st.just("header byte"), st.floats(0, 1), st.integers(0, 255)),
        st.tuples(st.just("length"), st.just(0), st.integers(0, 2**64 - 1) | st.integers(0, 40_000)),
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("more"), st.just(0), st.integers(1, 100)),
        st.tuples(
            st.sampled_from(["dtype", "shape", "data_offsets", "name"]),
            st.floats(0, 1),
            st.sampled_from(["F32", "F8_E4M3", "U8", "BF16", "", "x", None, -1])
            | st.lists(st.integers(-1, 300) | st.integers(0, 2**63), max_size=3),
        ),
    ),
    min_size=1,
    max_size=3,
)


@settings(
    deadline=None,
    max_examples=250,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(mutations=MUTATIONS)
def test_any_file_is_loaded_or_refused(good: Path, tmp_path: Path, mutations: list[tuple[str, float, Any]]) -> None:
    path = copy(good, tmp_path)
    file = path / "model.safetensors"
    for kind, at, value in mutations:
        data = bytearray(file.read_bytes())
        length = int.from_bytes(data[:8], "little")
        if kind in ("byte", "header byte") and data:
            end = len(data) if kind == "byte" else min(len(data), 8 + length)
            data[min(int(at * end), end - 1)] = value
        elif kind == "length":
            data[:8] = value.to_bytes(8, "little")
        elif kind == "cut":
            del data[int(at * len(data)) :]
        elif kind == "more":
            data += bytes(value)
        elif kind in ("dtype", "shape", "data_offsets", "name"):
            try:
                header = json.loads(data[8 : 8 + length])
                names = sorted(header)
                name = names[min(int(at * len(names)), len(names) - 1)]
                if kind == "name":
                    header[str(value)] = header.pop(name)
                else:
                    header[name][kind] = value
            except (ValueError, AttributeError, TypeError, IndexError):
                continue  # an earlier mutation left nothing to change
            text = json.dumps(header).encode()
            data = bytearray(raw(text, bytes(data[8 + length :])))
        file.write_bytes(data)
    try:
        config, weights = load(path)
    except MimoCacheError as error:
        message = str(error)
    else:
        # What still loads has the config's shapes and finite values.
        assert all(bool(torch.isfinite(tensor).all()) for _, tensor in walk(weights))
        assert weights.embed.shape == (config.vocab_size, config.hidden_size)
        return
    assert len(message) < 20_000
