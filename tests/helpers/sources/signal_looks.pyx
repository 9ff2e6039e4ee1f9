"""A handler of SIGINT that has the signal pending again, so that it is called wherever somebody looks for signals: the
interpreter between bytecodes, and compiled code that waits.  At the look of a chosen number it raises
KeyboardInterrupt."""
from cpython.exc cimport PyErr_SetInterrupt

from every_bytecode import calls_of_enter

cdef long looks = 0, chosen = 0
cdef bint is_on = False


def handle(number, frame):
    """The handler."""
    global looks, is_on
    if not is_on:
        return
    if frame.f_lasti not in calls_of_enter(frame.f_code):
        looks += 1
        if looks == chosen:
            is_on = False
            raise KeyboardInterrupt
    PyErr_SetInterrupt()


def begin(long number):
    """Interrupts at the look with a number, from 1, from now on; 0 only counts."""
    global looks, chosen, is_on
    looks, chosen, is_on = 0, number, True
    PyErr_SetInterrupt()


def end():
    """Returns how many looks there were."""
    global is_on
    is_on = False
    return looks
