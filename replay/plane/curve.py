"""The keys of an event plane that is encrypted with CURVE: who may read is a folder of public keys.

A socket that is protected is closed to everybody as long as nobody answers for the keys
(`replay.plane.zap`).
"""

from pathlib import Path

import attrs
import zmq
from zmq.auth import load_certificate

from replay.errors import ConfigError

#: Any text: without a domain ZeroMQ would not ask at all.
_ZAP_DOMAIN = b"replay"


@attrs.frozen
class ServerKeys:
    """The keys of the publishing side, and whom it lets read."""

    secret_key: bytes = attrs.field(repr=False)
    allowed_keys: frozenset[bytes]
    """Public keys in Z85."""

    @classmethod
    def load(cls, secret_key_file: str, allowed_keys_dir: str) -> "ServerKeys":
        """Read certificates as ZeroMQ's tools write them; the folder is read once, `*.key`.

        Raises `ConfigError` that names the files.
        """
        _, secret_key = _read_secret(secret_key_file)
        folder = Path(allowed_keys_dir)
        if not folder.is_dir():
            raise ConfigError([f"{folder}: no folder of allowed keys is there"])
        allowed: set[bytes] = set()
        problems: list[str] = []
        for path in sorted(folder.glob("*.key")):
            try:
                public_key, _ = _read(str(path))
            except ConfigError as error:
                problems += error.problems
            else:
                allowed.add(public_key)
        if problems:
            raise ConfigError(problems)
        return cls(secret_key, frozenset(allowed))

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Let only holders of an allowed key connect to *socket*.  To be called before it binds."""
        socket.curve_server = True
        socket.curve_secretkey = self.secret_key
        socket.zap_domain = _ZAP_DOMAIN
        # Otherwise a context in which nobody answers ZAP would let everybody in.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


@attrs.frozen
class ClientKeys:
    """The keys of a reader, and the public key by which it knows the publisher."""

    public_key: bytes
    secret_key: bytes = attrs.field(repr=False)
    server_key: bytes

    @classmethod
    def load(cls, secret_key_file: str, server_key_file: str) -> "ClientKeys":
        """Read the reader's certificate with the secret key, and the publisher's public one.

        Raises `ConfigError` that names the file.
        """
        public_key, secret_key = _read_secret(secret_key_file)
        server_key, _ = _read(server_key_file)
        return cls(public_key, secret_key, server_key)

    def use(self, socket: zmq.Socket[bytes]) -> None:
        """Make *socket* prove its key.  To be called before it connects."""
        socket.curve_publickey = self.public_key
        socket.curve_secretkey = self.secret_key
        socket.curve_serverkey = self.server_key


def _read(path: str) -> tuple[bytes, bytes | None]:
    if not Path(path).is_file():  # a FIFO would hang the start
        raise ConfigError([f"{path}: no key file is there"])
    try:
        public_key, secret_key = load_certificate(path)
    except (OSError, ValueError):
        raise ConfigError([f"{path}: cannot be read as a CURVE certificate"]) from None
    for key in (public_key, secret_key):
        if key is not None and len(key) != 40:
            raise ConfigError([f"{path}: a CURVE key has 40 characters"])
    return public_key, secret_key


def _read_secret(path: str) -> tuple[bytes, bytes]:
    public_key, secret_key = _read(path)
    if secret_key is None:
        raise ConfigError([f"{path}: has no secret key"])
    return public_key, secret_key
