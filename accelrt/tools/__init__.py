"""Programs on top of accelrt; nothing else of accelrt imports them.  DESIGN.md says what they may use.

cli      the command line
viewer   a page, plots and a trace for Perfetto of a memory snapshot
traces   files of allocations, for accelrt replay and tune
publish  what this process's pools hold, for accelrt top and export
"""
