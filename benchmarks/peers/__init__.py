"""Servers of other libraries that answer the same Generate, written as their documentation shows.

Each is a program of its own: `python -m benchmarks.peers.grpc_aio [--token-ms MS] [--gen-ms MS]`.
It binds a free port of 127.0.0.1 and says on stderr, as one JSON object, where it listens.
"""
