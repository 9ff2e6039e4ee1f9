"""KeyboardInterrupt at every place of what takes descriptors and handles: each is owned, or was not taken."""

import os
import pickle
import socket
import sys

import pytest
from child import in_fork
from every_bytecode import Held, interrupt_everywhere

from accelrt.core.process import Opener, Owned, open_descriptor, open_pidfd, pipe, receive, take_over
from accelrt.sharing import mapping

pytestmark = pytest.mark.own_process
THIS = [sys.modules[__name__]]


def test_a_bare_descriptor_is_lost_at_one_place_which_the_harness_finds(tmp_path):
    (tmp_path / "file").write_bytes(b"1234")
    lost = []

    def operation(_):
        number = os.open(tmp_path / "file", os.O_RDONLY)
        os.close(number)

    def check(_):
        mine = [fd for fd in os.listdir("/proc/self/fd") if points_to(fd, tmp_path / "file")]
        lost.extend(mine)
        for fd in mine:
            os.close(int(fd))

    reached, escaped = interrupt_everywhere(operation, THIS, check=check)
    assert reached == escaped == 3  # the entry, behind os.open, behind os.close
    assert len(lost) == 1


def points_to(fd, path):
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(path)
    except OSError:
        return False


def use_descriptors(path):
    with open_descriptor(path, os.O_RDONLY) as one, one.duplicate() as other:
        assert os.pread(other.fileno(), 4, 0) == b"1234"
    dropped = open_descriptor(path, os.O_RDONLY)
    dropped.fileno()
    reading, writing = pipe()
    os.write(writing.fileno(), b"x")
    assert os.read(reading.fileno(), 1) == b"x"
    with open(path, "rb", opener=Opener(os.O_NOFOLLOW)) as file:
        assert file.read() == b"1234"


def pass_descriptors(path):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right, open_descriptor(path, os.O_RDONLY) as file:
        socket.send_fds(left, [b"three"], [file.fileno()] * 3)
        data, files, flags = receive(right, 10, 3)
        assert data == b"three"
        assert not flags & socket.MSG_CTRUNC
        assert [os.pread(each.fileno(), 1, 1) for each in files] == [b"2"] * 3
        assert not any(os.get_inheritable(each.fileno()) for each in files)


def meet():
    """A listener, and the two ends of a connection through it."""
    name = f"accelrt-test-{os.getpid()}"
    listener = mapping.Listener(name)
    return listener, mapping.connect(name, mapping.FOREVER), listener.accept()


def pass_packets(path):
    _, ours, theirs = meet()
    file, life = open_descriptor(path, os.O_RDONLY), ours.open_life() or open_pidfd(os.getpid())
    assert os.readlink(f"/proc/self/fd/{life.fileno()}") in ("anon_inode:[pidfd]", "pidfd:[pidfd]")
    ours.send(b"two", [file.fileno()] * 2)
    packet, files = theirs.receive()
    assert packet == b"two"
    assert [os.pread(each.fileno(), 1, 3) for each in files] == [b"4"] * 2
    files.pop()
    ours.close()
    assert theirs.receive() == (b"", [])


@pytest.mark.parametrize(
    ("operation", "least"), [(use_descriptors, 15), (pass_descriptors, 15), (pass_packets, 20)]
)
def test_descriptors_are_never_lost(operation, least, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    held = Held(tmp_path) if operation is use_descriptors else Held()
    reached, escaped = interrupt_everywhere(operation, THIS, prepare=lambda: path, check=held.check)
    assert reached == escaped > least


def test_a_forked_child_has_no_sockets_and_closes_none():
    ends = meet()
    numbers = [each.fileno() for each in ends]

    def child():
        assert [each.fileno() for each in ends] == [-1] * 3
        taken = [open_descriptor(os.devnull, os.O_RDONLY)]
        while not {each.fileno() for each in taken} >= set(numbers):  # lower ones may be free too
            taken.append(open_descriptor(os.devnull, os.O_RDONLY))
            assert len(taken) < 256
        for end in ends:
            end.close()
        assert all(os.fstat(each.fileno()) for each in taken)

    assert in_fork(child) == 0
    ends[1].send(b"still ours")
    assert ends[2].receive()[0] == b"still ours"


class Library:
    """Functions that hand out numbers, and know which are out."""

    def __init__(self):
        self.out = {}
        self.take = self.out.setdefault  # compiled functions, as a library's are
        self.release = self.out.pop


def test_what_is_owned_is_given_back_once():
    def operation(library):
        with_close = Owned(library.take, (1, 1), library.release)
        assert with_close.value == 1
        with_close.close()
        with_close.close()
        dropped = Owned(library.take, (2, 2), library.release)
        assert list(library.out) == [dropped.value]

    def check(library):
        assert not library.out

    reached, escaped = interrupt_everywhere(operation, THIS, prepare=Library, check=check)
    assert reached == escaped > 5


def test_what_is_held_is_given_back_by_the_last_that_holds_it():
    library = Library()
    owned = Owned(library.take, (1, 1), library.release)
    with owned.hold() as first, owned.hold() as second:
        assert first == second == 1
        owned.close()
        assert owned.value is None
        with owned.hold() as third:
            assert third is None
        assert library.out
    assert not library.out
    with owned.hold() as fourth:
        assert fourth is None


def test_a_hold_that_is_interrupted_holds_nothing():
    def operation(library):
        owned = Owned(library.take, (1, 1), library.release)
        with owned.hold() as value, owned.hold():
            assert value == 1
            owned.close()

    def check(library):
        assert not library.out

    reached, escaped = interrupt_everywhere(operation, THIS, prepare=Library, check=check)
    assert reached == escaped > 5


def test_what_is_owned_keeps_what_it_needs_and_is_not_a_childs():
    library, needed = Library(), open_descriptor(os.devnull, os.O_RDONLY)
    owned = Owned(library.take, (1, 1), library.release, keep=needed)
    number = needed.fileno()
    del needed
    os.fstat(number)
    assert in_fork(lambda: owned.close() or len(library.out) + 1) == 2
    owned.close()
    assert not library.out
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_closed_descriptor_says_so():
    file = open_descriptor(os.devnull, os.O_RDONLY)
    assert not os.get_inheritable(file.fileno())
    assert repr(file) == f"<accelrt.core.process.Descriptor {file.fileno()}>"
    taken = take_over(file.detach())
    assert file.closed
    taken.close()
    taken.close()
    assert repr(taken) == "<accelrt.core.process.Descriptor closed>"
    for use in (taken.fileno, taken.detach, taken.duplicate):
        with pytest.raises(ValueError, match="the file descriptor is closed"):
            use()
    with pytest.raises(TypeError, match="it owns a file descriptor"):
        pickle.dumps(taken)
