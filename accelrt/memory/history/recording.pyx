"""The recorder: which events, stacks and tags the allocator keeps of what programs do; and the look through pickles of what
others recorded.

Nothing is paid while it is off and no tag was used: then no stand-in leads the fast path to it (allocator/pool.pyx).
"""
cimport cython
from _thread import allocate_lock, get_ident

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from accelrt.core.handle_map cimport AddressMap, map_find, map_insert, map_reserve
from accelrt.core.integers cimport exact_int
from accelrt.core.interpreter cimport holds_gil
from accelrt.core.locks cimport spin_lock, spin_unlock
from accelrt.core.process cimport FORK_HISTORY, at_fork
from accelrt.core.process import call_at_fork
from accelrt.devices.device cimport current_ordinal
from accelrt.errors import ArgumentError, SnapshotError
from accelrt.allocator.pool cimport MAX_DEVICES, pool_if_made, set_history
from accelrt.allocator.event_ring cimport (
    clear_ring, copy_some, exchange_tag, first_event, host_history, nest_tag, read_tag, record_annotation, set_capture,
    set_host_history,
)
from accelrt.allocator.history_types cimport (
    ANNOTATION_BEGIN, ANNOTATION_END, CONTEXT_NONE, MAX_TAGS, Event, History, HistorySettings, TagFigures,
)
from accelrt.allocator.types cimport Pool
from accelrt.status cimport refuse_copy

cdef extern from "stack_walk.h":
    """
    #include "stack_walk.h"
    /* A name of C++ as it is written in source; to be freed, NULL where it is none.  libstdc++ has the function and is there
     * where a library of C++ is. */
    static char *plain_name(const char *symbol) {
        typedef char *(*Demangle)(const char *, char *, size_t *, int *);
        static Demangle demangle;
        int status = 0;
        if (strncmp(symbol, "_Z", 2)) return NULL;
        if (!demangle) {
            void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
            demangle = (Demangle)dlsym(library ? library : RTLD_DEFAULT, "__cxa_demangle");
        }
        return demangle ? demangle(symbol, NULL, NULL, &status) : NULL;
    }
    static PyObject *name_of_address(const void *address, const char **file) {
        Dl_info found;
        char place[32];
        *file = "";
        if (!dladdr(address, &found)) return PyUnicode_FromFormat("%p", address);
        *file = found.dli_fname ? found.dli_fname : "";
        if (!found.dli_sname) { /* of a static function, say */
            snprintf(place, sizeof(place), "+0x%zx", (size_t)((const char *)address - (const char *)found.dli_fbase));
            return PyUnicode_FromString(place);
        }
        char *plain = plain_name(found.dli_sname);
        const char *name = plain ? plain : found.dli_sname;
        PyObject *text = PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "replace");
        free(plain);
        return text;
    }
    """
    enum:
        STACK_FRAMES
        PYTHON_FRAME
        C_FRAME
        NAMED_FRAME
        ENTRY_FRAME
    ctypedef struct StackFrame:
        const void* code
        int offset
        int kind
    int walking  # of the calling thread
    uint32_t walk_stack(const char* entry, StackFrame* frames) noexcept nogil
    void set_c_frames(bint are_recorded) noexcept nogil
    object name_of_address(const void* address, const char** file)

cdef extern from "Python.h":
    void keep_alive "Py_INCREF" (void* code) noexcept nogil
    int PyCode_Addr2Line(void* code, int offset)


cdef enum:
    DEFAULT_ENTRIES = 1000000
    MOST_ENTRIES = 1 << 24    # 1 GiB of events
    MOST_ANNOTATIONS = 1 << 20
    CHUNK = 4096              # events that are copied while the history's lock is held
    MOST_STACKS = 1 << 20

# A stack, kept once, and for ever with its code objects: programs have few.
cdef struct KeptStack:
    uint32_t number
    uint32_t count
    StackFrame* frames  # innermost first

cdef int stack_guard = 0            # a spin lock over both maps; held for no call that can wait
cdef AddressMap stacks_by_frames    # the hash of the frames, or one of the numbers behind it -> KeptStack
cdef AddressMap stacks_by_number

cdef HistorySettings in_force   # under turn
cdef bint is_on = False       # the same
cdef object turn = allocate_lock()
cdef dict cached_frames = {}  # number of a stack -> its list of dicts
cdef list tag_names = [""]
cdef dict tag_numbers = {}
cdef dict nested_numbers = {}  # (number of a tag, number of what it is within) -> number of both
cdef dict inner_of = {}        # such a number -> that of the tag, and of what it is within
cdef dict outer_of = {}
cdef list annotation_names = [""]
cdef dict annotation_numbers = {}

cdef str INTERPRETER_LOOP = "_PyEval_EvalFrameDefault"
cdef dict CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}


# stub: HOST: int
HOST = -1  # in place of an ordinal: page-locked memory


cdef History* history_of(int device) noexcept nogil:
    cdef Pool* pool
    if device < 0:
        return &host_history if host_history.events != NULL else NULL
    pool = pool_if_made(device)
    return NULL if pool == NULL else pool.history


cdef int put_into_force(HistorySettings settings) except -1:
    # Under turn.
    global in_force
    cdef HistorySettings before = in_force
    cdef int code
    in_force = settings
    with nogil:
        code = set_history(&settings)
        if code:
            set_history(&before)
    if code:
        in_force = before
        size = settings.capacity * sizeof(Event)
        raise MemoryError(f"the host has no memory for {settings.capacity} events, {size} bytes")
    return 0


def record_history(
    enabled: Literal["all", "state"] | bool | None = "all", context: Literal["all", "alloc", "state"] | None = "all",
    stacks: Literal["python", "all"] = "python", max_entries: int = DEFAULT_ENTRIES,
    device: DeviceArgument | None = None, clear_history: bool = False, skip_actions: Sequence[str] | None = None,
    record_pinned_host_memory: bool = False, record_cuda: bool = True,
) -> None:
    """Records what happens to device memory: torch.cuda.memory._record_memory_history.

    Arguments:
        enabled: "all" records events; "state" keeps the stacks of live memory alone; None ends the recording, and what
            was recorded stays.  True is "all", False is None.
        context: which stacks are kept: None, none; "state", those of live memory; "alloc", those of allocations in the
            events too; "all", those of frees as well.
        stacks: "python", frames of Python, which a thread has while it holds the GIL; "all", those of C and C++ too,
            where they were called.
        max_entries: int, events that each device keeps, 64 bytes each, of which those reached take memory; the
            newest stay, and dropped_events says how many are gone.  More than 2**24 count as 2**24.
        device: for torch's sake; all devices are recorded.
        clear_history: whether what was recorded before goes.
        skip_actions: sequence of str, actions of events that are not kept: "free_requested", say.
        record_pinned_host_memory: bool, whether page-locked memory is recorded too, as many events of it: snapshots have
            them in "host_traces", and its segments in "host_segments".
        record_cuda: bool, whether device memory is; False records page-locked memory alone.
    Raises:
        ValueError, TypeError: an argument is none of those.
        MemoryError: the host has no memory for the events; the recording goes on as before.

    A frame of a stack is kept as its code object and place, so the cost of an event grows with the depth of the stack, up
    to 128 frames; the outermost beyond that are left out.  Memory of other backends (select_backend) is not recorded.
    """
    global is_on
    cdef HistorySettings settings
    cdef int ordinal
    if enabled is True or enabled is False:
        enabled = "all" if enabled else None
    if enabled not in (None, "state", "all"):
        raise ArgumentError(f"enabled is {enabled!r}; pass None, 'state' or 'all'")
    if context is not None and not isinstance(context, str) or context not in CONTEXTS:
        raise ArgumentError(f"context is {context!r}; pass None, 'state', 'alloc' or 'all'")
    if stacks not in ("python", "all"):
        raise ArgumentError(f"stacks is {stacks!r}; pass 'python' or 'all'")
    max_entries = exact_int(max_entries, "max_entries", "a number of events as int")
    if max_entries < 1:
        raise ArgumentError(f"max_entries is {max_entries}; keep one event or more")
    skipped = bits_of(skip_actions)
    with turn:
        settings.tags = in_force.tags
        settings.records = enabled == "all" and record_cuda
        settings.skipped = skipped
        settings.context = CONTEXTS[context] if enabled is not None and record_cuda else CONTEXT_NONE
        settings.capacity = min(max_entries, MOST_ENTRIES)
        set_c_frames(stacks == "all")
        put_into_force(settings)
        if set_host_history(record_pinned_host_memory and enabled == "all", CONTEXTS[context], settings.capacity):
            raise MemoryError(f"the host has no memory for {settings.capacity} events of page-locked memory")
        host_history.skipped = skipped
        is_on = enabled is not None
        if clear_history:
            for ordinal in range(HOST, MAX_DEVICES):
                if history_of(ordinal) != NULL:
                    clear_ring(history_of(ordinal))


cdef uint32_t bits_of(object actions) except? 0:
    cdef uint32_t bits = 0
    if not actions:
        return 0
    from accelrt.memory.history.memory_history import ACTIONS  # NumPy's, which takes long to import

    if isinstance(actions, str) or not hasattr(actions, "__iter__"):
        raise ArgumentError(f"skip_actions is {actions!r}; pass a list of actions, such as [{actions!r}]")
    for action in actions:
        if action not in ACTIONS:
            raise ArgumentError(f"skip_actions has {action!r}; an action is one of {', '.join(ACTIONS)}")
        bits |= <uint32_t>1 << <int>ACTIONS.index(action)
    return bits


def is_recording(device: DeviceArgument | None = None) -> bool:
    """Tells whether record_history is on, for stacks or for events."""
    return is_on


cdef uint32_t number_of(str name, list names, dict numbers, object most, str what) except 0:
    number = numbers.get(name)
    if number is None:
        if len(names) >= most:
            raise ValueError(f"{name!r} would be {what} number {len(names)}; {most - 1} different ones are the most")
        names.append(name)
        number = numbers[name] = len(names) - 1
    return number


cdef uint32_t nested(uint32_t inner, uint32_t outer) except 0:
    # The number of a tag within another one, and so on.  One that is within itself counts once.
    cdef uint32_t number, around = outer
    while around:
        if inner == inner_of.get(around, around):
            return outer
        around = outer_of.get(around, 0)
    with turn:
        number = nested_numbers.get((inner, outer), 0)
        if number == 0:
            if len(tag_names) >= MAX_TAGS:
                raise ValueError(f"{tag_names[inner]!r} would be tag number {len(tag_names)}; {MAX_TAGS - 1} different "
                                 "ones, with those within others, are the most")
            number = len(tag_names)
            nest_tag(number, inner, outer)
            tag_names.append(tag_names[inner])
            inner_of[number], outer_of[number] = inner, outer
            nested_numbers[inner, outer] = number
    return number


cdef class tag:
    """tag(name, *, nested=False)\n--\n\n\
    Gives what the thread allocates inside a name, whose bytes memory_stats, snapshots and errors tell.

        with accelrt.memory.tag("kv cache"):
            keys = accelrt.empty((1024, 1024), dtype="float16")

    Arguments:
        name: str, not empty; memory keeps it until it is freed, wherever that happens.  Of tags inside tags the innermost
            counts.  A process may use 4,095 different names.
        nested: bool, whether memory counts for the tags that this one is entered in as well, so that an outer tag has
            the sum of what is in it.  The innermost is what blocks, snapshots and errors name.
    Raises:
        TypeError, ValueError: name is no str, is empty, or is one too many.
        MemoryError: the host has no memory for the figures.

    It can be entered again, also while it is entered.  Memory that nogil code allocates on the thread counts too.
    """

    cdef readonly str name
    cdef readonly bint nested
    cdef uint32_t number
    cdef list before

    def __init__(self, name: str, *, bint nested=False) -> None:
        global in_force
        cdef HistorySettings settings
        if not isinstance(name, str):
            raise TypeError(f"name is {name!r} of type {type(name).__name__}; pass the tag's name as str")
        if not name:
            raise ValueError("name is empty; pass the tag's name")
        self.name = str(name)
        self.nested = nested
        self.before = []
        with turn:
            self.number = number_of(self.name, tag_names, tag_numbers, MAX_TAGS, "tag")
            if not in_force.tags:
                settings = in_force
                settings.tags = True
                put_into_force(settings)

    def __enter__(self) -> tag:
        cdef uint32_t before = exchange_tag(self.number)
        self.before.append((get_ident(), before))
        if self.nested and before:
            try:
                exchange_tag(nested(self.number, before))
            except BaseException:
                self.before.pop()
                exchange_tag(before)
                raise
        return self

    def __exit__(self, *exception) -> None:
        here = get_ident()
        for index in range(len(self.before) - 1, -1, -1):
            if self.before[index][0] == here:
                exchange_tag(self.before.pop(index)[1])
                return
        raise RuntimeError(f"the tag {self.name!r} was not entered on this thread; leave it where it was entered")

    def __reduce__(self):
        refuse_copy(self, "it is entered on threads; make another with the same name")

    def __repr__(self):
        return f"<accelrt.memory.tag {self.name!r}>"


cdef class annotate:
    """annotate(name)\n--\n\n\
    Marks a part of the program in the recorded events: torch's external annotations.

        with accelrt.memory.annotate("forward"):
            ...

    Arguments:
        name: str.
    Raises:
        TypeError: name is no str.
        ValueError: it would be the 1,048,576th different name.
    """

    cdef readonly str name
    cdef uint32_t number

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name is {name!r} of type {type(name).__name__}; pass the annotation's name as str")
        self.name = str(name)
        with turn:
            self.number = number_of(self.name, annotation_names, annotation_numbers, MOST_ANNOTATIONS, "annotation")

    def __enter__(self) -> annotate:
        mark(ANNOTATION_BEGIN, self.number)
        return self

    def __exit__(self, *exception) -> None:
        mark(ANNOTATION_END, self.number)

    def __reduce__(self):
        refuse_copy(self, "it is entered on threads; make another with the same name")

    def __repr__(self):
        return f"<accelrt.memory.annotate {self.name!r}>"


cdef void mark(int action, uint32_t number) noexcept:
    # Once: in the history of the current device, or of the first that has one.
    cdef int here = 0
    if not in_force.records:
        return
    if current_ordinal(&here) or not 0 <= here < MAX_DEVICES or history_of(here) == NULL:
        here = 0
        while here < MAX_DEVICES and history_of(here) == NULL:
            here += 1
    if here < MAX_DEVICES:
        record_annotation(pool_if_made(here), action, number)


# --- reading -----------------------------------------------------------------------------------------------------

def copy_events(int device, uint64_t start, uint64_t count) -> tuple[bytes, int, int]:
    """Copies events of a device.

    Arguments:
        device: int, an ordinal.
        start: int, the number of the first; those before the oldest that is kept are left out.
        count: int, the most.
    Returns:
        (bytes, int, int): the events, 64 bytes each (struct Event, history_types.pxd); the numbers of the first of
        them and of the one after the last.
    """
    cdef History* history = history_of(device)
    cdef Event* events
    cdef uint64_t first, at, end, begin
    cdef size_t done = 0, count_read = 1
    if history == NULL:
        return b"", start, start
    first = first_event(history, &end, &begin)
    first = min(max(first, start), end)
    count = min(count, end - first)
    copied = PyBytes_FromStringAndSize(NULL, count * sizeof(Event))
    events = <Event*>PyBytes_AS_STRING(copied)
    with nogil:
        while done < count and count_read:
            at = copy_some(history, first + done, min(count - done, <size_t>CHUNK), events + done, &count_read)
            if at != first + done and done:  # overtaken: begin again with what is still kept
                first = at
                done = 0
                count_read = 1
                continue
            if done == 0:
                first = at
            done += count_read
    return copied[: done * sizeof(Event)], first, first + done


def event_range(int device) -> tuple[int, int]:
    """(number of the oldest event that is kept, number of the next); (0, 0) where nothing was recorded."""
    cdef History* history = history_of(device)
    cdef uint64_t first, end, begin
    if history == NULL:
        return 0, 0
    first = first_event(history, &end, &begin)
    return first, end


def has_host_history() -> bool:
    """Tells whether page-locked memory is recorded, or was and has events that are kept."""
    first, end = event_range(HOST)
    return host_history.records or first < end


def history_begin(int device) -> int:
    """The number of a device's first event since the history was cleared, whether it is kept or not."""
    cdef History* history = history_of(device)
    cdef uint64_t end, begin = 0
    if history != NULL:
        first_event(history, &end, &begin)
    return begin


def dropped_events(device: int | None = None) -> int:
    """Events that were recorded of a device, or of all, since the history was cleared, and are kept no longer."""
    ordinals = range(MAX_DEVICES) if device is None else (exact_int(device, "device", "an ordinal as int"),)
    return sum([max(event_range(ordinal)[0] - history_begin(ordinal), 0) for ordinal in ordinals])


cdef uint64_t hash_frames(const StackFrame* frames, uint32_t count) noexcept nogil:
    cdef uint64_t hashed = count
    cdef uint32_t index
    for index in range(count):
        hashed = (hashed ^ <uintptr_t>frames[index].code) * 0x9E3779B97F4A7C15ULL
        hashed = (hashed ^ (hashed >> 29) ^ <uint32_t>frames[index].offset) * 0xBF58476D1CE4E5B9ULL
    return hashed ^ (hashed >> 32)


cdef KeptStack* add_stack(uint64_t key, const StackFrame* frames, uint32_t count) noexcept nogil:
    # Under the guard, and with the GIL if a frame is Python's; NULL if there are too many, or the host has no memory.
    cdef KeptStack* stack = NULL
    cdef uint32_t index
    if (stacks_by_number.count < MOST_STACKS and map_reserve(&stacks_by_frames) == 0
            and map_reserve(&stacks_by_number) == 0):
        stack = <KeptStack*>malloc(sizeof(KeptStack) + count * sizeof(StackFrame))
    if stack == NULL:
        return NULL
    stack.number, stack.count, stack.frames = <uint32_t>stacks_by_number.count + 1, count, <StackFrame*>(stack + 1)
    memcpy(stack.frames, frames, count * sizeof(StackFrame))
    for index in range(count):
        if frames[index].kind == PYTHON_FRAME or frames[index].kind == ENTRY_FRAME:
            keep_alive(<void*>frames[index].code)
    map_insert(&stacks_by_frames, key, stack)
    map_insert(&stacks_by_number, stack.number, stack)
    return stack


cdef uint32_t take_stack_of_thread(const char* entry, uint32_t before) noexcept nogil:
    # The number of the calling thread's stack, 0 if it cannot be kept.  A thread that has released the GIL keeps what it
    # took before (0: nothing), in the same operation.
    cdef StackFrame[STACK_FRAMES] frames
    cdef KeptStack* stack
    cdef uint64_t key
    cdef uint32_t count
    if before and not holds_gil():
        return before
    count = walk_stack(entry, frames)
    if count == 0:
        return 0
    key = hash_frames(frames, count)
    spin_lock(&stack_guard)
    stack = <KeptStack*>map_find(&stacks_by_frames, key)
    while stack != NULL and (stack.count != count or memcmp(stack.frames, frames, count * sizeof(StackFrame))):
        key += 1
        stack = <KeptStack*>map_find(&stacks_by_frames, key)
    if stack == NULL:
        stack = add_stack(key, frames, count)
    spin_unlock(&stack_guard)
    return stack.number if stack != NULL else 0


cdef void forget_stack_guard() noexcept nogil:
    global stack_guard, walking
    stack_guard = 0
    walking = 0


cdef dict read_frame(const StackFrame* frame):
    cdef const char* file
    if frame.kind == C_FRAME:
        name = name_of_address(frame.code, &file)
        return {"filename": file.decode("utf-8", "replace"), "line": 0, "name": name}
    if frame.kind == NAMED_FRAME:
        return {"filename": "accelrt", "line": 0, "name": (<const char*>frame.code).decode()}
    code = <object>frame.code
    line = PyCode_Addr2Line(<void*>frame.code, frame.offset)
    return {"filename": code.co_filename, "line": line, "name": code.co_name}


cdef list read_frames(uint32_t number):
    # Python's frames stand behind C's.  Each of the interpreter's loops is replaced by the frames that it ran: those up to
    # the one that C called.
    cdef const KeptStack* stack
    cdef const StackFrame* frames
    cdef uint32_t index, python = 0, count
    cdef dict frame
    spin_lock(&stack_guard)
    stack = <KeptStack*>map_find(&stacks_by_number, number)
    spin_unlock(&stack_guard)
    if stack == NULL:
        return []
    frames, count = stack.frames, stack.count
    while python < count and frames[python].kind in (C_FRAME, NAMED_FRAME):
        python += 1
    shown = []
    for index in range(python):
        frame = read_frame(&frames[index])
        if frame["name"] != INTERPRETER_LOOP:
            shown.append(frame)
            continue
        while python < count:
            shown.append(read_frame(&frames[python]))
            python += 1
            if frames[python - 1].kind == ENTRY_FRAME:
                break
    return shown + [read_frame(&frames[index]) for index in range(python, count)]


def frames_of(number: int) -> list[dict[str, Any]]:
    """The frames of a stack, innermost first.

    Arguments:
        number: int, the stack of an event or a block; 0: none.
    Returns:
        list of dicts "filename", "line", "name"; the same list each time: not to be changed.
    """
    frames = cached_frames.get(number)
    if frames is None:
        frames = cached_frames[number] = read_frames(number)
    return frames


def tag_name(number: int) -> str:
    """The name of a tag by its number; "" for 0."""
    return tag_names[number]


def annotation_name(number: int) -> str:
    """The name of an annotation by its number."""
    return annotation_names[number]


cdef dict tag_counter(int64_t now, int64_t peak, int64_t allocated):
    return {"current": now, "peak": peak, "allocated": allocated, "freed": allocated - now}


def tag_stats(int device) -> dict[str, dict[str, dict[str, int]]]:
    """The figures of each tag that a device's memory has had.

    Returns:
        dict: name -> {"allocated_bytes": ..., "requested_bytes": ..., "allocation": ...}, each a dict of current, peak,
        allocated and freed; allocated_bytes are of whole blocks, requested_bytes what was asked for; peaks since the start
        or reset_peak_memory_stats.
    """
    cdef History* history = history_of(device)
    cdef TagFigures figures
    cdef uint32_t number
    by_tag = {}
    for number in range(1, len(tag_names) if history != NULL else 1):
        figures = read_tag(history, number)
        if figures.allocated_blocks:
            by_tag[tag_names[number]] = {
                "allocated_bytes": tag_counter(figures.bytes_, figures.peak_bytes, figures.allocated_bytes),
                "requested_bytes": tag_counter(figures.requested, figures.peak_requested, figures.allocated_requested),
                "allocation": tag_counter(figures.blocks, figures.peak_blocks, figures.allocated_blocks),
            }
    return by_tag


# stub: def name_all(segments: list[dict[str, Any]]) -> list[dict[str, Any]]: ...
def name_all(list segments) -> list[dict[str, Any]]:
    """Puts frames and names for the numbers of stacks and tags in segments of allocator/readers; the list."""
    cdef dict segment, block
    for segment in segments:
        segment["frames"] = frames_of(segment["frames"])
        for block in segment["blocks"]:
            block["frames"] = frames_of(block["frames"])
            block["tag"] = tag_names[block["tag"]]
    return segments


memset(&in_force, 0, sizeof(in_force))
in_force.capacity = DEFAULT_ENTRIES
set_capture(take_stack_of_thread)
at_fork("memory.history.recording", FORK_HISTORY, NULL, NULL, &forget_stack_guard)


def _begin_anew():
    global turn
    turn = allocate_lock()


call_at_fork("memory.history.recording", "history", child=_begin_anew)


# --- pickles of plain data ----------------------------------------------------------------------------------------------
# A snapshot that comes as a pickle is looked through before pickle.Unpickler reads it (plain_pickle.py), in one pass that
# follows what kind of object each opcode makes.  What a small file could have pickle.Unpickler do is refused: to import and
# call, to make room for as many objects as a number says, to hash keys that take ever longer.  What opcodes take and make is
# pickletools' table.

cdef enum:
    INT_BYTES = 16     # of the widest integer
    TEXT_DIGITS = 48   # of the longest number in text
    LAST_PROTOCOL = 5
    CROWDED = 3        # bytes of a pickle for each dict, list or tuple in it, at least
    FREE_CONTAINERS = 1024
    NUMBERED = 5       # bytes of a pickle for each object with a number from FREE_NUMBERS on, at least
    FREE_NUMBERS = 256
    ALL = -1           # of Opcode.pops: everything above the last mark
    LINE = -1          # of Opcode.argument: text up to the end of the line

cdef enum:  # kinds of objects, those of KINDS
    NOTHING, MARK, INT, STR, BOOL, FLOAT, NONE, TUPLE, LIST, DICT

cdef tuple KINDS = ()  # by number; with OPCODES from the first pickle on, for pickletools takes long to import
cdef object turn_of_table = object()
cdef bytes NUMBER_LETTERS = b"+-.0123456789aefinL"
cdef str PLAIN = "a snapshot is a pickle of dict, list, tuple, str, int, float, bool and None alone"

cdef struct Opcode:
    bint plain       # makes nothing but plain data
    int argument     # its bytes; LINE, or as in pickletools -2 to -5: a length and so many bytes
    int pops         # objects from the top of the stack
    int into         # LIST or DICT: what is below them on the stack, stays there and holds them; else NOTHING
    int pushes       # kind of the object that is put on the stack

cdef Opcode[256] OPCODES
cdef int[6] LENGTH_BYTES = [0, 0, 1, 4, 4, 8]  # by -argument


cdef int kind_of(object described, tuple kinds):
    kind = int if described.obtype == (int, bool) else described.obtype
    return kinds.index(kind) if kind in kinds else NOTHING


cdef int read_table() except -1:
    global KINDS
    cdef Opcode* opcode
    cdef tuple kinds
    import pickletools

    kinds = (None, pickletools.StackObject, int, str, bool, float, type(None), tuple, list, dict)
    for each in pickletools.opcodes:
        opcode = &OPCODES[ord(each.code)]
        opcode.argument = each.arg.n if each.arg else 0
        opcode.pops = ALL if pickletools.stackslice in each.stack_before else each.stack_before.count(pickletools.anyobject)
        if each.stack_before[:1] in ([pickletools.pylist], [pickletools.pydict]):
            opcode.into = kind_of(each.stack_before[0], kinds)
        elif each.stack_after:
            opcode.pushes = kind_of(each.stack_after[0], kinds)
        opcode.plain = (opcode.into or opcode.pushes or not each.stack_after or
                        each.name in ("GET", "BINGET", "LONG_BINGET", "MEMOIZE", "DUP"))
    KINDS = kinds
    return 0


# stub: class PickleScan:
@cython.final
cdef class PickleScan:
    """One pickle that is looked through; `stack` and `memo` have the kinds of what pickle.Unpickler will have there."""

    cdef bytes content
    cdef const unsigned char* data
    cdef unsigned char* stack
    cdef unsigned char* memo
    cdef Py_ssize_t size, at, opcode_at, depth, containers
    cdef uint64_t numbered  # objects in the memo
    cdef str name

    def __dealloc__(self):
        free(self.stack)
        free(self.memo)

    cdef object check(self, bytes content, str name):
        cdef int op = 0
        self.content, self.name = content, name
        self.data, self.size = content, len(content)
        # No opcode adds more than one object to either.  Pages that stay untouched take no memory.
        self.stack = <unsigned char*>malloc(self.size + 1)
        self.memo = <unsigned char*>calloc(self.size + FREE_NUMBERS + 1, 1)
        if self.stack == NULL or self.memo == NULL:
            raise MemoryError(f"{self.name}: no host memory to look through {self.size:,} bytes")
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
        import pickletools

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
            if OPCODES[op].pushes == INT and number > INT_BYTES:
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
        if opcode.pops == 0 and NOTHING < opcode.pushes < TUPLE:
            return self.push(opcode.pushes)
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
        bottom, end = self.lowest(opcode.pops), self.depth
        self.depth = bottom - (opcode.pops == ALL)
        if opcode.into == LIST and self.top() != LIST:
            self.fail(f"a list was expected, to append to, not {KINDS[self.top()].__name__}")
        if opcode.into == DICT or op == b"d":
            self.check_pairs(bottom, end, opcode.pushes == DICT or self.top() == DICT)
        # Tiny opcodes make large objects: a file that is little else is none of a snapshot.
        self.containers += opcode.pushes >= TUPLE
        if self.containers > self.size // CROWDED + FREE_CONTAINERS:
            self.fail(f"{self.containers:,} dicts and lists in a file of {self.size:,} bytes; {PLAIN}, with something "
                      "in them")
        return self.push(opcode.pushes) if opcode.pushes else 0

    cdef int push(self, int kind) noexcept:
        self.stack[self.depth] = <unsigned char>kind
        self.depth += 1
        return 0

    cdef int top(self) except -1:
        if not self.depth or self.stack[self.depth - 1] == MARK:
            self.fail("an object was expected on the stack, which is empty")
        return self.stack[self.depth - 1]

    cdef Py_ssize_t lowest(self, int pops) except -1:
        # Where the objects begin that an opcode takes.
        cdef Py_ssize_t bottom = self.depth
        while bottom and self.stack[bottom - 1] != MARK and (pops == ALL or self.depth - bottom < pops):
            bottom -= 1
        if pops == ALL and not bottom:
            self.fail("a mark was expected on the stack, and there is none")
        if pops > self.depth - bottom:
            self.fail(f"{pops} objects were expected on the stack, {self.depth - bottom} are there")
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


# stub: PLAIN_DATA: str
PLAIN_DATA = PLAIN


def check_pickle(bytes content not None, str name not None) -> None:
    """Looks through a pickle.

    Arguments:
        content: bytes, the whole pickle; what follows its end is ignored.
        name: str, the file, for errors.
    Raises:
        SnapshotError: it holds anything but plain data, or is damaged; `offset` is the byte.
    """
    with cython.critical_section(turn_of_table):
        if not KINDS:
            read_table()
    PickleScan().check(content, name)
