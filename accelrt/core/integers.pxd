# Numbers that callers give: whatever has __index__ is an int, as NumPy's are; a bool is none.  Limits are compared
# with an int of which no subclass decides what is less.
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index, PyNumber_Long
from cpython.ref cimport Py_DECREF, PyObject


cdef extern from "Python.h":
    PyObject* PyImport_GetModule(object name) except? NULL  # a new reference; NULL where it is not imported


cdef inline bint is_integer(object value) except -1:
    # An int, NumPy's too; but no other object with __index__, as a device is.  Importing numbers takes long, and nothing
    # is a numbers.Integral before somebody does.
    cdef PyObject* imported
    if isinstance(value, int):
        return not isinstance(value, bool)
    imported = PyImport_GetModule("numbers")
    if imported is NULL:
        return False
    numbers = <object>imported
    Py_DECREF(numbers)
    return isinstance(value, numbers.Integral)


cdef inline object exact_int(object value, str name, str wanted):
    # TypeError says what was given and what is wanted.
    if PyLong_CheckExact(value):
        return value
    if isinstance(value, bool) or not PyIndex_Check(value):
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}; pass {wanted}")
    return PyNumber_Long(PyNumber_Index(value))


cdef inline object checked_int(object value, str name, object least, object most, str wanted):
    # ValueError where it is below least or above most.
    cdef object number = exact_int(value, name, wanted)
    if number < least or number > most:
        raise ValueError(f"{name} is {number}; it goes from {least} to {most}")
    return number


cdef inline object checked_address_int(object value, str name):
    cdef object number = exact_int(value, name, "an address as int")
    if number < 0 or number >> 64:
        raise ValueError(f"{name} is {number}; an address is an int from 0 to 2**64 - 1")
    return number
