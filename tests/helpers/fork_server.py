"""An interpreter that has imported what many programs need, and runs each program in a fork of itself.

    server = ForkServer(environment, "import numpy, pytest")
    done = server.run("print('hello')", environment, 600)       # as subprocess.run tells it
    server.close()

A fresh interpreter takes 0.2 s to import numpy and pytest; a fork of one that has them starts in 2 ms.  The
program runs as that of `python -P -c` would: as __main__, in a process of its own with the environment, the
folder and the dispositions of signals that a fresh one has, its standard input empty, and it ends with the
interpreter's whole end.  It differs in this: sys.modules has what the server imported, gc never visits that,
the end clears of it accelrt's modules alone, strings hash as in the server's other forks, and the parent
process is the server.

Server and client speak over a socket, a message at a time: the client sends a program with the descriptors
for its outputs, and the server answers with the exit status.  What ends either of them closes the socket, and
that ends the other's part: without its client the server kills the program and ends.
"""

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from types import ModuleType

# What is read when it is first asked for; other variables may have been read when the interpreter started.
# begin() does what the start does with PYTHONPATH.
READ_LATE = ("ACCELRT_", "CUDA_", "FAKE_", "PYTEST_CURRENT_TEST", "PYTHONPATH", "XDG_RUNTIME_DIR")
LONGEST = 1 << 20  # bytes of a message
LOOK_EVERY = 0.005  # seconds between two looks at a program whose end the kernel does not tell


class ForkServer:
    """The client's side: starts the server, and has it run programs, one at a time.

    environment: the server's own.
    preparation: source that the server runs first; it may start no thread that outlives it.
    """

    def __init__(self, environment, preparation):
        self.environment, self.preparation = dict(environment), preparation
        self.turn = threading.Lock()
        self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"exec(*__import__('fork_server').serve({other.fileno()}, {preparation!r}))"
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                env=self.environment,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # a pipe, as its programs' is
                stderr=subprocess.STDOUT,
            )

    def suits(self, environment):
        """Whether a fork can stand for a fresh interpreter that starts with the environment."""
        names = self.environment.keys() | environment.keys()
        changed = {name for name in names if environment.get(name) != self.environment.get(name)}
        return all(name.startswith(READ_LATE) for name in changed)

    def run(self, code, environment, seconds, folder=None, apart=False):
        """Runs a program: a CompletedProcess with what it, and what it started, wrote to both outputs.

        folder: where it runs; None is this process's.
        apart: whether stderr is kept apart from stdout.
        Raises subprocess.TimeoutExpired, and AssertionError where the server has ended.  Then, and after any
        other exception, the program is killed and the server is of no more use.
        """
        request = {"code": code, "environment": dict(environment), "folder": str(folder or os.getcwd())}
        with self.turn:
            try:
                if not apart:
                    return self.run_alone(request, seconds)
                with tempfile.TemporaryFile() as errors:
                    done = self.run_alone(request, seconds, errors.fileno())
                    errors.seek(0)
                    done.stderr = errors.read().decode()
                    return done
            except TimeoutError:
                self.close()
                raise subprocess.TimeoutExpired(code, seconds) from None
            except BaseException:
                self.close()
                raise

    def run_alone(self, request, seconds, *errors):
        end = time.monotonic() + seconds
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as output:
            try:
                socket.send_fds(self.connection, [json.dumps(request).encode()], [writing, *errors])
            except ConnectionError:
                self.tell_end()
            finally:
                os.close(writing)
            written = read_until(end, output).decode(errors="replace")
        await_input(self.connection, end)
        try:
            status = self.connection.recv(64)
        except ConnectionError:
            status = b""
        if not status:
            self.tell_end(written)
        return subprocess.CompletedProcess(request["code"], int(status), written)

    def tell_end(self, written=""):
        """Raises AssertionError with what is known of the server's end."""
        status = self.process.wait()
        told = self.process.stdout.read().decode(errors="replace")
        raise AssertionError(f"the fork server ended with status {status}\n{told}\n{written}")

    @property
    def closed(self):
        return self.connection.fileno() < 0

    def close(self):
        """Ends the server, and the program that it runs; once is enough."""
        if not self.closed:
            self.connection.shutdown(socket.SHUT_RDWR)  # also where a fork of this process holds the socket
            self.connection.close()
            self.process.wait()
            self.process.stdout.close()


def await_input(file, end):
    """Waits until a file can be read from; raises TimeoutError at end, a time of time.monotonic."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    if not poll.poll(max(0, end - time.monotonic()) * 1000):
        raise TimeoutError


def read_until(end, file):
    """All that is written to a pipe until nobody has it open; raises TimeoutError at end."""
    written = bytearray()
    while True:
        await_input(file, end)
        chunk = file.read(1 << 16)
        if not chunk:
            return written
        written += chunk


def serve(descriptor, preparation):
    """The server's side, until the client closes the socket.

    Returns source and the namespace to run it in: in a fork its program's, and nothing in the server.  It is
    the server's __main__ that runs it, so that the program's end is the interpreter's.
    """
    started, prepared = set(sys.modules), []
    atexit.register(leave_alive, prepared)  # so early that it runs last
    exec(preparation, {})
    prepared += [sys.modules[name] for name in sys.modules.keys() - started if not name.startswith("accelrt")]
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's affair
    gc.collect()
    gc.freeze()  # so that forks share these objects' pages, and do not visit them when they end
    connection = socket.socket(fileno=descriptor)
    while message := receive(connection):
        request, outputs = message
        program = os.fork()
        if program == 0:
            connection.close()
            signal.signal(signal.SIGINT, interrupt)
            return begin(**json.loads(request), outputs=outputs)
        for output in outputs:
            os.close(output)
        with suppress(ConnectionError):
            connection.send(b"%d" % await_end(program, connection))
    return "", {}


def receive(connection):
    """A request and the descriptors for the outputs; None where the client has closed the socket."""
    with suppress(ConnectionError):
        request, outputs, _, _ = socket.recv_fds(connection, LONGEST, 2)
        if request:
            return request, outputs
    return None


def begin(code, environment, folder, outputs):
    """Gives a fork what a fresh interpreter starts with; returns the code and the namespace to run it in."""
    os.dup2(outputs[0], 1)
    os.dup2(outputs[-1], 2)
    for output in outputs:
        os.close(output)
    os.chdir(folder)
    sys.path[:] = search_path(environment.get("PYTHONPATH", ""))
    os.environ.clear()
    os.environ.update(environment)
    main = ModuleType("__main__")  # another than the server's, which is frozen: it is collected at the end
    vars(main).update(vars(sys.modules["__main__"]))
    sys.modules["__main__"] = main
    return code, vars(main)


def leave_alive(modules):
    """Has the interpreter's end, which clears every module that it knows, leave some as they are.

    To clear what a server prepared takes longer than most programs: each page that a fork writes to is
    copied.  accelrt's modules are cleared.
    """
    kept = set(map(id, modules))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))
    for name in [name for name, module in sys.modules.items() if id(module) in kept]:
        del sys.modules[name]


def search_path(folders):
    """sys.path as it starts with folders as PYTHONPATH, in place of the server's own."""
    first, own = (
        [os.path.abspath(folder) for folder in each.split(os.pathsep) if folder]
        for each in (folders, os.environ.get("PYTHONPATH", ""))
    )
    return list(dict.fromkeys(first + [folder for folder in sys.path if folder not in own]))


def await_end(program, connection):
    """The exit status of a program, which is killed where the client closes the socket first."""
    try:
        ends = [os.pidfd_open(program)]
    except OSError:  # the system has none: the program is looked at again and again
        ends = []
    ended, status = os.waitpid(program, os.WNOHANG)
    while not ended:
        ready, _, _ = select.select([*ends, connection], [], [], None if ends else LOOK_EVERY)
        if connection in ready:
            os.kill(program, signal.SIGKILL)
        ended, status = os.waitpid(program, 0 if ready else os.WNOHANG)
    for end in ends:
        os.close(end)
    return os.waitstatus_to_exitcode(status)
