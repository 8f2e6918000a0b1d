"""Fuzzing the server's connection: bytes in; no crash, no hang, bounded memory.

python -m tests.fuzz --seconds 300
"""
