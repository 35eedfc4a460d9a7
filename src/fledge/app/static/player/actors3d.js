// Actors in the 3-D scene, with trails and goals. One draw call for all bodies of a shape, and one for all thin trails, which
// the graphics card cuts off at the current time, so that advancing the time costs almost nothing.
import { actorColour, colour } from "./palette.js";
import { clear } from "./stage3d.js";

const THIN = {
  vertexShader: `attribute vec3 tint; attribute float moment; uniform float now; varying vec3 vTint; varying float vLate;
    void main() { vTint = tint; vLate = moment - now; gl_Position = projectionMatrix * modelViewMatrix * vec4(position, 1.0); }`,
  fragmentShader: `varying vec3 vTint; varying float vLate;
    void main() { if (vLate > 0.0) discard; gl_FragColor = vec4(vTint, 0.85);
      #include <colorspace_fragment>
    }`,
};

export class Actors3D {
  constructor(THREE) {
    this.THREE = THREE;
    this.group = new THREE.Group();
    this.lines = new THREE.Group();
    this.group.add(this.lines);
    this.items = [];
    this.spot = [0, 0, 0];
    this.probe = new THREE.Object3D();
    this.tint = new THREE.Color();
    this.span = 1;
  }

  set(payloads, selected, tints) {
    for (const child of [...this.group.children]) if (child !== this.lines) this.drop(child);
    this.items = payloads.map((payload, k) => ({ payload, chosen: payload === selected, tint: tints[k], spot: null, shown: false }));
    const count = payloads.reduce((sum, payload) => sum + payload.head.actors.length, 0);
    this.bodies = { drone: this.instances(this.droneShape(), count), other: this.instances(this.arrowShape(), count) };
    this.goals = this.instances(new this.THREE.SphereGeometry(0.5, 8, 6), count, 0.35);
    this.makeDots(count);
    this.pole = this.makePole();
    this.cross = this.makeCrosses(payloads.length);
    this.group.add(...Object.values(this.bodies), this.goals, this.dots, this.pole, this.cross);
    this.makeLines();
  }

  drop(object) {
    this.group.remove(object);
    clear(object);
  }

  // ---- shapes of one metre, pointing to +x -----------------------------------------------------------------------------------

  droneShape() {
    const { THREE } = this;
    const parts = [new THREE.BoxGeometry(0.34, 0.22, 0.16)];
    for (const turn of [Math.PI / 4, -Math.PI / 4]) parts.push(new THREE.BoxGeometry(0.9, 0.07, 0.07).rotateZ(turn));
    for (let k = 0; k < 4; k += 1) {
      const turn = Math.PI / 4 + (k * Math.PI) / 2;
      parts.push(new THREE.CircleGeometry(0.25, 10).translate(0.42 * Math.cos(turn), 0.42 * Math.sin(turn), 0.09));
    }
    return merged(THREE, parts);
  }

  arrowShape() {
    return new this.THREE.ConeGeometry(0.35, 1, 10).rotateZ(-Math.PI / 2);
  }

  instances(geometry, count, opacity = 1) {
    const { THREE } = this;
    const material = new THREE.MeshLambertMaterial({ side: THREE.DoubleSide, transparent: opacity < 1, opacity, depthWrite: opacity === 1 });
    const mesh = new THREE.InstancedMesh(geometry, material, Math.max(1, count));
    mesh.setColorAt(0, this.tint.set("#ffffff"));
    mesh.frustumCulled = false;
    mesh.count = 0;
    return mesh;
  }

  // Dots of constant size, so that actors are visible from afar and behind columns.
  makeDots(count) {
    const { THREE } = this;
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(new Float32Array(3 * Math.max(1, count)), 3));
    geometry.setAttribute("color", new THREE.BufferAttribute(new Float32Array(3 * Math.max(1, count)), 3));
    const material = new THREE.PointsMaterial({ size: 8, sizeAttenuation: false, vertexColors: true, map: this.disc(), transparent: true, depthTest: false });
    this.dots = new THREE.Points(geometry, material);
    this.dots.frustumCulled = false;
    this.dots.renderOrder = 3;
  }

  disc() {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 32;
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#ffffff";
    pen.beginPath();
    pen.arc(16, 16, 14, 0, 7);
    pen.fill();
    this.discMap ??= new this.THREE.CanvasTexture(canvas);
    return this.discMap;
  }

  makePole() {
    const { THREE } = this;
    const shape = new THREE.CylinderGeometry(0.04, 0.04, 7, 6).rotateX(Math.PI / 2).translate(0, 0, 3.5);
    const pole = new THREE.Mesh(shape, new THREE.MeshBasicMaterial({ transparent: true, opacity: 0.7, color: colour("good") }));
    pole.visible = false;
    return pole;
  }

  makeCrosses(count) {
    const { THREE } = this;
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(new Float32Array(12 * Math.max(1, count)), 3));
    const cross = new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ color: colour("bad"), depthTest: false }));
    cross.frustumCulled = false;
    cross.renderOrder = 4;
    return cross;
  }

  // ---- trails --------------------------------------------------------------------------------------------------------------

  makeLines() {
    clear(this.lines);
    this.versions = this.items.map((item) => item.payload.version).join();
    this.ribbons = [];
    this.thin = this.makeThin();
    if (this.thin) this.lines.add(this.thin);
    const item = this.items.find((each) => each.chosen);
    const actor = item?.payload.head.actors[0];
    if (!actor || item.payload.array(actor.pos).length < 6) return;
    const pos = item.payload.array(actor.pos);
    this.ribbons = [this.span / 1000, this.span / 8000].map((half) => this.makeRibbon(pos, item.tint, half)); // from afar, and close
    this.lines.add(...this.ribbons, this.makeAhead(pos, item.tint));
  }

  makeThin() {
    const { THREE } = this;
    const [points, tints, moments] = [[], [], []];
    for (const { payload, chosen, tint } of this.items) {
      payload.head.actors.forEach((actor, k) => {
        const pos = payload.array(actor.pos);
        if (pos.length < 6 || (chosen && k === 0)) return;
        const present = actor.present ? payload.array(actor.present) : null;
        const paint = this.tint.set(this.paintOf(actor, k, tint));
        const skip = Math.max(1, Math.floor(payload.frames / 300));
        for (let f = 0; f + skip < payload.frames; f += skip) {
          if (present && !(present[f] && present[f + skip])) continue;
          for (const at of [f, f + skip]) {
            points.push(pos[3 * at], pos[3 * at + 1], pos[3 * at + 2]);
            tints.push(paint.r, paint.g, paint.b);
            moments.push(payload.offset + payload.time[at]);
          }
        }
      });
    }
    if (!points.length) return null;
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.Float32BufferAttribute(points, 3));
    geometry.setAttribute("tint", new THREE.Float32BufferAttribute(tints, 3));
    geometry.setAttribute("moment", new THREE.Float32BufferAttribute(moments, 1));
    const lines = new THREE.LineSegments(geometry, new THREE.ShaderMaterial({ ...THIN, uniforms: { now: { value: 0 } }, transparent: true }));
    lines.frustumCulled = false;
    return lines;
  }

  makeAhead(pos, tint) {
    const { THREE } = this;
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(pos, 3));
    const line = new THREE.Line(geometry, new THREE.LineBasicMaterial({ color: tint, transparent: true, opacity: 0.4 }));
    line.frustumCulled = false;
    return line;
  }

  makeRibbon(pos, tint, half) {
    const { THREE } = this;
    const count = pos.length / 3;
    const points = new Float32Array(6 * count);
    const index = [];
    for (let k = 0; k < count; k += 1) {
      const [a, b] = [3 * Math.max(0, k - 1), 3 * Math.min(count - 1, k + 1)];
      const [dx, dy] = [pos[b] - pos[a], pos[b + 1] - pos[a + 1]];
      const length = Math.hypot(dx, dy) || 1;
      const [nx, ny] = [(-half * dy) / length, (half * dx) / length];
      points.set([pos[3 * k] + nx, pos[3 * k + 1] + ny, pos[3 * k + 2], pos[3 * k] - nx, pos[3 * k + 1] - ny, pos[3 * k + 2]], 6 * k);
      if (k) index.push(2 * k - 2, 2 * k - 1, 2 * k, 2 * k, 2 * k - 1, 2 * k + 1);
    }
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(points, 3));
    geometry.setIndex(index);
    const ribbon = new THREE.Mesh(geometry, new THREE.MeshBasicMaterial({ color: tint, side: THREE.DoubleSide }));
    ribbon.frustumCulled = false;
    return ribbon;
  }

  paintOf(actor, k, tint) {
    if (actor.kind === "goal") return colour("good");
    return k === 0 || actor.kind === "drone" ? tint : actorColour(actor.colour);
  }

  // ---- one time step ------------------------------------------------------------------------------------------------------------

  update(t, options) {
    const counts = { drone: 0, other: 0, goal: 0, dot: 0, cross: 0 };
    this.pole.visible = false;
    for (const item of this.items) {
      item.moment = item.payload.at(t - item.payload.offset);
      item.shown = item.moment.there;
      if (item.shown) item.payload.head.actors.forEach((actor, k) => this.place(item, actor, k, t, counts));
    }
    this.bodies.drone.count = counts.drone;
    this.bodies.other.count = counts.other;
    this.goals.count = counts.goal;
    for (const mesh of [this.bodies.drone, this.bodies.other, this.goals]) {
      mesh.instanceMatrix.needsUpdate = mesh.instanceColor.needsUpdate = true;
    }
    this.dots.geometry.setDrawRange(0, counts.dot);
    for (const name of ["position", "color"]) this.dots.geometry.getAttribute(name).needsUpdate = true;
    this.cross.geometry.setDrawRange(0, 4 * counts.cross);
    this.cross.geometry.getAttribute("position").needsUpdate = true;
    this.showLines(t, options);
  }

  place(item, actor, k, t, counts) {
    const { payload } = item;
    if (!payload.place(k, item.moment, this.spot)) return;
    const [x, y, z] = this.spot;
    this.tint.set(this.paintOf(actor, k, item.tint));
    const { probe } = this;
    probe.position.set(x, y, z);
    probe.rotation.z = actor.kind === "goal" ? 0 : payload.heading(k, item.moment) ?? 0;
    probe.scale.setScalar(actor.size_m ?? this.span / 60);
    probe.updateMatrix();
    const kind = actor.kind === "goal" ? "goal" : actor.kind === "drone" ? "drone" : "other";
    const mesh = kind === "goal" ? this.goals : this.bodies[kind];
    mesh.setMatrixAt(counts[kind], probe.matrix);
    mesh.setColorAt(counts[kind], this.tint);
    counts[kind] += 1;
    if (kind === "goal") {
      if (item.chosen) {
        this.pole.visible = true;
        this.pole.position.set(x, y, 0);
        item.goal = [x, y, z];
      }
      return;
    }
    this.dots.geometry.getAttribute("position").setXYZ(counts.dot, x, y, z);
    this.dots.geometry.getAttribute("color").setXYZ(counts.dot, this.tint.r, this.tint.g, this.tint.b);
    counts.dot += 1;
    if (k === 0) item.spot = [x, y, z];
    const over = t - payload.offset >= payload.end - 1e-6 && !payload.head.running;
    if (over && actor.destroyed && k === 0) this.placeCross(counts, x, y, z);
  }

  placeCross(counts, x, y, z) {
    const s = this.span / 110;
    const at = this.cross.geometry.getAttribute("position");
    const ends = [[-s, 0, -s], [s, 0, s], [-s, 0, s], [s, 0, -s]];
    ends.forEach(([dx, dy, dz], k) => at.setXYZ(4 * counts.cross + k, x + dx, y + dy, z + dz));
    counts.cross += 1;
  }

  showLines(t, options) {
    if (this.versions !== this.items.map((item) => item.payload.version).join()) this.makeLines();
    this.lines.visible = options.trails;
    if (this.thin) this.thin.material.uniforms.now.value = t;
    const item = this.items.find((each) => each.chosen);
    this.ribbons.forEach((ribbon, k) => {
      ribbon.visible = options.close === (k === 1);
      ribbon.geometry.setDrawRange(0, 6 * Math.max(0, item?.moment.frame ?? 0));
    });
  }
}

function merged(THREE, parts) {
  const [points, normals, index] = [[], [], []];
  for (const part of parts) {
    const first = points.length / 3;
    points.push(...part.getAttribute("position").array);
    normals.push(...part.getAttribute("normal").array);
    for (const k of part.index.array) index.push(first + k);
    part.dispose();
  }
  const geometry = new THREE.BufferGeometry();
  geometry.setAttribute("position", new THREE.Float32BufferAttribute(points, 3));
  geometry.setAttribute("normal", new THREE.Float32BufferAttribute(normals, 3));
  geometry.setIndex(index);
  return geometry;
}
