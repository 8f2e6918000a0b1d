"""Tells a broken regular expression from one in another dialect.  PURE.

Gateways write patterns for the dialect of the engine's grammar compiler: Rust's, ECMAScript's,
Python's.  Compiling with `re` would refuse what others accept (`\\p{L}`, `(?<name>…)`, `\\z`), and
takes long on purpose-made patterns.  So only what no dialect accepts is a fault: brackets without
partner, a repetition of nothing, a repetition whose bounds go down, a lone backslash at the end.
Linear in the pattern's length.
"""

import re

_TOKEN = re.compile(r"\\.|[\[\]()|^]|[*+?]|\{\d*,?\d*\}|[^\\\[\]()|^*+?{]+|.", re.DOTALL)
_BOUNDS = re.compile(r"\{(\d+),(\d+)\}")
#: In verbose mode comments may hold anything, and hold it unbalanced.
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")


def regex_fault(pattern: str) -> str | None:
    """Return what is wrong with *pattern* in every dialect, or None.

    The text never quotes the pattern.  Positions count characters from 0.
    """
    if _VERBOSE.search(pattern):
        return None
    fault = _fault(pattern, nested=False, leading_bracket=False)
    if fault is None or "[" not in pattern:
        return fault
    # Dialects differ in whether classes nest ([a[b]]) and whether a leading ] is literal ([]a]).
    for nested, leading_bracket in ((True, False), (False, True), (True, True)):
        if _fault(pattern, nested=nested, leading_bracket=leading_bracket) is None:
            return None
    return fault


def _fault(pattern: str, *, nested: bool, leading_bracket: bool) -> str | None:
    groups: list[int] = []  # where each open group begins
    classes: list[int] = []  # where each open class begins; more than one only if they nest
    repeatable = False  # is there something that a * could repeat
    previous = ""
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        at = match.start()
        if token == "\\":
            return f"a lone backslash at character {at}"
        if classes:
            if token == "[" and nested:
                classes.append(at)
            elif token == "]" and not (leading_bracket and _is_leading(pattern, classes[-1], at)):
                classes.pop()
                repeatable = True
        elif token == "[":
            classes.append(at)
        elif token == "(":
            groups.append(at)
            repeatable = False
        elif token == ")":
            if not groups:
                return f"an unmatched ) at character {at}"
            groups.pop()
            repeatable = True
        elif token == "|":
            repeatable = False
        elif token == "?" and previous == "(":
            pass  # the head of a group with options: (?: (?= (?P<name>
        elif token in "*+?":
            if not repeatable:
                return f"nothing to repeat at character {at}"
        else:
            bounds = _BOUNDS.fullmatch(token)
            if bounds and repeatable and _exceeds(bounds[1], bounds[2]):
                return f"a repetition whose bounds go down at character {at}"
            repeatable = True
        previous = token
    if classes:
        return f"an unmatched [ at character {classes[0]}"
    if groups:
        return f"an unmatched ( at character {groups[0]}"
    return None


def _is_leading(pattern: str, opened_at: int, at: int) -> bool:
    return pattern[opened_at + 1 : at] in ("", "^")


def _exceeds(low: str, high: str) -> bool:
    """Compare two decimal numbers of any length, without the cost and the limit of `int`."""
    low, high = low.lstrip("0"), high.lstrip("0")
    return (len(low), low) > (len(high), high)
