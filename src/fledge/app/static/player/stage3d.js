// Static parts of the 3-D scene: ground, grid, columns. One draw call for each shape.
const GRID_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const WALL = 0.4; // boxes longer than this share of the stage's width are walls, drawn transparent

export class Stage3D {
  constructor(THREE) {
    this.THREE = THREE;
    this.group = new THREE.Group();
    this.meshes = [];
  }

  set(shapes) {
    const { THREE } = this;
    clear(this.group);
    const [low, high] = shapes.bounds;
    this.span = Math.max(high[0] - low[0], high[1] - low[1], 1);
    this.ground = new THREE.Mesh(new THREE.PlaneGeometry(high[0] - low[0], high[1] - low[1]), new THREE.MeshBasicMaterial());
    this.ground.position.set((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, Math.min(low[2], 0) - 0.02);
    this.grid = this.makeGrid(low, high);
    const box = () => new THREE.BoxGeometry(1, 1, 1);
    const [columns, walls] = this.split(shapes.boxes);
    this.meshes = [
      this.instances(box(), columns, 1),
      this.instances(box(), walls, 0.3),
      this.instances(new THREE.CylinderGeometry(0.5, 0.5, 1, 16).rotateX(Math.PI / 2), shapes.cylinders, 1),
    ].filter(Boolean);
    this.group.add(this.ground, this.grid, ...this.meshes);
  }

  split(rows) {
    const parts = [[], []];
    for (let k = 0; k < rows.length; k += 6) {
      const wall = Math.max(rows[k + 3], rows[k + 4]) > WALL * this.span;
      parts[wall ? 1 : 0].push(...rows.subarray(k, k + 6));
    }
    return parts.map((part) => new Float32Array(part));
  }

  makeGrid(low, high) {
    const { THREE } = this;
    this.step = GRID_STEPS.find((size) => this.span / size <= 14) ?? this.span / 10;
    const points = [];
    for (let x = Math.ceil(low[0] / this.step) * this.step; x <= high[0]; x += this.step) points.push(x, low[1], 0, x, high[1], 0);
    for (let y = Math.ceil(low[1] / this.step) * this.step; y <= high[1]; y += this.step) points.push(low[0], y, 0, high[0], y, 0);
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.Float32BufferAttribute(points, 3));
    return new THREE.LineSegments(geometry, new THREE.LineBasicMaterial());
  }

  instances(geometry, rows, opacity) {
    const { THREE } = this;
    const count = rows ? rows.length / 6 : 0;
    if (!count) return null;
    const material = new THREE.MeshLambertMaterial({ transparent: opacity < 1, opacity, depthWrite: opacity === 1 });
    const mesh = new THREE.InstancedMesh(geometry, material, count);
    const at = new THREE.Matrix4();
    for (let k = 0; k < count; k += 1) {
      const [x, y, z, w, d, h] = rows.subarray(6 * k, 6 * k + 6);
      mesh.setMatrixAt(k, at.makeScale(w, d, h).setPosition(x, y, z));
    }
    mesh.userData.rows = rows;
    return mesh;
  }

  paint(dark) {
    if (!this.ground) return;
    const { THREE } = this;
    this.ground.material.color.set(dark ? 0x16202a : 0xf7fafc);
    this.grid.material.color.set(dark ? 0x2a3844 : 0xd3dde6);
    const low = new THREE.Color(dark ? 0x4a5f72 : 0xc3d0db);
    const high = new THREE.Color(dark ? 0x7d95aa : 0x8ea1b3);
    const tint = new THREE.Color();
    for (const mesh of this.meshes) {
      for (let k = 0; k < mesh.count; k += 1) mesh.setColorAt(k, tint.lerpColors(low, high, Math.min(1, mesh.userData.rows[6 * k + 5] / 6)));
      mesh.instanceColor.needsUpdate = true;
    }
  }
}

export function clear(group) {
  group.traverse((object) => {
    object.geometry?.dispose();
    object.material?.dispose();
    if (object.isInstancedMesh) object.dispose();
  });
  group.clear();
}
