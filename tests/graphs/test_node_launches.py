"""What a kernel node has beside its arguments: clusters, a cooperative launch, a priority."""

import os

import pytest
from graph_memory import filled, options, read_numbers, replay
from kernel_sources import numbers

import accelrt

pytestmark = pytest.mark.usefixtures("by_hand")
COUNT = 256
ON_HOST = os.environ.get("ACCELRT_DRIVER", "host") == "host"


def kernel_of(image):
    return accelrt.Module(image).function("number", "uint32_t* at, uint32_t value")


def buffer():
    return filled(4 * COUNT, 0)


@pytest.fixture
def clusters():
    """Skips a test where the device has none."""
    if accelrt.get_device_capability()[0] < 9 and not ON_HOST:
        pytest.skip("clusters need compute capability 9.0")


def test_a_node_without_options_tells_none(image):
    definition = accelrt.GraphDefinition()
    assert options(definition.kernel(kernel_of(image), 4, 64, (buffer(), 5))) == (None, False, 0)


def test_a_cooperative_node_runs_and_tells_it(image):
    definition, x = accelrt.GraphDefinition(), buffer()
    node = definition.kernel(kernel_of(image), 4, 64, (x, 5), cooperative=True)
    assert options(node) == (None, True, 0)
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(5)).all()


@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize(("cluster", "told"), [(2, (2, 1, 1)), ((4, 1, 1), (4, 1, 1)), (1, None)])
def test_a_node_in_clusters_runs_and_tells_them(image, cluster, told):
    definition, x = accelrt.GraphDefinition(), buffer()
    node = definition.kernel(kernel_of(image), 4, 64, (x, 5), cluster=cluster)
    assert options(node) == (told, False, 0)
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(5)).all()


@pytest.mark.usefixtures("clusters")
def test_a_node_in_clusters_of_more_than_8_blocks_permits_them(image):
    definition, x, kernel = accelrt.GraphDefinition(), buffer(), kernel_of(image)
    node = definition.kernel(kernel, 16, 16, (x, 5), cluster=16)
    assert kernel.attributes.non_portable_cluster_size_allowed == 1
    assert options(node)[0] == (16, 1, 1)
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(5)).all()


@pytest.mark.usefixtures("clusters")
def test_clusters_that_do_not_divide_the_grid_are_refused_before_there_is_a_node(image):
    definition, x, kernel = accelrt.GraphDefinition(), buffer(), kernel_of(image)
    with pytest.raises(accelrt.CudaError, match="the grid are no multiples of the cluster's") as refused:
        definition.kernel(kernel, 3, 64, (x, 5), cluster=2)
    assert refused.value.name == "INVALID_CLUSTER_SIZE"
    with pytest.raises(accelrt.CudaError, match=r"cluster=\(32, 1, 1\)"):
        definition.kernel(kernel, 32, 8, (x, 5), cluster=32)
    with pytest.raises(ValueError, match="cluster"):
        definition.kernel(kernel, 4, 64, (x, 5), cluster=0)
    assert definition.nodes() == []


def test_a_cooperative_node_of_too_many_blocks_is_refused_before_it_is_there(image):
    definition, x = accelrt.GraphDefinition(), buffer()
    with pytest.raises(accelrt.CudaError, match="blocks of such a launch at once; make the grid") as refused:
        definition.kernel(kernel_of(image), 1 << 20, 64, (x, 5), cooperative=True)
    assert refused.value.name == "COOPERATIVE_LAUNCH_TOO_LARGE"
    assert definition.nodes() == []


def test_a_priority_is_told_and_kept_by_instances_that_ask_for_it(image):
    definition, x = accelrt.GraphDefinition(), buffer()
    node = definition.kernel(kernel_of(image), 4, 64, (x, 5), priority=-1)
    assert options(node) == (None, False, -1)
    for keeps in (False, True):
        replay(definition.instantiate(node_priorities=keeps))
        assert (read_numbers(x) == numbers(5)).all()
    with pytest.raises(TypeError, match="priority"):
        definition.kernel(kernel_of(image), 4, 64, (x, 5), priority="high")
    with pytest.raises(ValueError, match="priority"):
        definition.kernel(kernel_of(image), 4, 64, (x, 5), priority=1 << 31)


@pytest.mark.usefixtures("clusters")
def test_captured_launches_tell_what_they_were_launched_with_and_are_added_to(image):
    graph, x, y, kernel = accelrt.CUDAGraph(keep_graph=True), buffer(), buffer(), kernel_of(image)
    stream = accelrt.Stream(priority=-1)
    with accelrt.graph(graph, stream=stream):
        kernel.launch(4, 64, (x, 5), cluster=2)
        kernel.launch(4, 64, (x, 6), cooperative=True)
        kernel.launch(4, 64, (x, 7))
    definition = accelrt.GraphDefinition(graph)
    nodes = definition.nodes()
    assert [options(node) for node in nodes] == [((2, 1, 1), False, -1), (None, True, -1), (None, False, -1)]
    assert [node.params for node in graph.nodes()] == [node.params for node in nodes]
    added = definition.kernel(kernel, 4, 64, (y, 8), cluster=4, after=nodes[-1])
    nodes[-1].update(cluster=2)
    assert options(nodes[-1]) == ((2, 1, 1), False, -1)
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(7)).all()
    assert (read_numbers(y) == numbers(8)).all()
    assert options(added) == ((4, 1, 1), False, 0)


@pytest.mark.usefixtures("clusters")
def test_nodes_added_during_a_capture_have_them(image):
    graph, x, kernel = accelrt.CUDAGraph(keep_graph=True), buffer(), kernel_of(image)
    with accelrt.graph(graph):
        kernel[4, 64](x, 5)
        definition = accelrt.GraphDefinition(graph)
        definition.kernel(kernel, 4, 64, (x, 6), cluster=2)
        definition.kernel(kernel, 4, 64, (x, 7), cooperative=True)
    nodes = accelrt.GraphDefinition(graph).nodes()
    assert [options(node)[:2] for node in nodes] == [(None, False), ((2, 1, 1), False), (None, True)]
    replay(graph)
    assert (read_numbers(x) == numbers(7)).all()


@pytest.mark.usefixtures("clusters")
def test_clones_and_children_have_them(image):
    definition, outer, x = accelrt.GraphDefinition(), accelrt.GraphDefinition(), buffer()
    node = definition.kernel(kernel_of(image), 4, 64, (x, 5), cluster=2, priority=-1)
    other = definition.kernel(kernel_of(image), 4, 64, (x, 6), cooperative=True, after=node)
    clone = definition.clone()
    assert [options(clone.find_in_clone(each)) for each in (node, other)] == [options(node), options(other)]
    child = outer.child(definition).params
    assert [options(each) for each in child.nodes()] == [((2, 1, 1), False, -1), (None, True, 0)]
    for graph in (clone, outer):
        x.fill(0)
        replay(graph.instantiate())
        assert (read_numbers(x) == numbers(6)).all()
    child.nodes()[0].update(cluster=4, priority=0)
    assert options(child.nodes()[0]) == ((4, 1, 1), False, 0)
    assert options(node) == ((2, 1, 1), False, -1)


@pytest.mark.usefixtures("clusters")
def test_bodies_of_conditions_take_them(image):
    definition, x, kernel = accelrt.GraphDefinition(), buffer(), kernel_of(image)
    body = definition.if_(definition.condition(1)).bodies[0]
    node = body.kernel(kernel, 4, 64, (x, 5), cluster=2)
    assert options(node) == ((2, 1, 1), False, 0)
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(5)).all()


def test_a_cooperative_node_runs_in_a_body(image):
    definition, x = accelrt.GraphDefinition(), buffer()
    body = definition.if_(definition.condition(1)).bodies[0]
    body.kernel(kernel_of(image), 4, 64, (x, 5), cooperative=True)
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(5)).all()


@pytest.mark.usefixtures("clusters")
def test_a_change_of_a_node_keeps_what_it_does_not_name(image):
    definition, x, kernel = accelrt.GraphDefinition(), buffer(), kernel_of(image)
    node = definition.kernel(kernel, 4, 64, (x, 5), cluster=4, priority=-1)
    node.update(args=(x, 6))
    assert options(node) == ((4, 1, 1), False, -1)
    node.update(grid=2, cluster=2)  # a grid that the cluster of before does not divide
    assert (node.params.grid, *options(node)) == ((2, 1, 1), (2, 1, 1), False, -1)
    node.update(grid=4, cluster=4)
    node.update(cooperative=True, priority=0)
    assert options(node) == ((4, 1, 1), True, 0)
    node.update(cooperative=False, cluster=1)
    assert options(node) == (None, False, 0)
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(6)).all()


@pytest.mark.usefixtures("clusters")
def test_a_change_that_no_launch_takes_leaves_the_node_as_it_was(image):
    definition, x, kernel = accelrt.GraphDefinition(), buffer(), kernel_of(image)
    node = definition.kernel(kernel, 4, 64, (x, 5), cluster=2)
    for changes in ({"grid": 3}, {"cluster": 3}, {"grid": 1 << 20, "cooperative": True}, {"block": 2048}):
        with pytest.raises(accelrt.CudaError):
            node.update(**changes)
        assert (node.params.grid, *options(node)) == ((4, 1, 1), (2, 1, 1), False, 0)
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(5)).all()


@pytest.mark.usefixtures("clusters")
def test_an_instance_keeps_its_options_until_it_is_updated(image):
    definition, x = accelrt.GraphDefinition(), buffer()
    node = definition.kernel(kernel_of(image), 4, 64, (x, 5), cluster=2)
    instance = definition.instantiate()
    for changes in ({"cluster": 4}, {"cooperative": True}, {"priority": -1}):
        with pytest.raises(accelrt.NotSupportedError, match=r"instance.update\(definition.graph\)"):
            node.update(instance=instance, **changes)
    node.update(instance=instance, args=(x, 6))
    replay(instance)
    assert (read_numbers(x) == numbers(6)).all()
    node.update(cluster=4, args=(x, 7))
    replay(instance)
    assert (read_numbers(x) == numbers(6)).all()
    instance.update(definition.graph)
    replay(instance)
    assert (read_numbers(x) == numbers(7)).all()


def test_an_instance_is_not_updated_to_a_cooperative_launch(image):
    definition, x = accelrt.GraphDefinition(), buffer()
    node = definition.kernel(kernel_of(image), 4, 64, (x, 5))
    instance = definition.instantiate()
    node.update(cooperative=True, args=(x, 6))
    with pytest.raises(accelrt.CudaError, match="attributes"):
        instance.update(definition.graph)
    replay(definition.instantiate())
    assert (read_numbers(x) == numbers(6)).all()


@pytest.mark.usefixtures("clusters")
def test_rebound_memory_leaves_them(image):
    definition, x, y = accelrt.GraphDefinition(), buffer(), buffer()
    node = definition.kernel(kernel_of(image), 4, 64, (x, 5), cluster=2)
    instance = definition.instantiate()
    parameters = accelrt.GraphParameters(instance, x=x)
    parameters.rebind(x=y)
    replay(instance)
    assert (read_numbers(y) == numbers(5)).all()
    assert (read_numbers(x) == 0).all()
    assert options(node) == ((2, 1, 1), False, 0)


@pytest.mark.usefixtures("clusters")
def test_params_of_a_captured_node_are_assigned_with_them(image):
    graph, x, kernel = accelrt.CUDAGraph(keep_graph=True), buffer(), kernel_of(image)
    with accelrt.graph(graph):
        kernel.launch(4, 64, (x, 5), cluster=2)
    node = graph.nodes()[0]
    node.params = node.params._replace(arguments=(x, 6))
    assert options(node)[0] == (2, 1, 1)
    node.params = node.params._replace(cluster=None, priority=-1)
    assert options(node) == (None, False, -1)
    graph.set_kernel_node_params(node, cluster=4)
    assert options(node) == ((4, 1, 1), False, -1)
    replay(graph)
    assert (read_numbers(x) == numbers(6)).all()


@pytest.mark.usefixtures("clusters")
def test_they_are_in_plain_data_and_drawings(image, tmp_path):
    definition, x = accelrt.GraphDefinition(), buffer()
    definition.kernel(kernel_of(image), 4, 64, (x, 5), cluster=2, cooperative=True, priority=-1)
    params = definition.to_dict()["nodes"][0]["params"]
    assert (params["cluster"], params["cooperative"], params["priority"]) == ((2, 1, 1), True, -1)
    definition.debug_dump(tmp_path / "graph.dot", verbose=True)
    if ON_HOST:  # NVIDIA's driver draws what it likes
        assert "cluster 2 1 1, cooperative, priority -1" in (tmp_path / "graph.dot").read_text()
