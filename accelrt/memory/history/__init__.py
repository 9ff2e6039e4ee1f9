"""What became of the memory: the recorder's events, kept, written to files and read back.

packed_events   the 64 bytes of an event, its action, and what snapshots say of it
memory_history  events with their stacks, tags and segments: what every file holds, as arrays
compact_form    that as a streamed file of sections with checksums, and back
torch_form      the same as a pickle that torch's viewers open, and back
unpickler       pickles of plain data alone, read without running anything of them
snapshot_file   dump_snapshot and load_snapshot
drain           a program's events, written to a file while it runs (ACCELRT_RECORD)

DESIGN.md describes the files.
"""
