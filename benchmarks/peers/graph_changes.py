"""Other memory and other arguments for what accelrt has instantiated."""

import itertools

import accelrt


class GraphChanges:
    """Of a class that has a stream and empty_kernel()."""

    def rebind(self, work, common):
        # Other memory for eight of a thousand nodes, each of which uses one of `work`'s.
        accelrt.set_stream(self.stream)
        ours, theirs = ({f"x{index}": accelrt.Buffer(1024) for index in range(8)} for _ in range(2))
        graph = accelrt.CUDAGraph(keep_graph=True)
        with accelrt.graph(graph, stream=self.stream):
            for index in range(1000):
                work(common if index % 125 else ours[f"x{index // 125}"])
        rebind, turns = accelrt.GraphParameters(graph, **ours).rebind, itertools.cycle([theirs, ours])
        return lambda: rebind(**next(turns))

    def rebind_8(self):
        to, common = accelrt.Buffer(1024), accelrt.Buffer(1024)
        return self.rebind(lambda source: accelrt.copy(to, source, blocking=False), common)

    def rebind_kernels_8(self):
        return self.rebind(self.empty_kernel(1)[1, 1], accelrt.Buffer(1024))

    def update_1(self):
        accelrt.set_stream(self.stream)
        kernel, x, other = self.empty_kernel(1), accelrt.Buffer(1024), accelrt.Buffer(1024)
        graph = accelrt.CUDAGraph(keep_graph=True)
        with accelrt.graph(graph, stream=self.stream):
            kernel[1, 1](x)
        rebind, turns = accelrt.GraphParameters(graph, x=x).rebind, itertools.cycle([other, x])
        return lambda: rebind(x=next(turns))

    def update_subject(self):
        kernel, x, other = self.empty_kernel(1), accelrt.Buffer(1024), accelrt.Buffer(1024)
        graph = accelrt.CUDAGraph(keep_graph=True)
        with accelrt.graph(graph, stream=self.stream):
            kernel[1, 1](x)
        graph.instantiate()
        self.updated = kernel, x, other, graph
        handles = graph.raw_cuda_graph(), graph.raw_cuda_graph_exec(), graph.nodes()[0].id
        return 0, handles, kernel.handle, (x.ptr, other.ptr)

    def update_node(self):
        x, other = accelrt.Buffer(1024), accelrt.Buffer(1024)
        definition = accelrt.GraphDefinition()
        node = definition.kernel(self.empty_kernel(1), 1, 1, (x,))
        instance, turns = definition.instantiate(), itertools.cycle([(other,), (x,)])
        return lambda: node.update(instance=instance, args=next(turns))
