"""Scripts that look after this tree; not part of the package."""
