"""The Python stubs are what the generator makes of `proto/`; they are committed, so that nobody needs it to install.

`python tests/python/test_gcache_generated.py` writes them anew. Two things are changed on the way: imports name the
package, and the checks of versions go. They would tie every environment to the newest protobuf and grpcio, while the
contract uses nothing that older ones lack (`pyproject.toml` has the oldest).
"""

import re
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUT = ROOT / "python" / "mimo_cache" / "gcache" / "v1"
PROTO = "gcache/v1/gcache.proto"

VERSION_CHECKS = (
    re.compile(r"^from google\.protobuf import runtime_version as _runtime_version\n", re.M),
    re.compile(r"^_runtime_version\.ValidateProtobufRuntimeVersion\(\n(?:    .*\n)*\)\n", re.M),
    re.compile(r"^# Protobuf Python Version: .*\n", re.M),
    re.compile(r"^import warnings\n", re.M),
    re.compile(r"^GRPC_GENERATED_VERSION = (?:.*\n)+?(?=\n\nclass )", re.M),
    re.compile(r"^GRPC_GENERATED_VERSION: str\nGRPC_VERSION: str\n\n", re.M),
)


def generate() -> dict[str, str]:
    """Names and texts of the files."""
    from grpc_tools import protoc  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python")]
        flags += [f"--{kind}_out=quiet:{folder}" for kind in ("mypy", "mypy_grpc")]
        # Beside this interpreter, whatever the PATH says.
        plugins = [
            f"--plugin=protoc-gen-{kind}={Path(sys.executable).parent / f'protoc-gen-{kind}'}"
            for kind in ("mypy", "mypy_grpc")
        ]
        well_known = Path(str(protoc.__file__)).parent / "_proto"
        args = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", *plugins, *flags, PROTO]
        assert protoc.main(args) == 0, "the generator refused the contract"
        made = {path.name: path.read_text() for path in Path(folder, "gcache", "v1").iterdir()}
    return {name: changed(text) for name, text in made.items()}


def changed(text: str) -> str:
    for check in VERSION_CHECKS:
        text = check.sub("", text)
    return text.replace("from gcache.v1 import", "from mimo_cache.gcache.v1 import")


@pytest.mark.skipif(
    find_spec("grpc_tools") is None or find_spec("mypy_protobuf") is None, reason="the generator is not installed"
)
def test_the_stubs_are_those_of_the_contract() -> None:
    made = generate()
    assert set(made) == {path.name for path in OUT.iterdir() if path.name.startswith("gcache_pb2")}
    for name, text in made.items():
        assert (OUT / name).read_text() == text, f"{name} is not what proto/ says; run this file to write it anew"
        assert "_version" not in text.replace("min_version", "").replace("max_version", ""), name


if __name__ == "__main__":
    for file, content in generate().items():
        (OUT / file).write_text(content)
