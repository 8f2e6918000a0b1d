"""Write `replay/_proto/` from the `.proto` files beside this script; `--check`: is it current?

The modules use a descriptor pool of their own: the default pool belongs to the whole process, and a
program that embeds `replay` may have loaded another copy of the same messages (smg's own package,
grpcio's health service).
"""

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "replay" / "_proto"

HEADER = (
    '"""Messages of the wire, written by proto/generate.py: change the .proto files, not this."""\n'
)

POOL = '''"""The descriptor pool of this package, apart from the process-wide default."""

from google.protobuf import descriptor_pool, struct_pb2, timestamp_pb2

POOL = descriptor_pool.DescriptorPool()
for _file in (struct_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_file.DESCRIPTOR.serialized_pb)
'''


def generate(target: Path) -> None:
    """Write all modules into *target*."""
    import grpc_tools
    from grpc_tools import protoc

    includes = Path(grpc_tools.__file__).parent / "_proto"
    names = sorted(path.name for path in HERE.glob("*.proto"))
    with tempfile.TemporaryDirectory() as out:
        status = protoc.main(
            [
                "protoc",
                f"-Ireplay/_proto={HERE}",
                f"-I{includes}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                *(f"replay/_proto/{name}" for name in names),
            ]
        )
        if status:
            raise SystemExit(status)
        for path in sorted((Path(out) / "replay" / "_proto").iterdir()):
            text = path.read_text()
            if path.suffix == ".py":
                text = text.replace("_descriptor_pool.Default()", "POOL").replace(
                    "from google.protobuf import descriptor_pool as _descriptor_pool\n",
                    "from replay._proto.pool import POOL\n",
                )
            (target / path.name).write_text(text)
    (target / "pool.py").write_text(POOL)
    (target / "__init__.py").write_text(HEADER)


def main() -> int:
    """Generate, or check what is there."""
    if "--check" not in sys.argv[1:]:
        TARGET.mkdir(exist_ok=True)
        generate(TARGET)
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        wanted = {path.name: path.read_text() for path in Path(fresh).iterdir()}
    found = {path.name: path.read_text() for path in TARGET.iterdir() if path.is_file()}
    stale = sorted(
        name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
    )
    if stale:
        print("replay/_proto is not current, run `python proto/generate.py`:", *stale)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
