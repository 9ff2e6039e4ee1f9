"""The command line; importing accelrt does not import it.

Each module of commands/ is a command: its name, its first line, the command's help, and two functions:
add_arguments(parser), and run(), which gets the arguments by their names and returns the exit status.  The
rest is what commands share or are made of.

commands/   the commands, a module each
main        the arguments, the commands by name, and how they end
options     arguments that several commands have
choice      which driver a command runs on, and the packages that some need
interrupts  Ctrl-C that waits until a command is between two steps
text        figures and tables as people read them, and a bar
sample      one look at all devices and processes: what top, export and info show
snapshots   reading a snapshot and writing what view, plot and export-trace make of it
facts       what info reports
checks      what doctor looks at
process_order  info --process: what happens in a fork and at the end of a process
pipeline    the second part of the demo
"""
