# Ranks of the host backend as they lie in memory that their processes share.
from libc.stdint cimport int64_t, uint64_t, uint32_t

cdef enum:
    MOST_RANKS = 16
    CAPACITY = 1 << 16  # bytes of a channel

cdef enum Lane:     # channels of a pair of ranks: NCCL orders collectives among themselves, and so it does transfers
    COLLECTIVE = 0
    PAIR = 1

cdef enum State:    # of a rank
    ABSENT = 0
    JOINED = 1
    CLOSED = 2
    ABORTED = 3

cdef struct Channel:        # from one rank to another: a ring of bytes with one writer and one reader
    long written            # bytes, ever; the writer's
    char[56] apart          # so that writer and reader share no cache line
    long read               # bytes, ever; the reader's
    char[56] apart_too
    char[CAPACITY] ring

cdef struct Shared:         # the head of the memory; the channels follow
    long size               # ranks; 0 before the first joined
    long joined             # how many
    long[MOST_RANKS] state
    long[MOST_RANKS] pid
    long[MOST_RANKS] started    # when the process did, in ticks: its number is given anew once it has ended

cdef struct Part:           # what goes between this rank and one other
    int peer
    bint sends
    char* at                # NULL: a reduction takes it out of the channel
    size_t nbytes
    size_t done
    bint begun              # the head of the message has passed

cdef struct Head:           # what each message begins with
    uint64_t nbytes
    uint64_t meaning        # of the operation: ranks that disagree find out

cdef struct Task:           # one operation of one rank
    Part* parts
    int count
    int lane
    uint64_t meaning
    bint reduces
    char* own               # this rank's summand
    char* out
    size_t nbytes           # of the result
    size_t done
    int datatype
    int op
    bint in_place           # what is written has to have been sent

cdef struct Trouble:
    int code                # of NCCL's results
    int peer
    Head theirs
    Head ours
