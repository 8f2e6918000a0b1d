"""Messages of the wire, written by proto/generate.py: change the .proto files, not this."""
