"""Pickles of plain data: dict, list, tuple, str, int, float, bool and None, and nothing else.

pickle.Unpickler reads a pickle once it was looked through here, in one pass that follows what kind of object each opcode
makes.  What a small file could have pickle.Unpickler do is refused before: to import and call, to make room for as many
objects as a number says, to hash keys that take ever longer.  What opcodes take and make is pickletools' table.
"""
import pickle
import pickletools
from types import SimpleNamespace

import numpy as np

from cython cimport final
from libc.stdint cimport uint64_t

from accelrt.errors import SnapshotError

cdef enum:
    INT_BYTES = 16     # of the widest integer
    TEXT_DIGITS = 48   # of the longest number in text
    LAST_PROTOCOL = 5
    CROWDED = 3        # bytes of a pickle for each dict, list or tuple in it, at least
    FREE_CONTAINERS = 1024
    NUMBERED = 5       # bytes of a pickle for each object with a number from FREE_NUMBERS on, at least
    FREE_NUMBERS = 256
    ALL = -1           # of Opcode.taken: everything above the last mark
    LINE = -1          # of Opcode.argument: text up to the end of the line

cdef enum:  # kinds of objects, those of KINDS
    NOTHING, MARK, INT, STR, BOOL, FLOAT, NONE, TUPLE, LIST, DICT

cdef tuple KINDS = (None, pickletools.StackObject, int, str, bool, float, type(None), tuple, list, dict)
cdef bytes NUMBER_LETTERS = b"+-.0123456789aefinL"
cdef str PLAIN = "a snapshot is a pickle of dict, list, tuple, str, int, float, bool and None alone"

cdef struct Opcode:
    bint plain       # makes nothing but plain data
    int argument     # its bytes; LINE, or as in pickletools -2 to -5: a length and so many bytes
    int taken        # objects from the top of the stack
    int into         # LIST or DICT: what is below them on the stack, stays there and holds them; else NOTHING
    int made         # kind of the object that is put on the stack

cdef Opcode[256] OPCODES
cdef int[6] LENGTH_BYTES = [0, 0, 1, 4, 4, 8]  # by -argument


cdef int kind_of(object described):
    kind = int if described is pickletools.pyinteger_or_bool else described.obtype
    return KINDS.index(kind) if kind in KINDS else NOTHING


cdef int read_table() except -1:
    cdef Opcode* opcode
    for each in pickletools.opcodes:
        opcode = &OPCODES[ord(each.code)]
        opcode.argument = each.arg.n if each.arg else 0
        opcode.taken = ALL if pickletools.stackslice in each.stack_before else each.stack_before.count(pickletools.anyobject)
        if each.stack_before[:1] in ([pickletools.pylist], [pickletools.pydict]):
            opcode.into = kind_of(each.stack_before[0])
        elif each.stack_after:
            opcode.made = kind_of(each.stack_after[0])
        opcode.plain = (opcode.into or opcode.made or not each.stack_after or
                        each.name in ("GET", "BINGET", "LONG_BINGET", "MEMOIZE", "DUP"))
    return 0


read_table()


# stub: class PickleScan:
@final
cdef class PickleScan:
    """One pickle that is looked through; `stack` and `memo` have the kinds of what pickle.Unpickler will have there."""

    cdef bytes content
    cdef const unsigned char* data
    cdef tuple kinds
    cdef unsigned char* stack
    cdef unsigned char* memo
    cdef Py_ssize_t size, at, opcode_at, depth, containers
    cdef uint64_t numbered  # objects in the memo
    cdef str name

    cdef object check(self, bytes content, str name):
        cdef int op = 0
        self.content, self.name = content, name
        self.data, self.size = content, len(content)
        # No opcode adds more than one object to either.  Pages that stay untouched take no memory.
        self.kinds = np.empty(self.size + 1, np.uint8), np.zeros(self.size + FREE_NUMBERS + 1, np.uint8)
        self.stack = <unsigned char*><size_t>self.kinds[0].ctypes.data
        self.memo = <unsigned char*><size_t>self.kinds[1].ctypes.data
        while op != b".":
            self.opcode_at = self.at
            op = self.take(1)[0]
            if not OPCODES[op].plain:
                self.refuse(op)
            self.step(op, self.argument(op))
        if self.depth != 1 or self.stack[0] == MARK:
            self.fail("the pickle ends with other than one object on its stack")

    cdef object fail(self, str what):
        raise SnapshotError(f"{self.name}: at byte {self.opcode_at:,}: {what}", self.opcode_at)

    cdef object refuse(self, int op):
        opcode = pickletools.code2op.get(chr(op))
        if opcode is None:
            self.fail(f"0x{op:02x} is no opcode of a pickle; {PLAIN}")
        if pickletools.anyobject in opcode.stack_after:
            self.fail(f"the opcode {opcode.name} would import or call something; {PLAIN}, so nothing was run and nothing "
                      "loaded")
        self.fail(f"the opcode {opcode.name}; {PLAIN}")

    # --- arguments, which are not believed beyond the end of the file

    cdef const unsigned char* take(self, uint64_t count) except NULL:
        cdef const unsigned char* first = self.data + self.at
        if count > <uint64_t>(self.size - self.at):
            self.fail(f"{count:,} more bytes were expected, {self.size - self.at:,} are left: the file is cut short "
                      "or damaged")
        self.at += <Py_ssize_t>count
        return first

    cdef uint64_t argument(self, int op) except? 0:
        # A number, or the length of what is passed over.
        cdef int form = OPCODES[op].argument, index
        cdef int width = form if form >= 0 else LENGTH_BYTES[-form]
        cdef const unsigned char* first
        cdef uint64_t number = 0
        if form == 0:
            return 0
        if form == LINE:
            return self.line(op)
        first = self.take(width)
        for index in range(width):
            number |= <uint64_t>first[index] << (8 * index)
        if form < 0:
            if OPCODES[op].made == INT and number > INT_BYTES:
                self.fail(f"an integer of {number:,} bytes, where {INT_BYTES} at most were expected")
            self.take(number)
        return number

    cdef uint64_t line(self, int op) except? 0:
        # An object's number, which pickle.Unpickler has to read as this does.  Other numbers, and text, it reads alone.
        cdef Py_ssize_t start = self.at
        cdef Py_ssize_t end = self.content.find(b"\n", start, self.size if op == b"V" else start + TEXT_DIGITS + 1)
        if end < 0:
            self.fail(f"a line of text, or a number of at most {TEXT_DIGITS} digits and a newline, was expected")
        self.at = end + 1
        if op == b"V":
            return 0
        line = self.content[start:end]
        is_object = op == b"g" or op == b"p"
        if line.strip(NUMBER_LETTERS) or (is_object and not line.isdigit()):
            self.fail(f"a number was expected, not {line!r}")
        return min(int(line), self.size) if is_object else 0

    # --- what opcodes do to the stack and the memo

    cdef int step(self, int op, uint64_t argument) except -1:
        cdef const Opcode* opcode = &OPCODES[op]
        cdef Py_ssize_t bottom, end
        if op == b"h" or op == b"j" or op == b"g":      # BINGET, LONG_BINGET, GET
            return self.push(self.numbered_kind(argument))
        if opcode.taken == 0 and NOTHING < opcode.made < TUPLE:
            return self.push(opcode.made)
        if op == b"q" or op == b"r" or op == b"p":      # BINPUT, LONG_BINPUT, PUT
            return self.number(argument)
        if op == 0x94:                                  # MEMOIZE
            return self.number(self.numbered)
        if op == b"2":                                  # DUP
            return self.push(self.top())
        if op == 0x95 and argument > <uint64_t>(self.size - self.at):
            self.fail(f"a frame that ends beyond the file's {self.size:,} bytes: it is cut short or damaged")
        if op == 0x80 and argument > LAST_PROTOCOL:
            self.fail(f"protocol {argument} of pickle; 0 to {LAST_PROTOCOL} are read")
        if op == b"." or op == b"0" and self.depth and self.stack[self.depth - 1] == MARK:  # POP takes marks too
            self.depth -= op == b"0"
            return 0
        bottom, end = self.lowest(opcode.taken), self.depth
        self.depth = bottom - (opcode.taken == ALL)
        if opcode.into == LIST and self.top() != LIST:
            self.fail(f"a list was expected, to append to, not {KINDS[self.top()].__name__}")
        if opcode.into == DICT or op == b"d":
            self.check_pairs(bottom, end, opcode.made == DICT or self.top() == DICT)
        # Tiny opcodes make large objects: a file that is little else is none of a snapshot.
        self.containers += opcode.made >= TUPLE
        if self.containers > self.size // CROWDED + FREE_CONTAINERS:
            self.fail(f"{self.containers:,} dicts and lists in a file of {self.size:,} bytes; {PLAIN}, with something "
                      "in them")
        return self.push(opcode.made) if opcode.made else 0

    cdef int push(self, int kind) noexcept:
        self.stack[self.depth] = <unsigned char>kind
        self.depth += 1
        return 0

    cdef int top(self) except -1:
        if not self.depth or self.stack[self.depth - 1] == MARK:
            self.fail("an object was expected on the stack, which is empty")
        return self.stack[self.depth - 1]

    cdef Py_ssize_t lowest(self, int taken) except -1:
        # Where the objects begin that an opcode takes.
        cdef Py_ssize_t bottom = self.depth
        while bottom and self.stack[bottom - 1] != MARK and (taken == ALL or self.depth - bottom < taken):
            bottom -= 1
        if taken == ALL and not bottom:
            self.fail("a mark was expected on the stack, and there is none")
        if taken > self.depth - bottom:
            self.fail(f"{taken} objects were expected on the stack, {self.depth - bottom} are there")
        return bottom

    cdef int check_pairs(self, Py_ssize_t first, Py_ssize_t end, bint in_dict) except -1:
        # A tuple of tuples, each of which holds the next one twice, takes for ever to hash.
        cdef Py_ssize_t key
        if not in_dict or (end - first) & 1:
            self.fail("a dict and pairs of a key and a value were expected")
        for key in range(first, end, 2):
            if self.stack[key] not in (INT, STR):
                self.fail(f"a dict's keys are str or int here, not {KINDS[self.stack[key]].__name__}")
        return 0

    cdef int numbered_kind(self, uint64_t number) except -1:
        if number > <uint64_t>self.size + FREE_NUMBERS or not self.memo[number]:
            self.fail(f"object {number:,} of the file was expected before, and is not there")
        return self.memo[number]

    cdef int number(self, uint64_t number) except -1:
        # pickle.Unpickler makes room for all numbers below.  Picklers count, and write some bytes for each.
        if number > self.numbered and number > <uint64_t>(self.size // NUMBERED + FREE_NUMBERS):
            self.fail(f"object {number:,} in a file of {self.size:,} bytes: it is damaged")
        self.numbered += not self.memo[number]
        self.memo[number] = <unsigned char>self.top()
        return 0


class PlainUnpickler(pickle.Unpickler):
    """Refuses what would import, whatever the scan has let pass.  Objects from outside it refuses anyway."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it would import {module}.{name}; {PLAIN}")


def loads(content: bytes, name: str = "the pickle") -> object:
    """The object that a pickle of plain data holds.

    Arguments:
        content: bytes, the whole pickle; what follows its end is ignored.
        name: str, the file, for errors.
    Raises:
        SnapshotError: it holds anything else, or is damaged; `offset` is the byte.  Nothing of it was run.
    """
    if not isinstance(content, bytes):
        raise TypeError(f"content is {type(content).__name__}; pass bytes")
    PickleScan().check(content, name)
    # pickle.Unpickler is given one frame: of a file in parts it would leave out bytes where frames overlap.
    parts = [content, len(content).to_bytes(8, "little"), b"\x95"]
    file = SimpleNamespace(read=lambda size: parts.pop(), readline=None)
    try:
        return PlainUnpickler(file).load()
    except UnicodeDecodeError as error:
        at = content.find(error.object) + error.start
        form = "in UTF-8" if error.encoding == "utf-8" else "with escapes"
        raise SnapshotError(f"{name}: at byte {at:,}: text {form} was expected ({error.reason})", at) from None
    except (ValueError, pickle.UnpicklingError) as error:
        raise SnapshotError(f"{name}: {error}") from None
