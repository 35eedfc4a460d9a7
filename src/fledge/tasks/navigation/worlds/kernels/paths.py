"""Shortest paths through a grid of nodes: lengths by sweeps, and paths pulled taut between points that see each other."""

import warp as wp

NEIGHBOURS = 13  # of 26: those that a forward sweep has already passed


@wp.struct
class Nodes:
    """Coarse grid of open nodes, with a closed border, and the voxels that a path may pass through."""

    open: wp.array(dtype=wp.int32)  # [M] flat index of each open node, ascending
    offset: wp.array(dtype=wp.int32)  # [NEIGHBOURS] flat index of a neighbour, counted back from a node
    step_m: wp.array(dtype=wp.float32)  # [NEIGHBOURS] m to that neighbour
    place: wp.array(dtype=wp.vec3)  # [nodes] m: a point in free space that stands for the node
    inside: wp.array3d(dtype=wp.uint8)  # [X, Y, Z] 1 where a path may pass
    origin: wp.vec3  # m: lower corner of voxel (0, 0, 0)
    cell_m: float


@wp.kernel
def sweep_lengths(first: int, nodes: Nodes, goals: wp.array(dtype=wp.int32), length: wp.array2d(dtype=wp.float32)):
    """Fill `length` [G, nodes], m, with the length of the shortest path from each open node to goal node g.

    Nodes that are closed or not connected keep their value, which must be infinite at first. Sweep forth and back until
    no length changes.
    """
    g = first + wp.tid()
    length[g, goals[g]] = float(0.0)
    count = nodes.open.shape[0]
    sweeps = int(0)
    changed = bool(True)
    while changed or sweeps < 2:
        changed = bool(False)
        step = 1 - 2 * (sweeps % 2)
        for n in range(count):
            at = nodes.open[wp.where(step > 0, n, count - 1 - n)]
            found = length[g, at]
            for q in range(NEIGHBOURS):
                found = wp.min(found, length[g, at - step * nodes.offset[q]] + nodes.step_m[q])
            if found < length[g, at]:
                length[g, at] = found
                changed = True
        sweeps += 1


@wp.func
def sees(nodes: Nodes, a: wp.vec3, b: wp.vec3) -> bool:
    """Return whether the straight line between two points stays inside, sampled at every half voxel."""
    count = int(wp.length(b - a) / nodes.cell_m * 2.0) + 1
    for n in range(count + 1):
        p = (a + (b - a) * (float(n) / float(count)) - nodes.origin) / nodes.cell_m
        x = wp.clamp(int(p[0]), 0, nodes.inside.shape[0] - 1)
        y = wp.clamp(int(p[1]), 0, nodes.inside.shape[1] - 1)
        z = wp.clamp(int(p[2]), 0, nodes.inside.shape[2] - 1)
        if nodes.inside[x, y, z] == wp.uint8(0):
            return False
    return True


@wp.func
def next_node(nodes: Nodes, length: wp.array2d(dtype=wp.float32), g: int, at: int) -> int:
    """Return the neighbour through which the shortest path to goal g leads."""
    best = length[g, at]
    found = at
    for q in range(NEIGHBOURS):
        for side in range(2):
            to = at + (1 - 2 * side) * nodes.offset[q]
            if length[g, to] < length[g, at] and length[g, to] + nodes.step_m[q] < best + 1.0e-3:
                best = length[g, to] + nodes.step_m[q]
                found = to
    return found


@wp.kernel
def pull_taut(
    first: int,
    nodes: Nodes,
    length: wp.array2d(dtype=wp.float32),
    goal_of: wp.array(dtype=wp.int32),
    start_node: wp.array(dtype=wp.int32),
    start: wp.array(dtype=wp.vec3),
    goal: wp.array(dtype=wp.vec3),
    taut: wp.array(dtype=wp.float32),
    corners: wp.array2d(dtype=wp.vec3),
    count: wp.array(dtype=wp.int32),
):
    """Write the length of a path, m, that skips every node between two points that see each other, and its corners.

    Corners beyond the room in `corners` [R, C] are left out, but for the goal, which is not among them.
    """
    r = first + wp.tid()
    g = goal_of[r]
    end = goal[r]
    anchor = start[r]
    corners[r, 0] = anchor
    turns = int(1)
    count[r] = 1
    if sees(nodes, anchor, end):
        taut[r] = wp.length(end - anchor)
        return
    total = float(0.0)
    last = anchor
    at = start_node[r]
    arrived = bool(False)
    while not arrived:
        to = next_node(nodes, length, g, at)
        arrived = to == at
        point = nodes.place[to]
        if arrived:
            point = end
        if not sees(nodes, anchor, point):
            total += wp.length(last - anchor)
            anchor = last
            if turns < corners.shape[1]:
                corners[r, turns] = anchor
                turns += 1
        last = point
        at = to
    count[r] = turns
    taut[r] = wp.max(total + wp.length(last - anchor), wp.length(end - start[r]))
