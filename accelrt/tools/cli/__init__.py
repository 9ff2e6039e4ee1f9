"""The command line; importing accelrt does not import it.  A command is a module with run()
(top a folder), and main calls it; the rest is what they share.

main      the arguments, the commands by name, and how they end
choice    which driver a command runs on, and the packages that some need
pictures  view, plot and export-trace
facts     what info reports
process_order  info --process: what happens in a fork and at the end of a process
sample    one look at all devices and processes: what top, export and info show
pipeline  the second part of the demo
record    a program that records what its allocator does
tune      a trace under many settings, and the best of them
tune_offline  operations of accelrt.tunable that a program recorded
trial     one of its settings, in a process of its own
text      figures and tables as people read them, and a bar
"""
