"""What a definition is asked for a node of the model, and random changes, for random_definitions.py."""

import random
from dataclasses import replace
from typing import Any

from definition_model import BODIES, BYTES, PITCH, ROWS, DifferenceError, Made, Memory, Model, Node

import accelrt

CHANGED = ("fill", "copy", "kernel", "host")  # what update() changes
SWITCHED = ("fill", "copy", "kernel", "rows")  # what set_enabled() leaves out, and names give memory
# What of a Node each argument says; of a kernel's all.
NAMED: dict[str, dict[str, str]] = {
    "fill": {"dst": "to", "value": "number", "count": "count"},
    "copy": {"dst": "to", "src": "origin", "nbytes": "count"},
    "kernel": {"args": "to"},
    "host": {"function": "to"},
    "empty": {},
}


def changes_to(node: Node) -> dict[str, Any]:
    """What has a node do this: the arguments of update()."""
    changes = {name: getattr(node, attribute) for name, attribute in NAMED[node.kind].items()}
    if node.kind == "kernel":
        changes["args"] = (node.to.buffer, node.origin.buffer, node.count, node.number)
    return {name: each.buffer if isinstance(each, Memory) else each for name, each in changes.items()}


def place(
    definition: accelrt.GraphDefinition, node: Node, kernel: accelrt.Kernel, after: list
) -> accelrt.DefinitionNode:
    """Adds a node to a definition."""
    added: accelrt.DefinitionNode
    if node.kind == "child":
        return definition.child(node.graphs[0].real, after=after)
    if node.kind == "kernel":
        return definition.kernel(kernel, 1, 64, **changes_to(node), after=after)
    if node.kind == "set":
        return definition.set_condition(node.to, node.origin.buffer, after=after)
    if node.kind == "number":
        return definition.fill(node.to.buffer, node.number, 1, width=node.count, after=after)
    if node.kind == "rows":
        given = node.to.buffer, node.origin.buffer, node.count, ROWS
        return definition.copy_3d(*given, dst_pitch=PITCH, src_pitch=PITCH, after=after)
    if node.kind == "allocate":
        added = definition.allocate(BYTES, after=after)
        node.to.address = added.address
        return added
    if node.kind == "fill_allocated":
        return definition.fill(node.to.address, node.number, node.count, after=after)
    if node.kind == "copy_allocated":
        return definition.copy(node.to.buffer, node.origin.address, node.count, after=after)
    if node.kind == "free":
        return definition.free(node.to.address, after=after)
    if node.kind == "if":
        return definition.if_(node.origin, else_=True, after=after)
    if node.kind == "while":
        return definition.while_(node.origin, after=after)
    if node.kind == "switch":
        return definition.switch(node.origin, BODIES[node.kind], after=after)
    method = "host_function" if node.kind == "host" else node.kind
    return getattr(definition, method)(**changes_to(node), after=after)


def is_ordered(*models: Model) -> bool:
    """Whether edges order all that has to be, and no node reads what it writes."""
    return not any(any(model.unordered()) for model in models) and not any(
        node.to is node.origin and node.to is not None for model in models for node in model.nodes.values()
    )


class Changes:
    """Changes of what nodes do, which the classes that have the graphs do by chance.

    Attributes:
        is_exact: whether the driver updates an instance by every graph that is like it, and nodes within
            children and bodies of an instance.
    """

    chosen: random.Random
    is_exact: bool
    graphs: list[Made]
    instances: list[Made]

    def memory(self) -> Memory:
        """Some memory that has its Buffer still."""
        raise NotImplementedError

    def work(self, kind: str) -> Node:
        """A node's work, by chance."""
        raise NotImplementedError

    def chosen_change(self, before: Node) -> tuple[Node, dict[str, Any]]:
        """Other work for a node, some of it or all, and the arguments of update() for it."""
        node = self.work(before.kind)
        changes = changes_to(node)
        if node.kind != "kernel" and self.chosen.random() < 0.5:
            name, attribute = self.chosen.choice(list(NAMED[node.kind].items()))
            changes = {name: changes[name]}
            node = replace(before, **{attribute: getattr(node, attribute)})
        return node, changes

    def update(self) -> None:
        """Changes what a node does, in the definition or in an instance."""
        made = self.chosen.choice(self.graphs + self.instances)
        graph = made if made in self.graphs else made.source
        if graph is None:
            return
        keys = [
            key for key, node in made.model.nodes.items() if node.kind in CHANGED and key in graph.model.nodes
        ]
        if not keys:
            return
        key = self.chosen.choice(keys)
        before = made.model.nodes[key]
        made.model.nodes[key], changes = self.chosen_change(before)
        if is_ordered(made.model):  # an instance gets no edges
            graph.node(key).update(instance=None if made is graph else made.real, **changes)
        else:
            made.model.nodes[key] = before

    def update_within(self) -> None:
        """Changes what a node of a child or a body does, in the definition or in an instance."""
        made = self.chosen.choice(self.graphs + self.instances)
        graph = made if made in self.graphs else made.source
        if graph is None:
            return
        owners = [key for key, node in made.model.nodes.items() if node.graphs and key in graph.model.nodes]
        if not owners:
            return
        owner = self.chosen.choice(owners)
        place = self.chosen.randrange(len(made.model.nodes[owner].graphs))
        inner = made.model.nodes[owner].graphs[place]
        keys = [key for key, node in inner.nodes.items() if node.kind in CHANGED]
        if not keys:
            return
        key, outside = self.chosen.choice(keys), graph.node(owner)
        part = outside.bodies[place] if outside.bodies else outside.params
        before = inner.nodes[key]
        inner.nodes[key], changes = self.chosen_change(before)
        if not is_ordered(made.model, inner):
            inner.nodes[key] = before
            return
        known = list(graph.model.nodes[owner].graphs[place].nodes)
        try:
            part.nodes()[known.index(key)].update(instance=None if made is graph else made.real, **changes)
        except (accelrt.CudaError, ValueError):
            if made is graph or self.is_exact:
                raise
            inner.nodes[key] = before

    def switch(self) -> None:
        """Has an instance leave a node out, or do it again."""
        if not self.instances:
            return
        instance = self.chosen.choice(self.instances)
        known = {} if instance.source is None else instance.source.model.nodes
        keys = [key for key, node in instance.model.nodes.items() if node.kind in SWITCHED and key in known]
        if keys:
            key, out = self.chosen.choice(keys), self.chosen.random() < 0.5
            instance.source.node(key).set_enabled(instance.real, not out)
            (instance.model.left_out.add if out else instance.model.left_out.discard)(key)

    def update_from(self) -> None:
        """Has an instance do what a definition does, where both are alike."""
        if not self.instances:
            return
        instance, graph = self.chosen.choice(self.instances), self.chosen.choice(self.graphs)
        left_out = set(instance.model.left_out)
        is_own = graph is instance.source and graph.reshapes == instance.reshapes
        try:
            instance.real.update(graph.real.graph)
        except accelrt.CudaError:
            is_alike = replace(graph.model, left_out=left_out) == instance.model
            if self.is_exact and is_alike and (is_own or not left_out):
                raise
        else:
            if left_out and not is_own:
                raise DifferenceError("an instance took which nodes are left out from another definition")
            instance.model = replace(graph.model.copied(), left_out=left_out)
            instance.source = graph if is_own else None
            instance.first_model, instance.rebound = graph.model.copied(), {}

    def rebind(self) -> None:
        """Has an instance use other memory in place of some that its nodes were made with, by names."""
        if not self.instances:
            return
        instance = self.chosen.choice(self.instances)
        reads, writes = instance.first_model.uses()
        used = [each for each in reads | writes if isinstance(each, Memory) and each.buffer is not None]
        used.sort(key=lambda memory: memory.number)
        if not used:
            return
        named = self.chosen.sample(used, min(len(used), 2))
        others = {**instance.rebound, **{memory: self.memory() for memory in named}}
        model = instance.model.copied()
        for key, node in instance.first_model.using(others).nodes.items():
            if node.kind in SWITCHED:
                model.nodes[key] = node
        if not is_ordered(model):
            return
        names = {f"m{memory.number}": memory for memory in named}
        try:
            parameters = accelrt.GraphParameters(
                instance.real, **{name: memory.buffer for name, memory in names.items()}
            )
        except (ValueError, RuntimeError):  # what it refuses, of nodes that were changed by hand too
            return
        parameters.rebind(**{name: others[memory].buffer for name, memory in names.items()})
        instance.model, instance.rebound = model, others
