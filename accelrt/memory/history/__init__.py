"""The history of memory: what happened, by whom, and how to see it.

recording       record_history, tag, annotate: what the history keeps, with stacks by their numbers; the look
                through a pickle
stack_walk      the frames of the calling thread (C)
memory_history  packed events with their stacks, tags and segments: what every file holds, as arrays
snapshots       the state and the events as torch's dict
compact_form    a history as a streamed file of sections with checksums, and back
torch_form      the same as a pickle that torch's viewers open, and back
plain_pickle    pickles of plain data alone, read without running anything of them
snapshot_checks  the types of what a snapshot's dict holds, for all who read one
snapshot_file   dump_snapshot and load_snapshot
flame_svg       flame graphs of a snapshot (torch's _save_memory_usage and _save_segment_usage)
drain           a program's events, written to a file while it runs (ACCELRT_RECORD)

The events themselves are in allocator/event_ring.  DESIGN.md describes the files.
"""
