"""The load generator: what is asked, when, by which processes, and what came back.

It is not `replay`'s player: that one plays a recording, this one makes up load that keeps its
schedule to a fraction of a millisecond and spreads over processes.  Targets, messages and the
definitions of the latencies are the player's, so that both mean the same by a time to first token.
"""
