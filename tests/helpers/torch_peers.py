"""Processes with torch, for the scenarios of torch_sharing.py: each calls functions that it is told by a
pipe, and every wait for one ends."""

import os
import signal
import time
import traceback

import torch

from accelrt.interop import torch as interop

CONTEXT = torch.multiprocessing.get_context("spawn")
LIMIT = 120  # seconds until a process counts as stuck
kept = {}  # what lives as long as the process


def set_up(kind, installs=True):
    kept["kind"] = kind
    if kind == "standin":
        from cudart_standin import Standin

        kept["standin"] = Standin()
        interop.require_cuda = lambda torch: None
    if installs:
        interop.install()


class Peer:
    """Another process, that calls functions of this file."""

    def __init__(self, *queues, installs=True):
        self.pipe, end = CONTEXT.Pipe()
        arguments = (end, kept["kind"], installs, queues)
        self.process = CONTEXT.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        end.close()

    def tell(self, function, *arguments):
        self.pipe.send((function, arguments))

    def answer(self):
        assert self.pipe.poll(LIMIT), "no answer"
        done, answer = self.pipe.recv()
        assert done, answer
        return answer

    def call(self, function, *arguments):
        self.tell(function, *arguments)
        return self.answer()

    def kill(self, number=signal.SIGKILL):
        os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.join(LIMIT)
            assert self.process.exitcode == -number

    def stop(self):
        """Ends it as a program ends."""
        self.pipe.send(None)
        self.process.join(LIMIT)
        assert self.process.exitcode == 0, self.process.exitcode


def serve(pipe, kind, installs, queues):
    try:
        kept["queues"] = queues
        set_up(kind, installs)
        while True:
            assert pipe.poll(LIMIT), "nothing to do"
            try:
                told = pipe.recv()
                if told is None:
                    return
                function, arguments = told
                del told
                answer = True, function(*arguments)
            except Exception:
                answer = False, traceback.format_exc()
            function = arguments = None
            pipe.send(answer)
            answer = None
    finally:
        pipe.close()


def until(condition, what):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)
