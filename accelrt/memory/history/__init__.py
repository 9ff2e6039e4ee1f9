"""What happened to memory, by whom, and how to see it.

recording   record_history, tag, annotate: what the allocator's history keeps, with stacks by their numbers
stack_walk  the stacks of threads, each kept once (C)
snapshots   the state and the events as torch's dict

The events themselves are in memory/allocator/event_ring.
"""
