"""Every row of a driver table as a Python method: for contract tests and raw-driver benchmarks.

    rows = Rows("host")
    code, event = rows.event_create(0, 0)

A method takes the arguments that its row reads and returns its status code, or a tuple of the code and
what the row wrote.  Nothing is checked: these are the rows themselves.
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset

cimport accelrt.driver.registry as registry
from accelrt.driver.registry import ROW_NAMES
from accelrt.driver.table cimport Table, host_fn
from accelrt.status cimport refuse_copy


include "python_rows.pxi"


cdef class Rows(RowCalls):
    """The rows of a driver: Rows("cuda"), Rows("host"), Rows("faults"), or the active one: Rows()."""

    names = ROW_NAMES

    def __cinit__(self, str driver=None):
        self.table = registry.active() if driver is None else registry.table_named(driver)

    def __reduce__(self):
        refuse_copy(self, "it is a driver's table of this process; make another one with Rows(name)")

    @property
    def filled(self):
        """How many rows the driver fills; the others answer NOT_SUPPORTED."""
        return self.table.rows

    @property
    def name(self):
        """The name that the table bears."""
        return self.table.name.decode()
