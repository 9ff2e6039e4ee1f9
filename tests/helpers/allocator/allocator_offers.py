"""Memory that an allocator and its model free as of an event.

The allocator's own stream, which waits for such events, can be waited for with the whole device only.  So
while anything is offered the gates of a device open all at once, and an event that is complete is one that
was recorded while none was closed.
"""

from allocator_gates import Gates

import accelrt


class Offers(Gates):
    """What a mirror's streams hand over; the mirror has streams and models."""

    def __init__(self, devices, waits):
        super().__init__(waits)
        self.events = {device: {} for device in devices}  # record -> accelrt.Event
        self.incomplete = {device: set() for device in devices}  # records behind a gate
        self.records = 0

    def free_after(self, key, stream):
        """Frees as of an event that is recorded on the stream; answers with the record."""
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
        """Behind an event that is not complete the stream runs nothing, as behind a gate."""
        model = self.models[device]
        self.streams[device, stream].wait_event(self.events[device][record])
        model.wait_event(stream, record)
        if record in self.incomplete[device]:
            model.close_gate(stream)
        self.let_finish(device, [stream])
        self.check(device)

    def let_finish(self, device, streams):
        """What such streams have to do is done, but behind gates."""
        for stream in streams:
            if stream not in self.models[device].gated:
                own = self.streams.get((device, stream))
                (own or accelrt.default_stream(device)).synchronize()

    def prepare_wait(self, device, awaited):
        """Streams behind an event get on some time after the gate that it waited for."""
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
        """Before somebody without a model takes over: what is offered is free, or soon."""
        for device, model in self.models.items():
            self.open_all(device)
            model.offers.clear()
            self.forget_records(device)
