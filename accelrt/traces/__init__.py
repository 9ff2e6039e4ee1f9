"""Traces of allocations, for accelrt replay and tune: the files that have one, and what each has to be.

trace            a trace as a replay runs through it
trace_file       load: the reader that a file's content asks for
npz_archive      arrays in numpy's archive
recorded_events  recordings and snapshots, of accelrt's and of torch's
rmm_log          RMM's log of a LoggingResourceAdaptor
address_pairs    allocations and frees of addresses, made into a trace
"""
