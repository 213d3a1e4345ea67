"""`Geometry`, caches made from one, and layouts and configs that cannot be."""

from typing import Any

import numpy as np
import pytest

import mimo_cache
from helpers import plain
from mimo_cache import Geometry, InvalidArgument, PrefixCache


def test_a_cache_from_a_geometry() -> None:
    geometry = Geometry.preset("mimo-v2.5-pro")
    cache = PrefixCache(geometry, full_pages=100, swa_pages=60, scratch_pages=20, retention="prompt_end+sup2")
    assert (cache.page_size, cache.window, cache.n_mtp) == (64, 128, 3)
    assert (cache.full_pages, cache.swa_pages, cache.scratch_pages) == (100, 60, 20)
    assert cache.geometry == geometry
    assert cache.swa_width(8192) == 132
    assert plain().geometry is None
    uniform = PrefixCache(Geometry.preset("uniform", page_size=16), full_pages=10)
    assert (uniform.window, uniform.n_mtp, uniform.swa_width(100)) == (0, 0, 0)
    seq = uniform.request(list(range(20))).open()
    seq.reserve(20)
    uniform.fill(1, [seq], np.zeros((1, 2), np.int32), None, None, np.zeros(1, np.int32))


def test_geometry_numbers() -> None:
    pro = Geometry.preset("mimo-v2.5-pro", tp_size=8, tp_rank=3)
    assert pro.full is not None
    assert pro.swa is not None
    assert (pro.full.token_bytes, pro.swa.trunk_token_bytes, pro.swa.mtp_token_bytes) == (51_200, 307_200, 15_360)
    assert (pro.full.rank_heads, pro.full.shards, pro.full.replication) == ((3, 4), 8, 1)
    assert (pro.window, pro.window_keys, pro.mtp_heads, pro.checkpoint_in_full_tokens) == (128, 129, 3, 768)
    assert pro.fingerprint == Geometry.preset("mimo-v2.5-pro").fingerprint
    assert pro.fingerprint != Geometry.preset("mimo-v2.5-pro", kv_dtype="fp8_e4m3").fingerprint
    assert set(Geometry.PRESETS) >= {"mimo-v2-flash", "mimo-v2.5", "mimo-v2.5-pro", "uniform"}
    own = Geometry(name="m", layers=["full", "swa"], full=(2, 8, 8), swa=(2, 8, 8), window_keys=5, page_size=2)
    assert (own.window, own.checkpoint_pages, own.layers) == (4, 2, ["full", "swa"])
    assert hash(own) == hash(
        Geometry(name="m", layers=("full", "swa"), full=(2, 8, 8), swa=(2, 8, 8), window_keys=5, page_size=2)
    )


def test_geometry_from_a_config(tmp_path: Any) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 32,
        "head_dim": 8,
        "torch_dtype": "bfloat16",
    }
    geometry = Geometry.from_config(config)
    assert geometry.full is not None
    assert geometry.full.token_bytes == 2 * 2 * 16 * 2
    path = tmp_path / "config.json"
    path.write_text(__import__("json").dumps(config))
    assert Geometry.from_file(path) == Geometry.from_file(str(path)) == geometry
    assert Geometry.from_config(path.read_bytes()) == Geometry.from_config(path.read_text()) == geometry


PLAIN: list[tuple[str, dict[str, Any], str]] = [
    ("no pools", {"full_pages": 0, "swa_pages": 0, "scratch_pages": 0, "n_mtp": 0}, "at least one pool"),
    ("page 0", {"page_size": 0}, "page_size is 0"),
    ("page 3", {"page_size": 3}, "power of two"),
    ("page 2048", {"page_size": 2048}, "1 to 1024"),
    ("window", {"window": 2**21}, "window is 2097152"),
    ("mtp", {"n_mtp": 9}, "n_mtp is 9"),
    ("mtp without SWA", {"swa_pages": 0, "scratch_pages": 0}, "n_mtp is 1"),
    ("scratch without SWA", {"swa_pages": 0, "n_mtp": 0}, "scratch_pages"),
    ("no room for a window", {"swa_pages": 17}, "swa_pages"),
    ("scratch beyond the pool", {"scratch_pages": 65}, "scratch_pages"),
    ("negative", {"full_pages": -1}, "full_pages is -1"),
    ("too large", {"full_pages": 2**32}, "full_pages is 4294967296"),
    ("larger than ids", {"full_pages": 2**31}, "at most"),
    ("text", {"swa_pages": "8"}, "swa_pages is '8'"),
    ("retention", {"retention": "everything"}, "prompt_end"),
    ("empty retention", {"retention": ""}, "prompt_end"),
    ("retention kind", {"retention": 5}, "a str"),
    ("policy", {"policy": "fifo"}, "lru"),
    ("events", {"events": -1}, "events is -1"),
    ("many events", {"events": 2**28 + 1}, "events is 268435457"),
    ("ghosts", {"ghosts": 1.5}, "ghosts is 1.5"),
    ("many ghosts", {"ghosts": 2**28 + 1}, "ghosts is 268435457"),
    ("seed", {"seed": 2**64}, "seed"),
    ("pins", {"max_pinned_pages": -1}, "max_pinned_pages"),
    ("weights", {"weights": 5}, "bytes or str"),
]


@pytest.mark.parametrize(("changes", "words"), [case[1:] for case in PLAIN], ids=[case[0] for case in PLAIN])
def test_layouts_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        plain(**changes)


def test_pools_and_geometry_must_agree() -> None:
    pro, uniform = Geometry.preset("mimo-v2.5-pro"), Geometry.preset("uniform")
    sizes: dict[str, Any] = {"full_pages": 100, "swa_pages": 100}
    for zero, words in (("full_pages", "full_pages is 0, allowed is at least 1"), ("swa_pages", "swa_pages is 0")):
        with pytest.raises(InvalidArgument, match=words):
            PrefixCache(pro, **{**sizes, zero: 0})
    with pytest.raises(InvalidArgument, match="swa_pages is 100, allowed is 0"):
        PrefixCache(uniform, **sizes)
    wrong: list[Any] = [None, "mimo-v2.5-pro", {}, 64]
    for geometry in wrong:
        with pytest.raises(InvalidArgument, match=r"PrefixCache\.plain"):
            PrefixCache(geometry, full_pages=1)


CONFIG: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}


@pytest.mark.parametrize(
    "config",
    [
        "",
        "{",
        "[]",
        "null",
        b"\xff\xfe",
        {},
        {"num_hidden_layers": 2},
        CONFIG | {"num_hidden_layers": 0},
        CONFIG | {"num_hidden_layers": -1},
        CONFIG | {"num_hidden_layers": 10**9},
        CONFIG | {"num_hidden_layers": "two"},
        CONFIG | {"num_key_value_heads": 0},
        CONFIG | {"layer_types": ["full_attention"]},
        CONFIG | {"layer_types": ["full_attention", "sideways"]},
        CONFIG | {"layer_types": ["full_attention", "sliding_attention"]},
        CONFIG | {"head_dim": object()},
    ],
    ids=str,
)
def test_configs_with_missing_or_contradictory_fields(config: Any) -> None:
    with pytest.raises(mimo_cache.ConfigError):
        Geometry.from_config(config)


@pytest.mark.parametrize("config", [None, 5, ["a"], bytearray(b"{}")])
def test_configs_of_a_wrong_kind(config: Any) -> None:
    with pytest.raises(InvalidArgument, match="config"):
        Geometry.from_config(config)


def test_geometry_arguments(tmp_path: Any) -> None:
    bad: list[dict[str, Any]] = [
        {"page_size": 3},
        {"page_size": "64"},
        {"tp_size": 3},
        {"tp_rank": 1},
        {"tp_size": 2, "tp_rank": -1},
        {"kv_dtype": "int4"},
        {"kv_dtype": 5},
        {"layer_range": (5, 5)},
        {"layer_range": (0, 71)},
        {"layer_range": [0, 5]},
        {"layer_range": (0,)},
        {"layout": 0},
        {"extent_pages": 0},
    ]
    for changes in bad:
        with pytest.raises((mimo_cache.ConfigError, InvalidArgument)):
            Geometry.preset("mimo-v2.5-pro", **changes)
    with pytest.raises(mimo_cache.ConfigError, match="mimo-v2-flash"):
        Geometry.preset("mimo")
    with pytest.raises(InvalidArgument):
        Geometry.preset(None)  # type: ignore[arg-type]
    good: dict[str, Any] = {
        "name": "m",
        "layers": ["full", "swa"],
        "full": (2, 8, 8),
        "swa": (2, 8, 8),
        "window_keys": 5,
    }
    for changes in (
        {"layers": []},
        {"layers": ["full", "odd"]},
        {"layers": "full"},
        {"layers": [1]},
        {"full": None},
        {"full": (0, 8, 8)},
        {"swa": (2, 8)},
        {"swa": [2, 8, 8]},
        {"window_keys": 0},
        {"mtp_heads": 1},
        {"mtp_heads": 99},
        {"name": ""},
        {"name": 5},
        {"dtype": "int8"},
    ):
        with pytest.raises((mimo_cache.ConfigError, InvalidArgument)):
            Geometry(**{**good, **changes})
    with pytest.raises(mimo_cache.FileError, match="nowhere"):
        Geometry.from_file(tmp_path / "nowhere.json")
    with pytest.raises(mimo_cache.FileError):
        Geometry.from_file(tmp_path)
    with pytest.raises(InvalidArgument):
        Geometry.from_file(5)  # type: ignore[arg-type]
    huge = tmp_path / "huge.json"
    huge.write_bytes(b" " * (8 << 20))
    with pytest.raises(mimo_cache.ConfigError):
        Geometry.from_file(huge)
