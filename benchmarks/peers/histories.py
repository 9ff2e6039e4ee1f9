"""A pair of an allocation and a free under a recorder; accelrt and torch have the same words for it."""

from peers.depth import deep


class Histories:
    """Of a class that has record() and pair()."""

    def history_off(self):
        return self.pair(512)

    def history_events(self):
        self.record(context=None)
        return self.pair(512)

    def history_state(self):
        self.record("state", context="state")
        return deep(self.pair(512), 20)

    def history_stacks(self):
        self.record(context="all")
        return deep(self.pair(512), 20)

    def history_ended(self):
        self.record(None)
        return self.pair(512)
