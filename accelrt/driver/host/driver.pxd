# The host driver: an embedded device that executes on CPU threads.
