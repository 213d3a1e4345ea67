"""Directories of the disk tier that are full, gone, another's, damaged, or of another size: the node refuses with a
sentence or serves on, and never gives a wrong byte.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from gcache_checks import all_there, wait_for
from gcache_disk import (
    MIB,
    asker,
    comes_to_rest,
    disk_node,
    disk_setting,
    metric,
    named,
    nothing_left,
    opened,
    said,
    served,
    store,
    tiers,
)
from gcache_load import content
from gcache_nodes import RunningNode, program
from mimo_cache.gcache import PutItem, PutStatus, Refused

SEED = int(os.environ.get("MIMO_SEED", "5"))
BLOCK = 4096


@pytest.fixture(autouse=True)
def _seed_is_told() -> None:
    print(f"MIMO_SEED={SEED}")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A directory that the node makes. Nothing is left of it."""
    yield tmp_path / "disk"
    shutil.rmtree(tmp_path, ignore_errors=True)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("segment-*"))


def without_memory(node: RunningNode) -> None:
    """A stopped node loses its memory tier, as in a reboot."""
    (node.folder / "a.memory").unlink()


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[tuple[list[str], Path]]:
    """A file system of this size in a namespace of its own: a command that runs others there, and where it is here."""
    folder.mkdir()
    script = f'mount -t tmpfs -o size={size} none "{folder}" && echo ready && exec sleep 600'
    try:
        holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        pytest.skip(f"a small file system cannot be made: {error}")
    with holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != "ready\n":
                pytest.skip(f"a small file system cannot be made: {holder.stderr.read().strip()}")
            enter = ["nsenter", f"--target={holder.pid}", "--user", "--mount", "--preserve-credentials"]
            yield enter, Path(f"/proc/{holder.pid}/root{folder}")
        finally:
            holder.kill()


def test_a_disk_that_is_full_serves_with_what_it_has(tmp_path: Path) -> None:
    """The file system has room for half of what the configuration says."""
    small = tmp_path / "small"
    with (
        tmpfs(small, "40m") as (enter, inside),
        disk_node(small, size="80MiB", within=enter) as node,
        asker(node) as client,
    ):
        ids = named(SEED, "full", count=400)
        for start in range(0, len(ids), 16):
            some = ids[start : start + 16]
            assert client.put([PutItem(one, content(one)) for one in some]) == [PutStatus.STORED] * 16
        comes_to_rest(client)
        assert len(segments(inside)) >= 8
        there = served(client, ids)
        assert sum(there) > 50
        assert there[-1], "what came last is there"
        _, disk = tiers(client)
        print(disk, sum(there))
        assert disk.objects > 30
        assert disk.trouble.startswith("full: the file system has space for ")
        assert disk.trouble.endswith(" MiB of the 80 MiB configured")
        assert metric(node, "disk_troubled") == 1
        wait_for(lambda: said(node, "a disk has less room than configured"), "it is in the log")
        assert metric(node, "demoted_dropped_total") == 0, "it goes round in what it has"
        node.stop()
        node.start()
        with asker(node) as again:
            assert served(again, ids) == there
        node.stop()
        # Somebody else takes the rest.
        filler = inside / "filler"
        with filler.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(inside).free)
        with pytest.raises(RuntimeError, match="cannot write the manifest: No space left"):
            node.start()
        filler.unlink()
        node.start()
        with asker(node) as again:
            assert served(again, ids) == there
            nothing_left(again, ids)


def test_a_disk_without_room_for_the_fewest_segments_leaves_a_node_of_memory(tmp_path: Path) -> None:
    tiny = tmp_path / "tiny"
    with (
        tmpfs(tiny, "8m") as (enter, _),
        disk_node(tiny, size="80MiB", within=enter) as node,
        asker(node) as client,
    ):
        ids = named(SEED, "tiny", count=200)
        for start in range(0, len(ids), 8):
            some = ids[start : start + 8]
            assert client.put([PutItem(one, content(one)) for one in some]) == [PutStatus.STORED] * 8
        assert served(client, ids)[-8:] == [True] * 8
        wait_for(lambda: tiers(client)[1].trouble != "", "it says what is wrong")
        assert tiers(client)[1].trouble.startswith("read-only: there is no space for the fewest segments")
        assert metric(node, "disk_troubled") == 1
        command = [program("gcachectl"), "status", "--node", node.unix, "--json"]
        told = subprocess.run(command, check=False, capture_output=True, text=True).stdout
        assert "there is no space" in told


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_directory_that_goes_while_it_is_used(folder: Path, how: str) -> None:
    with disk_node(folder) as node, asker(node) as client:
        ids = named(SEED, "goes", how, count=120)
        store(client, ids)
        assert tiers(client)[1].objects > 30
        if how == "removed":
            shutil.rmtree(folder)
        else:
            folder.rename(folder.with_name("elsewhere"))
        # Read-only first, where a new segment was wanted before anybody looked.
        wait_for(lambda: tiers(client)[1].trouble.startswith("offline: the directory is gone"), "it is noticed")
        assert metric(node, "disk_troubled") == 1
        wait_for(lambda: said(node, "a disk is offline; memory serves on"), "it is in the log")
        # Memory serves on, and takes new values.
        there = served(client, ids)
        assert 5 < sum(there) < len(ids)
        new = named(SEED, "gone", how, count=100)
        for start in range(0, len(new), 4):
            some = new[start : start + 4]
            began = time.monotonic()
            assert client.put([PutItem(one, content(one)) for one in some]) == [PutStatus.STORED] * 4
            assert time.monotonic() - began < 8
        assert served(client, new)[-8:] == [True] * 8
        assert client.exists([one.key for one in new[-8:]]) == [1] * 8
        # A delete forgets, and says that it may not be for good; the client does not leave the node alone for that.
        with pytest.raises(Refused, match=r"may come back when the node starts anew: .*offline"):
            client.delete(new[-8:-4])
        assert served(client, new[-8:]) == [False] * 4 + [True] * 4
        assert node.stop() == 0


def test_two_nodes_on_one_directory(folder: Path, tmp_path: Path) -> None:
    with disk_node(folder) as node, asker(node) as client:
        ids = named(SEED, "two", count=60)
        store(client, ids)
        with pytest.raises(RuntimeError, match="is in use by another process; stop it, or give this node a directory"):
            RunningNode(tmp_path, "b", {"disk": disk_setting(folder, "128MiB")})
        all_there(client, ids)
        node.stop()
        with pytest.raises(RuntimeError, match="it belongs to another configuration"):
            RunningNode(tmp_path, "b", {"disk": disk_setting(folder, "128MiB")})
        twice = disk_setting(folder, "128MiB")[:-1] + ", " + disk_setting(folder / ".." / "disk", "128MiB")[1:]
        node.settings["disk"] = twice
        with pytest.raises(RuntimeError, match="in use"):
            node.start()
        node.settings["disk"] = disk_setting(folder, "128MiB")
        node.start()
        with asker(node) as again:
            all_there(again, ids)


def test_directories_of_others_are_refused_and_left_as_they_are(folder: Path) -> None:
    cases = {
        "foreign": "it is not a directory of the disk tier",
        "newer": "its format has version 2, and this program reads versions 1 to 1",
        "flipped": "its manifest is damaged: the checksum does not match",
        "short": "its manifest",
        "empty": "its manifest is not one of this program",
        "magic": "its manifest is not one of this program",
        "long": "manifest has more than",
        "missing": "it has segments and no manifest",
    }
    with disk_node(folder) as node:
        with asker(node) as client:
            store(client, named(SEED, "others", count=40))
        node.stop()
        manifest = folder / "manifest"
        good = manifest.read_bytes()
        for case, words in cases.items():
            if case == "foreign":
                other = folder.with_name("other")
                other.mkdir()
                (other / "letter.txt").write_text("dear")
                node.settings["disk"] = disk_setting(other, "128MiB")
            elif case == "missing":
                manifest.unlink()
            else:
                bad = bytearray(good)
                if case == "newer":
                    bad[8] = 2
                if case == "flipped":
                    bad[70] ^= 4
                if case == "magic":
                    bad[0] ^= 1
                size = {"short": 100, "empty": 0}.get(case, len(bad))
                manifest.write_bytes(bytes(bad[:size]) + (b"\0" * 2 * BLOCK if case == "long" else b""))
            before = {path.name: path.stat().st_size for path in folder.iterdir()}
            with pytest.raises(RuntimeError, match=words):
                node.start()
            assert {path.name: path.stat().st_size for path in folder.iterdir()} == before, case
            node.settings["disk"] = disk_setting(folder, "128MiB")
            manifest.write_bytes(good)
        assert [path.name for path in other.iterdir()] == ["letter.txt"]
        node.start()
        with asker(node) as client:
            all_there(client, named(SEED, "others", count=40))


def test_a_damaged_segment_is_set_aside_and_the_others_are_served(folder: Path) -> None:
    with disk_node(folder) as node:
        ids = named(SEED, "aside", count=150)
        with asker(node) as client:
            store(client, ids)
        node.stop()
        without_memory(node)
        node.start()
        with asker(node) as client:
            whole = served(client, ids)
        assert sum(whole) > 60
        node.stop()
        without_memory(node)
        taken = [path for path in segments(folder) if path.read_bytes()[48] == 2]
        with taken[0].open("r+b") as file:
            file.seek(36)
            file.write(b"\xff")
        taken[1].write_bytes(b"")
        node.start()
        told = [entry["sentence"] for entry in node.log if "sentence" in entry]
        assert len(told) == 2
        for sentence, path in zip(told, taken, strict=False):
            assert sentence.startswith(f"{path.name} was set aside as damaged-0-{path.name} because ")
            assert (folder / f"damaged-0-{path.name}").exists()
        with asker(node) as client:
            left = served(client, ids)
            assert 0 < sum(left) < sum(whole)
            assert not any(now and not before for now, before in zip(left, whole, strict=True))
            # What was lost can be stored again.
            lost = [one for one, there in zip(ids, left, strict=True) if not there]
            store(client, lost)
            all_there(client, ids)
            nothing_left(client, ids)


def test_flipped_bits_give_no_wrong_byte(folder: Path) -> None:
    """While the node is down; headers, footers, marks and values alike."""
    draw = random.Random(f"{SEED} flips")
    kept = folder.with_name("kept")
    with disk_node(folder, size="64MiB", promote_after=255) as node:
        ids = named(SEED, "flips", count=150)
        with asker(node) as client:
            store(client, ids)
        node.stop()
        without_memory(node)
        shutil.copytree(folder, kept)
        damaged = lost = 0
        for turn in range(4):
            node.start()
            with asker(node) as client:
                there = served(client, ids)
                damaged += tiers(client)[1].damaged
                if turn == 0:
                    most = sum(there)
                    assert most > 60
                lost += most - sum(there)
                assert sum(there) > most // 3
                # Damaged once, absent from then on.
                assert served(client, ids) == there
                assert [mask == 1 for mask in client.exists([one.key for one in ids])] == there
            node.stop()
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
            without_memory(node)
            for path in segments(folder):
                if path.read_bytes()[48] != 2:
                    continue
                with path.open("r+b") as file:
                    for _ in range(draw.choice([1, 2, 4])):
                        # Half of them where the format's own bytes are.
                        end = path.stat().st_size
                        at = draw.choice(
                            [draw.randrange(end), draw.randrange(3 * BLOCK), end - 1 - draw.randrange(BLOCK)]
                        )
                        file.seek(at)
                        byte = file.read(1)[0]
                        file.seek(at)
                        file.write(bytes([byte ^ 1 << draw.randrange(8)]))
        print(f"{damaged} damaged, {lost} of {3 * most} lost")
        assert damaged > 0
        assert lost >= damaged


def test_sigterm_seals_what_is_on_disk(folder: Path) -> None:
    with disk_node(folder) as node:
        ids = named(SEED, "seals", count=150)
        with asker(node) as client:
            store(client, ids)
            objects = tiers(client)[1].objects
        node.kill()
        node.start()
        assert opened(node)["walked_segments"] != 0, "kill -9 leaves open ones"
        with asker(node) as client:
            store(client, named(SEED, "more", count=60))
            objects = tiers(client)[1].objects
        assert node.stop() == 0
        assert said(node, "stopped; ")
        taken = 0
        for path in segments(folder):
            data = path.read_bytes()
            if data[48] != 2:
                continue
            taken += 1
            trailer = data[-BLOCK:]
            assert trailer[:8] == b"mimofoot", f"{path.name} has no footer"
            assert trailer[16:24] == data[40:48], "of another generation"
        assert taken > 5
        node.start()
        told = opened(node)
        assert (told["walked_segments"], told["sealed_segments"], told["objects"]) == (0, taken, objects)
        with asker(node) as client:
            all_there(client, ids)


def test_the_size_of_a_directory_may_change(folder: Path) -> None:
    """It grows, it shrinks to what holds everything, and to what does not; segments of other sizes stay readable."""
    with disk_node(folder, size="64MiB", memory="16MiB") as node:
        ids = named(SEED, "sizes", count=120)
        with asker(node) as client:
            store(client, ids)
        for size, segment in [("160MiB", "4MiB"), ("160MiB", None), ("72MiB", "2MiB"), ("60MiB", "2MiB")]:
            node.stop()
            node.settings["disk"] = disk_setting(folder, size, segment)
            node.start()
            with asker(node) as client:
                all_there(client, ids)
                assert tiers(client)[1].capacity_bytes == int(size[:-3]) * MIB
                wait_for(lambda: _bytes(folder) <= tiers(client)[1].capacity_bytes, f"the files fit {size}")
                all_there(client, ids)
                assert tiers(client)[1].evicted_objects == 0
        node.stop()
        node.settings["disk"] = disk_setting(folder, "16MiB", "1536KiB")
        node.start()
        with asker(node) as client:
            wait_for(lambda: _bytes(folder) <= 16 * MIB, "the files fit")
            there = served(client, ids)
            assert 10 < sum(there) < len(ids)
            nothing_left(client, ids)


def _bytes(folder: Path) -> int:
    """Bytes of all segments. One may be removed while this looks."""
    total = 0
    for path in segments(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_settings_that_cannot_work_are_named(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text(
        'name = "a"\nlisten = ["127.0.0.1:7400"]\n[memory]\npath = "/dev/shm/gcache-{name}"\nsize = "64MiB"\n'
    )
    cases = {
        ("disk", "[{}]"): "missing field `path`",
        ("disk", '[{path = "/x"}]'): "missing field `size`",
        ("disk", '[{path = "/x", size = "8"}]'): '"8" is no size',
        ("disk", '[{path = "/x", size = "8MiB", colour = "red"}]'): "unknown field `colour`",
        ("disk", disk_setting(folder, "100KiB", None)): "capacity of the disk tier is 102400, allowed is 8 to",
        ("disk", disk_setting(folder, "64MiB", "16MiB")): "capacity of the disk tier is 67108864, allowed is 8 to",
        ("disk", disk_setting(folder, "1GiB", "5000B")): "disk.segment in bytes is 5000, allowed is 65536 to",
        ("disk", disk_setting(folder, "1GiB", "70000B")): "segment size is 70000, allowed is a multiple of 4096",
        ("disk", disk_setting(folder, "64GiB", "2GiB")): "disk.segment in bytes is 2147483648",
        ("disk", disk_setting(folder, "64GiB", "8GiB")): "disk.segment in bytes is 8589934592",
        ("disk", disk_setting(folder, "1GiB", timeout="1ms")): "disk.timeout in milliseconds is 1, allowed is 100",
        ("disk", disk_setting(folder, "1GiB", io="carrier")): "unknown variant `carrier`, expected",
        ("disk", disk_setting(folder, "1GiB")[:-1] + "," + disk_setting(folder, "1GiB")[1:]): "is there twice",
        ("tiering.promote_after", "0"): "tiering.promote_after is 0, allowed is 1 to 255",
        ("tiering.promote_after", "256"): "invalid value",
        ("tiering.reserve", "33MiB"): "tiering.reserve is",
        ("tiering.reserve", "0B"): "tiering.reserve is",
        ("tiering.size", "1MiB"): "unknown field `size`",
    }
    for (key, value), words in cases.items():
        settings = [f"--set={key}={value}"]
        if key != "disk":
            settings.append(f"--set=disk={disk_setting(folder, '1GiB')}")
        command = [program("gcache-node"), "check-config", "--config", str(config), *settings]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 1, (key, value)
        assert words in done.stderr, (key, value, done.stderr)
        assert len(done.stderr.splitlines()) <= 6
    assert not folder.exists(), "nothing was made"
    fine = f"--set=disk={disk_setting(folder, '1GiB', None, write_per_day='1TiB', io='threads', timeout='5s')}"
    command = [program("gcache-node"), "check-config", "--config", str(config), fine]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
