"""Graphs with hooks: functions called around a graph's captures and replays."""
from accelrt.graph_held cimport HOOKS
from accelrt.hooks import add_hook

cdef list NO_HOOKS = []  # of every graph that has none; nothing is ever added to it


cdef class HookedGraph(HeldGraph):
    """What CUDAGraph stands on: the functions to call around its captures and replays."""

    def __cinit__(self):
        self.capture_hooks = self.replay_hooks = NO_HOOKS

    def register_capture_pre_hook(self, hook):
        """Has a function called before each capture of this graph, while no stream captures for it yet.

        Arguments:
            hook: called as hook(graph).  What it raises is raised by capture_begin, and nothing is begun.
        Returns:
            RemovableHandle.
        Raises:
            TypeError: hook cannot be called.

        Hooks are called in the order of their registration; the first that raises is the last one called.  They
        stay when the graph is reset.
        """
        return add_hook(self.own_capture_hooks(), hook, True)

    def register_capture_hook(self, hook):
        """Has a function called after each capture of this graph that succeeded, when it can be replayed.

        Arguments:
            hook: called as hook(graph).  What it raises is raised by capture_end, and the graph is reset.
        Returns:
            RemovableHandle; see register_capture_pre_hook.
        """
        return add_hook(self.own_capture_hooks(), hook, False)

    def register_replay_pre_hook(self, hook):
        """Has a function called before each replay() of this graph.

        Arguments:
            hook: called as hook(graph).  What it puts into the current stream runs before the graph's work.  What it
                raises is raised by replay, and nothing is launched.
        Returns:
            RemovableHandle; see register_capture_pre_hook.
        """
        return add_hook(self.own_replay_hooks(), hook, True)

    def register_replay_hook(self, hook):
        """Has a function called after each replay() of this graph was put into its stream, where it may still run.

        Arguments:
            hook: called as hook(graph).  What it raises is raised by replay; the launch stands.
        Returns:
            RemovableHandle; see register_capture_pre_hook.
        """
        return add_hook(self.own_replay_hooks(), hook, False)

    cdef list own_capture_hooks(self):
        if self.capture_hooks is NO_HOOKS:
            self.capture_hooks = []
        return self.capture_hooks

    cdef list own_replay_hooks(self):
        if self.replay_hooks is NO_HOOKS:
            self.replay_hooks = []
            self.rare |= HOOKS
        return self.replay_hooks
