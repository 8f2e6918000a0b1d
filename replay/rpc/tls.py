"""TLS from files, for both ends: HTTP/2 by ALPN, TLS 1.2 at least."""

import ssl

from replay.errors import ConfigError


def server_context(certificate: str, key: str, client_ca: str | None = None) -> ssl.SSLContext:
    """Return a server's context from PEM files.

    With *client_ca* every client must show a certificate that it has signed.  Raises ConfigError
    naming the file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepare(context)
    _load_chain(context, certificate, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_ca(context, client_ca)
    return context


def client_context(
    ca: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """Return a client's context: who may have signed the server, and who we are.

    Without *ca* the system's authorities count.  Raises ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _prepare(context)
    if ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, ca)
    if certificate is not None:
        _load_chain(context, certificate, key)
    return context


def _prepare(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])


def _load_chain(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    files = certificate if key is None else f"{certificate} and {key}"
    try:
        # An encrypted key would ask for its password on the terminal.
        context.load_cert_chain(certificate, key, password=b"")
    except (OSError, ValueError) as error:
        raise ConfigError([f"tls: cannot use {files}: {_reason(error)}"]) from error


def _load_ca(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise ConfigError([f"tls: cannot use {ca}: {_reason(error)}"]) from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
