"""Offers: blocks that an allocator and its model free as of an event.

The pool's own stream, which waits for such events, can only be waited for with the whole device.  So while
a block is offered, the gates of a device open all at once, and an event is complete if it was recorded while
no gate was closed.
"""

from allocator_gates import Gates

import accelrt


class Offers(Gates):
    """The offers of a mirror's streams; the mirror has streams and models."""

    def __init__(self, devices, waits):
        super().__init__(waits)
        self.events = {device: {} for device in devices}  # record -> accelrt.Event
        self.incomplete = {device: set() for device in devices}  # records behind a gate
        self.records = 0

    def free_after(self, key, stream):
        """Frees a block as of an event recorded on the stream; returns the number of the record."""
        device, *place = key
        model = self.models[device]
        if stream not in model.gated:
            self.open_all(device)
        self.records += 1
        event = self.events[device][self.records] = self.streams[device, stream].record_event()
        if model.gated:
            self.incomplete[device].add(self.records)
        address, used = self.address(key), model.live[tuple(place)].uses
        model.free_after(tuple(place), stream, self.records)
        accelrt.memory.free_after(address, event)
        self.let_finish(device, used)
        if not model.gated:
            accelrt.synchronize(device)
        self.check(device)
        return self.records

    def wait_event(self, device, stream, record):
        """A stream that waits for an incomplete event runs nothing, as behind a gate."""
        model = self.models[device]
        self.streams[device, stream].wait_event(self.events[device][record])
        model.wait_event(stream, record)
        if record in self.incomplete[device]:
            model.close_gate(stream)
        self.let_finish(device, [stream])
        self.check(device)

    def let_finish(self, device, streams):
        """Waits for the work of those of the streams that have no closed gate."""
        for stream in streams:
            if stream not in self.models[device].gated:
                own = self.streams.get((device, stream))
                (own or accelrt.default_stream(device)).synchronize()

    def prepare_wait(self, device, awaited):
        """A stream behind an event goes on at some time after the gate before the event opens."""
        if self.incomplete[device]:
            self.open_all(device)
        super().prepare_wait(device, awaited)

    def open_gate(self, device, stream):
        model = self.models[device]
        if (device, stream) not in self.gates:
            return
        if model.offers or self.incomplete[device]:
            self.open_all(device)
        else:
            super().open_gate(device, stream)

    def open_all(self, device):
        for stream in self.gated(device):
            self.gates.pop((device, stream)).set()
        accelrt.synchronize(device)
        for stream in list(self.models[device].gated):
            self.models[device].open_gate(stream)
        self.forget_records(device)

    def forget_records(self, device):
        offered = {offer.record for offer in self.models[device].offers}
        self.incomplete[device].clear()
        for record in self.events[device].keys() - offered:
            del self.events[device][record]

    def end_offers(self):
        """Ends all offers, before operations that the models do not follow: the blocks become free."""
        for device, model in self.models.items():
            self.open_all(device)
            model.offers.clear()
            self.forget_records(device)
