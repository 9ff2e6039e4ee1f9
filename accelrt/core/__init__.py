"""The base of every other package; nothing here calls a driver.

arguments    checks of what callers give to modules in Python: objects, numbers, words
dtypes       the types of elements, one row each
files        files that appear whole or not at all, and are read up to a bound
growing      arrays that double their length when they are full
handle_map   a hash table from addresses or handles to records
host_pages   the host's memory whose pages are made at once: room for it, huge pages, files of it, threads
interpreter  Python's thread, the GIL and the interpreter's end, as its C API tells them
instead      what accelrt has for names of torch's, CuPy's and NumPy's
integers     what callers may pass as a number, for compiled modules
logs         events for operators, through Python's logging
locks        mutexes; spin locks; what stands for the GIL; counters and pointers of several threads
names        the public names, and the module that each is of
stubgen      writes the stubs of compiled modules, when the package is built
process      what happens in forks and at the end, in one order each (DESIGN.md); whether variables that say
             which devices there are changed; descriptors with an owner from the first moment on
printable    texts of other people's as a terminal can show them, and sizes
procfs       the cards that NVIDIA's kernel driver lists in /proc, and processes
slots        sections that are passed in nanoseconds, and a wait until all who were inside have left
threads      the clock, pauses, conditions, and starting a thread
version      the version, which setup.py writes from pyproject.toml
"""
