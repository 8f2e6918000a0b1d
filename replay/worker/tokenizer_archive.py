"""The tokenizer of a worker as `GetTokenizer` sends it: a zip of the folder, in chunks.

Only what a tokenizer is made of goes in: a folder may hold the model's weights as well.  The same
folder gives the same bytes.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

#: Below the 4 MiB that clients take by default.
CHUNK_BYTES = 1 << 20
_SUFFIXES = frozenset((".json", ".model", ".txt", ".jinja", ".tiktoken", ".vocab", ".bpe"))
#: The earliest date that a zip can hold: the real one would change the bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


def tokenizer_files(folder: Path) -> list[Path]:
    """List what belongs to the tokenizer in *folder*, sorted."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in _SUFFIXES and not path.name.endswith(".index.json") and path.is_file()
    )


def build_archive(folder: Path) -> bytes:
    """Zip the tokenizer.  Raises OSError."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in tokenizer_files(folder):
            entry = zipfile.ZipInfo(path.name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return out.getvalue()


def archive_chunks(archive: bytes) -> Iterator[tuple[bytes, str]]:
    """Cut an archive; the SHA-256 of the whole, in hex, comes with the last chunk only."""
    digest = hashlib.sha256(archive).hexdigest()
    for start in range(0, len(archive), CHUNK_BYTES):
        last = start + CHUNK_BYTES >= len(archive)
        yield archive[start : start + CHUNK_BYTES], digest if last else ""
