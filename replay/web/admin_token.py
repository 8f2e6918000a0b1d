"""The token that whoever asks for truth and faults has to bear."""

import re
from pathlib import Path

from replay.errors import ConfigError


def read_admin_token(path: str) -> str:
    """Return the token in the file at *path*, without the white space around it.

    Raises ConfigError for a file that cannot be read or holds no token; its text has nothing of it.
    """
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError([f"http.token_file: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError:
        token = ""
    if not re.fullmatch(r"[!-~]+", token):
        text = "http.token_file: must hold one token of printable ASCII without spaces"
        raise ConfigError([text]) from None
    return token
