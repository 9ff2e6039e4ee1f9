"""Memory between processes: Buffers and Arrays that other processes open without a copy.

    import accelrt.sharing                 # before the first allocation

    queue.put(array)                       # multiprocessing, started by "spawn" or "forkserver"
    array = queue.get()                    # in another process: the same memory

    handle = array.share()                 # or by hand: a handle pickles, and travels in any way
    array = handle.open()

Importing this makes two things true of the process: pages that are allocated from then on can be mapped by
other processes (a page costs some microseconds more to make), and multiprocessing pickles Buffers and
Arrays by handle.

The owner's memory is not used again before the others have let go of it, and all of their work on it is
done; what another process opened stays valid where the owner dies, and the owner gets back what a dead
process had.  An event orders the use: work on the stream that was current where the memory was opened
follows that of the owner's stream before it was shared. What is done to the memory afterwards is the
programs' to order.  Whole pages are mapped, so memory beside what was shared can be read by the other
process too; it has to have the same user and multiprocessing's authkey.

handles   share() and open(), and what multiprocessing pickles
producer  the owner's side: the threads that hand memory to other processes; loans: what is lent
consumer  the other side: the threads that give memory back; leases: what is opened
wire      how two processes connect and prove themselves, and messages; packets: sockets and descriptors
mapping   exported pages, and pages of others at addresses of this process
tensors   torch's tensors, where accelrt is torch's allocator: their handles
counters  torch's counters of the tensors that were sent, of which a dead process's are taken back
threads   threads that outlive every exception
"""

from accelrt.sharing.handles import (
    MemoryHandle,
    PinnedHandle,
    cancel_unopened,
    ipc_collect,
    register_reductions,
    share,
    statistics,
)
from accelrt.sharing.mapping import share_pages

__all__ = ["MemoryHandle", "PinnedHandle", "cancel_unopened", "ipc_collect", "share", "statistics"]

share_pages()
register_reductions()
