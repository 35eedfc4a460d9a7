// Moving obstacles and LiDAR beams in the 3-D scene.
const ROOM = 1024; // moving obstacles of each shape that can be drawn

// Return the world direction of a ray, from its angles in the body and roll, pitch and heading of the body, all in radians.
export function turned(azimuth, elevation, [roll, pitch], heading) {
  const level = Math.cos(elevation);
  const [x, y, z] = [level * Math.cos(azimuth), level * Math.sin(azimuth), Math.sin(elevation)];
  const [across, up] = [Math.cos(roll) * y - Math.sin(roll) * z, Math.sin(roll) * y + Math.cos(roll) * z];
  const [ahead, rise] = [Math.cos(pitch) * x + Math.sin(pitch) * up, -Math.sin(pitch) * x + Math.cos(pitch) * up];
  const [c, s] = [Math.cos(heading), Math.sin(heading)];
  return [c * ahead - s * across, s * ahead + c * across, rise];
}

export class Crowd3D {
  constructor(THREE) {
    this.THREE = THREE;
    this.group = new THREE.Group();
    this.probe = new THREE.Object3D();
    const shapes = [new THREE.BoxGeometry(1, 1, 1), new THREE.CylinderGeometry(0.5, 0.5, 1, 14).rotateX(Math.PI / 2)];
    this.meshes = shapes.map((shape) => {
      const mesh = new THREE.InstancedMesh(shape, new THREE.MeshLambertMaterial(), ROOM);
      mesh.frustumCulled = false;
      mesh.count = 0;
      mesh.setColorAt(0, new THREE.Color());
      return mesh;
    });
    this.hits = this.makeBeams(THREE.LineSegments, new THREE.LineBasicMaterial({ transparent: true, opacity: 0.8 }));
    this.misses = this.makeBeams(THREE.LineSegments, new THREE.LineBasicMaterial({ transparent: true, opacity: 0.13 }));
    this.ends = this.makeBeams(THREE.Points, new THREE.PointsMaterial({ size: 4, sizeAttenuation: false }));
    this.group.add(...this.meshes, this.hits, this.misses, this.ends);
  }

  makeBeams(Kind, material) {
    const object = new Kind(new this.THREE.BufferGeometry(), material);
    object.frustumCulled = false;
    object.visible = false;
    return object;
  }

  // Draw the obstacles of all `items` (payload and time); those that the selected drone detects are highlighted.
  update(items, options, t) {
    const movers = new Map();
    for (const item of items) {
      if (!options.crowd || !item.shown || t - item.payload.offset > item.payload.end + 0.3) continue;
      item.payload.crowd(item.moment, (id, x, y, z, seen) => {
        const before = movers.get(id);
        movers.set(id, [x, y, z, (item.chosen && seen) || Boolean(before?.[3]), item.payload]);
      });
    }
    const counts = [0, 0];
    for (const [id, [x, y, z, seen, payload]] of movers) {
      const sizes = payload.array(payload.head.crowd.sizes);
      const round = payload.array(payload.head.crowd.round)[id] ? 1 : 0;
      if (counts[round] >= ROOM) continue;
      this.probe.position.set(x, y, z);
      this.probe.scale.set(sizes[3 * id], sizes[3 * id + 1], sizes[3 * id + 2]);
      this.probe.updateMatrix();
      this.meshes[round].setMatrixAt(counts[round], this.probe.matrix);
      this.meshes[round].setColorAt(counts[round], seen ? this.seenColour : this.moverColour);
      counts[round] += 1;
    }
    this.meshes.forEach((mesh, round) => {
      mesh.count = counts[round];
      mesh.instanceMatrix.needsUpdate = mesh.instanceColor.needsUpdate = true;
    });
    this.shown = counts[0] + counts[1];
  }

  // Draw the beams of the selected drone from its position and heading; null hides them.
  showBeams(beams, spot, heading) {
    const [hits, misses, ends] = [[], [], []];
    if (beams && spot) {
      const { azimuths, elevations, single, tilt, range, distance } = beams;
      const [x, y, z] = spot;
      const rows = single ? 1 : elevations.length;
      for (let n = 0; n < distance.length; n += 1) {
        const [azimuth, elevation] = [azimuths[Math.floor(n / rows)], elevations[single ? n : n % rows]];
        const reach = distance[n] === 255 ? range : (distance[n] / 254) * range;
        const [dx, dy, dz] = turned(azimuth, elevation, tilt, heading);
        const end = [x + reach * dx, y + reach * dy, z + reach * dz];
        (distance[n] === 255 ? misses : hits).push(x, y, z, ...end);
        if (distance[n] !== 255) ends.push(...end);
      }
    }
    this.fill(this.hits, hits);
    this.fill(this.misses, misses);
    this.fill(this.ends, ends);
  }

  fill(object, points) {
    const { THREE } = this;
    object.visible = points.length > 0;
    if (!object.visible) return;
    const known = object.geometry.getAttribute("position");
    if (!known || known.array.length < points.length) {
      object.geometry.dispose();
      object.geometry = new THREE.BufferGeometry();
      object.geometry.setAttribute("position", new THREE.BufferAttribute(new Float32Array(2 * points.length), 3));
    }
    const at = object.geometry.getAttribute("position");
    at.array.set(points);
    at.needsUpdate = true;
    object.geometry.setDrawRange(0, points.length / 3);
  }

  paint(dark) {
    const { THREE } = this;
    this.moverColour = new THREE.Color(dark ? 0xe0a93f : 0xd08e12);
    this.seenColour = new THREE.Color(dark ? 0xff6fc3 : 0xc0268f);
    this.hits.material.color.set(dark ? 0x6cc4ff : 0x0b6fae);
    this.ends.material.color.set(dark ? 0xd5efff : 0x063f66);
    this.misses.material.color.set(dark ? 0x9fd0ff : 0x0b6fae);
  }
}
