"""Pickles of plain data: dict, list, tuple, str, int, float, bool and None, and nothing else.

This is an interpreter of its own for those opcodes of Python's pickle format (PEP 307, PEP 3154) that build such
data.  It has none of those that import or call, so that reading a file runs nothing of what is in it.  Whatever a file
declares is checked against what is left of it before memory is taken.
"""
from cpython.float cimport PyFloat_FromDouble
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from accelrt.errors import SnapshotError

cdef enum:
    INT_BYTES = 16     # of the widest integer
    TEXT_DIGITS = 48   # of the longest number in text
    LAST_PROTOCOL = 5
    CROWDED = 3        # bytes of a pickle for each dict or list in it, at least
    FREE_CONTAINERS = 1024

# Opcodes that import, call, or ask the reader for an object.
cdef dict REFUSED = {
    b"c": "GLOBAL", b"\x93": "STACK_GLOBAL", b"R": "REDUCE", b"b": "BUILD", b"i": "INST", b"o": "OBJ",
    b"\x81": "NEWOBJ", b"\x92": "NEWOBJ_EX", b"\x82": "EXT1", b"\x83": "EXT2", b"\x84": "EXT4", b"P": "PERSID",
    b"Q": "BINPERSID", b"\x97": "NEXT_BUFFER", b"\x98": "READONLY_BUFFER",
}
cdef dict UNWANTED = {
    b"B": "BINBYTES", b"C": "SHORT_BINBYTES", b"\x8e": "BINBYTES8", b"\x96": "BYTEARRAY8", b"\x8f": "EMPTY_SET",
    b"\x90": "ADDITEMS", b"\x91": "FROZENSET", b"S": "STRING", b"T": "BINSTRING", b"U": "SHORT_BINSTRING",
}
cdef str PLAIN = "a snapshot is a pickle of dict, list, tuple, str, int, float, bool and None alone"


cdef class PlainUnpickler:
    """One pickle being read.  `stack` is what is above the last mark; `below` are the stacks under the marks."""

    cdef bytes content
    cdef const unsigned char* data
    cdef Py_ssize_t size, at, opcode_at
    cdef Py_ssize_t containers
    cdef list stack, below, memo
    cdef str name

    def __cinit__(self):
        self.stack, self.below, self.memo = [], [], []

    cdef object load(self, bytes content, str name):
        self.content = content
        self.data = content
        self.size = len(content)
        self.name = name
        return self.run()

    cdef object fail(self, str what):
        raise SnapshotError(f"{self.name}: at byte {self.opcode_at:,}: {what}", self.opcode_at)

    cdef const unsigned char* take(self, uint64_t count) except NULL:
        # The next bytes; what they are said to be is not believed beyond the end of the file.
        cdef const unsigned char* found = self.data + self.at
        if count > <uint64_t>(self.size - self.at):
            self.fail(f"{count:,} more bytes were expected, {self.size - self.at:,} are left: the file is cut short "
                      "or damaged")
        self.at += <Py_ssize_t>count
        return found

    cdef uint64_t take_number(self, int width) except? 0:
        # Little-endian, 1 to 8 bytes.
        cdef const unsigned char* found = self.take(width)
        cdef uint64_t number = 0
        cdef int index
        for index in range(width):
            number |= <uint64_t>found[index] << (8 * index)
        return number

    cdef bytes take_line(self):
        # Text up to the end of the line, of a number in protocol 0.
        cdef Py_ssize_t end = self.content.find(b"\n", self.at, self.at + TEXT_DIGITS + 1)
        if end < 0:
            self.fail(f"a number of at most {TEXT_DIGITS} digits and a newline were expected")
        cdef bytes line = self.content[self.at:end]
        self.at = end + 1
        return line

    cdef object pop(self):
        if not self.stack:
            self.fail("an object was expected on the stack, which is empty")
        return self.stack.pop()

    cdef object top(self):
        if not self.stack:
            self.fail("an object was expected on the stack, which is empty")
        return self.stack[len(self.stack) - 1]

    cdef list pop_mark(self):
        if not self.below:
            self.fail("a mark was expected on the stack, and there is none")
        cdef list items = self.stack
        self.stack = <list>self.below.pop()
        return items

    cdef object contained(self, object container):
        # Tiny opcodes make large objects: a file that is little else is none of a snapshot.
        self.containers += 1
        if self.containers > self.size // CROWDED + FREE_CONTAINERS:
            self.fail(f"{self.containers:,} dicts and lists in a file of {self.size:,} bytes; {PLAIN}, with something "
                      "in them")
        return container

    # --- what each group of opcodes does; False where the opcode is of another group

    cdef bint number(self, int op) except -1:
        cdef uint64_t bits
        cdef double real
        if op == b"K":          # BININT1
            self.stack.append(self.take_number(1))
        elif op == 0x8a:        # LONG1
            self.stack.append(self.long_integer(self.take_number(1)))
        elif op == b"J":        # BININT
            self.stack.append(<int><uint32_t>self.take_number(4))
        elif op == b"M":        # BININT2
            self.stack.append(self.take_number(2))
        elif op == b"G":        # BINFLOAT, which is big-endian
            bits = int.from_bytes(self.take(8)[:8], "big")
            memcpy(&real, &bits, 8)
            self.stack.append(PyFloat_FromDouble(real))
        elif op == b"N":
            self.stack.append(None)
        elif op == 0x88 or op == 0x89:
            self.stack.append(op == 0x88)
        elif op == 0x8b:        # LONG4
            self.stack.append(self.long_integer(self.take_number(4)))
        elif op == b"I" or op == b"L" or op == b"F":
            self.stack.append(self.written_number(op, self.take_line()))
        else:
            return False
        return True

    cdef object long_integer(self, uint64_t width):
        if width > INT_BYTES:
            self.fail(f"an integer of {width:,} bytes, where {INT_BYTES} at most were expected")
        cdef const unsigned char* found
        cdef uint64_t low = 0
        cdef int index
        if width == 0:
            return 0
        found = self.take(width)
        if width < 8 and found[width - 1] < 128:
            for index in range(<int>width):
                low |= <uint64_t>found[index] << (8 * index)
            return low
        return int.from_bytes(found[:width], "little", signed=True)

    cdef object written_number(self, int op, bytes line):
        if op == b"I" and line in (b"00", b"01"):
            return line == b"01"
        if op == b"L":
            line = line.removesuffix(b"L")
        try:
            return float(line) if op == b"F" else int(line)
        except ValueError:
            return self.fail(f"a number was expected, not {line!r}")

    cdef bint text(self, int op) except -1:
        cdef uint64_t length
        cdef const unsigned char* found
        if op == 0x8c:          # SHORT_BINUNICODE
            length = self.take_number(1)
        elif op == b"X":        # BINUNICODE
            length = self.take_number(4)
        elif op == 0x8d:        # BINUNICODE8
            length = self.take_number(8)
        elif op == b"V":        # UNICODE, up to the end of the line
            self.stack.append(self.escaped_text())
            return True
        else:
            return False
        found = self.take(length)
        try:
            self.stack.append(PyUnicode_DecodeUTF8(<const char*>found, <Py_ssize_t>length, b"surrogatepass"))
        except UnicodeDecodeError as error:
            self.fail(f"text in UTF-8 was expected ({error.reason})")
        return True

    cdef object escaped_text(self):
        cdef Py_ssize_t start = self.at, end = self.content.find(b"\n", start)
        if end < 0:
            self.fail("text and a newline were expected: the file is cut short or damaged")
        self.at = end + 1
        try:
            return self.content[start:end].decode("raw-unicode-escape")
        except UnicodeDecodeError as error:
            return self.fail(f"text with escapes was expected ({error.reason})")

    cdef bint container(self, int op) except -1:
        cdef list items
        if op == b"}":
            self.stack.append(self.contained({}))
        elif op == b"u":        # SETITEMS
            items = self.pop_mark()
            self.set_items(self.top(), items)
        elif op == b"s":        # SETITEM
            items = [None, self.pop()]
            items[0] = self.pop()
            self.set_items(self.top(), items)
        elif op == b"]":
            self.stack.append(self.contained([]))
        elif op == b"e":        # APPENDS
            items = self.pop_mark()
            self.extend(self.top(), items)
        elif op == b"a":        # APPEND
            items = [self.pop()]
            self.extend(self.top(), items)
        elif op == b"d":        # DICT
            items = self.pop_mark()
            filled = self.contained({})
            self.set_items(filled, items)
            self.stack.append(filled)
        elif op == b"l":        # LIST
            items = self.pop_mark()
            self.stack.append(self.contained(items))
        else:
            return self.tuple_made(op)
        return True

    cdef int set_items(self, object target, list items) except -1:
        cdef Py_ssize_t index
        cdef dict filled
        if type(target) is not dict or len(items) & 1:
            self.fail("a dict and pairs of a key and a value were expected")
        filled = <dict>target
        for index in range(0, len(items), 2):
            key = items[index]
            if type(key) is not str and type(key) is not int:
                self.fail(f"a dict's keys are str or int here, not {type(key).__name__}")
            filled[key] = items[index + 1]
        return 0

    cdef int extend(self, object target, list items) except -1:
        if type(target) is not list:
            self.fail(f"a list was expected, to append to, not {type(target).__name__}")
        (<list>target).extend(items)
        return 0

    cdef bint tuple_made(self, int op) except -1:
        cdef list items
        cdef Py_ssize_t count
        if op == b")":
            self.stack.append(())
        elif op == b"t":        # TUPLE
            items = self.pop_mark()
            self.stack.append(tuple(items))
        elif 0x85 <= op <= 0x87:
            count = op - 0x84
            if len(self.stack) < count:
                self.fail(f"{count} objects were expected on the stack, {len(self.stack)} are there")
            items = self.stack[len(self.stack) - count:]
            del self.stack[len(self.stack) - count:]
            self.stack.append(tuple(items))
        else:
            return False
        return True

    cdef bint memory(self, int op) except -1:
        if op == b"h":          # BINGET
            self.stack.append(self.remembered(self.take_number(1)))
        elif op == b"j":        # LONG_BINGET
            self.stack.append(self.remembered(self.take_number(4)))
        elif op == 0x94:        # MEMOIZE
            self.memo.append(self.top())
        elif op == b"q":        # BINPUT
            self.remember(self.take_number(1))
        elif op == b"r":        # LONG_BINPUT
            self.remember(self.take_number(4))
        elif op == b"g":        # GET
            self.stack.append(self.remembered(self.line_index()))
        elif op == b"p":        # PUT
            self.remember(self.line_index())
        else:
            return False
        return True

    cdef uint64_t line_index(self) except? 0:
        cdef bytes line = self.take_line()
        if not line.isdigit() or len(line) > 18:
            self.fail(f"a number was expected, not {line!r}")
        return int(line)

    cdef object remembered(self, uint64_t index):
        cdef object found = NOTHING
        if index < <uint64_t>len(self.memo):
            found = self.memo[<Py_ssize_t>index]
        if found is NOTHING:
            self.fail(f"object {index:,} of the file was expected before, and is not there")
        return found

    cdef int remember(self, uint64_t index) except -1:
        # Every object takes an opcode, so that a number beyond the file's bytes is none of a pickler's.
        if index > <uint64_t>self.size:
            self.fail(f"object {index:,} in a file of {self.size:,} bytes: it is damaged")
        found = self.top()
        if index >= <uint64_t>len(self.memo):
            self.memo.extend([NOTHING] * (<Py_ssize_t>index + 1 - len(self.memo)))
        self.memo[<Py_ssize_t>index] = found
        return 0

    cdef bint control(self, int op) except -1:
        if op == b"(":
            self.below.append(self.stack)
            self.stack = []
        elif op == 0x95:        # FRAME: how many bytes the next opcodes have
            if self.take_number(8) > <uint64_t>(self.size - self.at):
                self.fail(f"a frame that ends beyond the file's {self.size:,} bytes: it is cut short or damaged")
        elif op == 0x80:        # PROTO
            found = self.take_number(1)
            if found > LAST_PROTOCOL:
                self.fail(f"protocol {found} of pickle; 0 to {LAST_PROTOCOL} are read")
        elif op == b"0":        # POP
            if self.stack:
                self.stack.pop()
            else:
                self.pop_mark()
        elif op == b"1":        # POP_MARK
            self.pop_mark()
        elif op == b"2":        # DUP
            self.stack.append(self.top())
        else:
            return False
        return True

    cdef object refuse(self, int op):
        cdef bytes code = bytes((op,))
        if code in REFUSED:
            self.fail(f"the opcode {REFUSED[code]} would import or call something; {PLAIN}, so nothing was run and "
                      "nothing loaded")
        if code in UNWANTED:
            self.fail(f"the opcode {UNWANTED[code]}; {PLAIN}")
        return self.fail(f"0x{op:02x} is no opcode of a pickle; {PLAIN}")

    cdef object run(self):
        cdef int op
        while True:
            self.opcode_at = self.at
            op = self.take(1)[0]
            if op == b".":
                break
            if not (self.memory(op) or self.number(op) or self.container(op) or self.text(op) or self.control(op)):
                self.refuse(op)
        if self.below or len(self.stack) != 1:
            self.fail("the pickle ends with other than one object on its stack")
        return self.stack.pop()


cdef object NOTHING = object()


def loads(content, name="the pickle"):
    """The object that a pickle of plain data holds.

    Arguments:
        content: bytes, the whole pickle; what follows its end is ignored.
        name: str, the file, for errors.
    Raises:
        SnapshotError: it holds anything else, or is damaged; `offset` is the byte.  Nothing of it was run.
    """
    if not isinstance(content, bytes):
        raise TypeError(f"content is {type(content).__name__}; pass bytes")
    return PlainUnpickler().load(content, name)
