"""A process beside the test's, which multiprocessing starts and which runs functions when told."""

import multiprocessing
import os
import signal
import sys
import traceback

SECONDS = 300


def serve(pipe, environment):
    os.environ.update(environment)
    kept = {}
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        except Exception as error:  # what could not be unpickled
            pipe.send((False, f"{type(error).__name__}: {error}"))
            continue
        if message is None:
            return
        function, arguments = message
        del message
        try:
            answer = (True, function(kept, *arguments))
            host = sys.modules.get("accelrt.driver.host.driver")
            assert host is None or host.frees_under_work() == 0, "memory was taken away under queued work"
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        del arguments, function
        pipe.send(answer)
        del answer


class Other:
    """The process; functions get a dict that lives as long as it does, and their arguments."""

    def __init__(self, method="spawn", **environment):
        context = multiprocessing.get_context(method)
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=serve, args=(end, environment), daemon=True)
        self.process.start()
        end.close()

    def tell(self, function, *arguments):
        self.pipe.send((function, arguments))

    def answer(self):
        assert self.pipe.poll(SECONDS), "no answer"
        done, answer = self.pipe.recv()
        if not done:
            raise RuntimeError(answer)
        return answer

    def call(self, function, *arguments):
        self.tell(function, *arguments)
        return self.answer()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(SECONDS)

    def stop(self):
        if self.process.is_alive():
            self.pipe.send(None)
            self.process.join(SECONDS)
        self.pipe.close()


# --- what it runs -------------------------------------------------------------------------------


def read(kept, array):
    return array.numpy()


def read_and_fill(kept, array, value):
    seen = array.numpy()
    array.fill_(value)
    import accelrt

    accelrt.synchronize(array.device_index)
    return seen


def keep(kept, name, memory):
    kept[name] = memory
    return memory.ptr


def look(kept, name):
    return kept[name].numpy()


def drop(kept, name):
    import accelrt

    kept.pop(name)
    accelrt.ipc_collect()


def opened(kept, handle, *arguments):
    """Opens a handle, reads it, and lets it go."""
    import accelrt

    memory = handle.open(*arguments)
    seen = memory.numpy() if isinstance(memory, accelrt.Array) else memory[:].numpy()
    del memory
    accelrt.ipc_collect()
    return seen


def make(kept, name, length, value):
    import accelrt.sharing

    kept[name] = accelrt.full((length,), value, "int32")
    return kept[name]


def statistics(kept):
    import accelrt.sharing

    return accelrt.sharing.statistics()


def descriptors(kept):
    return len(os.listdir("/proc/self/fd"))


def share_made(kept):
    kept["handle"] = kept["made"].share()
    return kept["handle"]
