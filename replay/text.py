"""Text from outside, made safe for one line of a log, a message or a terminal.

PURE.
"""

import re

#: Control characters, line and paragraph separators, lone surrogates, and what turns the direction
#: of a terminal's text.  Joiners stay, because emoji are built with them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def escape_controls(text: str, *, keep: str = "") -> str:
    r"""Return *text* with each unsafe character as an escape such as `\x1b`, those in *keep* as
    they are."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
