// The 3-D scene: a stage of boxes, the crowd, everybody's trail, beams and camera. Drawn by three.js, which NiceGUI ships.
import { actorColour, colour } from "./palette.js";

const CROWD_ROOM = 1024; // movers of each shape
const SLOW_MS = 60; // a frame that takes longer makes the picture coarser

export class Scene3D {
  constructor(host, three) {
    const { THREE, OrbitControls } = three;
    this.THREE = THREE;
    this.host = host;
    this.renderer = new THREE.WebGLRenderer({ antialias: true, powerPreference: "low-power" });
    this.canvas = this.renderer.domElement;
    host.append(this.canvas);
    this.scene = new THREE.Scene();
    this.camera = new THREE.PerspectiveCamera(50, 1, 0.05, 5000);
    this.camera.up.set(0, 0, 1);
    this.controls = new OrbitControls(this.camera, this.canvas);
    this.controls.maxPolarAngle = Math.PI / 2 - 0.02;
    this.controls.addEventListener("change", () => (this.dirty = true));
    this.controls.addEventListener("start", () => (this.touched = true));
    this.sky = new THREE.HemisphereLight(0xffffff, 0x8899aa, 2.0);
    this.sun = new THREE.DirectionalLight(0xffffff, 1.8);
    this.sun.position.set(-0.5, -0.8, 1.4);
    this.scene.add(this.sky, this.sun);
    this.stageGroup = new THREE.Group();
    this.filmGroup = new THREE.Group();
    this.scene.add(this.stageGroup, this.filmGroup);
    this.makeCrowd();
    this.makeBeams();
    this.reels = []; // what is drawn of each film
    this.follow = null;
    this.coarse = 1;
    this.spent = 0;
    this.bounds = [[-1, -1, 0], [1, 1, 1]];
    this.dirty = true;
    this.spot = [0, 0, 0];
    this.probe = new THREE.Object3D();
    this.readTheme();
    this.resize();
  }

  // ---- what stands still -------------------------------------------------------------------------------------------------

  setStage(shapes) {
    const { THREE } = this;
    this.clear(this.stageGroup);
    this.bounds = shapes.bounds;
    const [low, high] = shapes.bounds;
    const size = [high[0] - low[0], high[1] - low[1]];
    this.ground = new THREE.Mesh(new THREE.PlaneGeometry(...size), new THREE.MeshLambertMaterial({ color: this.groundColour }));
    this.ground.position.set((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, Math.min(low[2], 0) - 0.01);
    this.stageGroup.add(this.ground, this.makeGrid(low, high));
    this.columns = [
      this.instances(new THREE.BoxGeometry(1, 1, 1), shapes.boxes),
      this.instances(new THREE.CylinderGeometry(0.5, 0.5, 1, 20).rotateX(Math.PI / 2), shapes.cylinders),
    ].filter(Boolean);
    this.stageGroup.add(...this.columns);
    this.paintStage();
    this.dirty = true;
  }

  makeGrid(low, high) {
    const { THREE } = this;
    const span = Math.max(high[0] - low[0], high[1] - low[1]);
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((s) => span / s <= 14) ?? span / 10;
    const points = [];
    for (let x = Math.ceil(low[0] / step) * step; x <= high[0]; x += step) points.push(x, low[1], 0, x, high[1], 0);
    for (let y = Math.ceil(low[1] / step) * step; y <= high[1]; y += step) points.push(low[0], y, 0, high[0], y, 0);
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.Float32BufferAttribute(points, 3));
    this.grid = new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ color: this.gridColour }));
    this.gridStep = step;
    return this.grid;
  }

  instances(geometry, rows) {
    const { THREE } = this;
    const count = rows ? rows.length / 6 : 0;
    if (!count) return null;
    const mesh = new THREE.InstancedMesh(geometry, new THREE.MeshLambertMaterial(), count);
    const at = new THREE.Matrix4();
    for (let k = 0; k < count; k += 1) {
      const [x, y, z, w, d, h] = rows.subarray(6 * k, 6 * k + 6);
      at.makeScale(w, d, h).setPosition(x, y, z);
      mesh.setMatrixAt(k, at);
    }
    mesh.userData.rows = rows;
    return mesh;
  }

  // ---- what moves ------------------------------------------------------------------------------------------------------

  makeCrowd() {
    const { THREE } = this;
    const shapes = [new THREE.BoxGeometry(1, 1, 1), new THREE.CylinderGeometry(0.5, 0.5, 1, 16).rotateX(Math.PI / 2)];
    this.crowds = shapes.map((shape) => {
      const material = new THREE.MeshLambertMaterial({ transparent: true, opacity: 0.85 });
      const mesh = new THREE.InstancedMesh(shape, material, CROWD_ROOM);
      mesh.frustumCulled = false;
      mesh.count = 0;
      mesh.setColorAt(0, new THREE.Color());
      this.scene.add(mesh);
      return mesh;
    });
  }

  makeBeams() {
    const { THREE } = this;
    const make = (Kind, material) => {
      const object = new Kind(new THREE.BufferGeometry(), material);
      object.frustumCulled = false;
      object.visible = false;
      this.scene.add(object);
      return object;
    };
    this.beamHits = make(THREE.LineSegments, new THREE.LineBasicMaterial({ transparent: true, opacity: 0.75 }));
    this.beamMisses = make(THREE.LineSegments, new THREE.LineBasicMaterial({ transparent: true, opacity: 0.13 }));
    this.beamEnds = make(THREE.Points, new THREE.PointsMaterial({ size: 4, sizeAttenuation: false }));
  }

  // Show these films; `selected` is one of them, `tints` their colours.
  setFilms(films, selected, tints) {
    this.clear(this.filmGroup);
    this.selected = selected;
    this.reels = films.map((film, k) => this.makeReel(film, film === selected, tints[k]));
    this.dirty = true;
  }

  makeReel(film, chosen, tint) {
    const { THREE } = this;
    const group = new THREE.Group();
    this.filmGroup.add(group);
    const actors = film.head.actors.map((actor, k) => {
      const moves = this.shape(film, actor);
      const paint = actor.kind === "goal" ? colour("good") : k === 0 || actor.kind === "drone" ? tint : actorColour(actor.colour);
      const body = this.makeBody(actor, paint, chosen);
      group.add(body);
      const trail = moves ? this.makeTrail(film, actor, paint, chosen) : null;
      if (trail) group.add(...trail.objects);
      return { actor, body, trail };
    });
    const cross = this.makeCross();
    group.add(cross);
    return { film, group, actors, cross, version: film.version, chosen, tint };
  }

  shape(film, actor) {
    return film.array(actor.pos).length > 3;
  }

  makeBody(actor, paint, chosen) {
    const { THREE } = this;
    const span = Math.hypot(this.bounds[1][0] - this.bounds[0][0], this.bounds[1][1] - this.bounds[0][1]);
    const size = actor.size_m ?? span / 60;
    const group = new THREE.Group();
    if (actor.kind === "goal") {
      const ball = new THREE.Mesh(
        new THREE.SphereGeometry(size / 2, 20, 14),
        new THREE.MeshBasicMaterial({ color: paint, transparent: true, opacity: chosen ? 0.45 : 0.15, depthWrite: false }),
      );
      group.add(ball);
      if (chosen) {
        const pole = new THREE.Mesh(new THREE.CylinderGeometry(0.03, 0.03, 7, 6).rotateX(Math.PI / 2), new THREE.MeshBasicMaterial({ color: paint, transparent: true, opacity: 0.6 }));
        pole.position.z = 3.5;
        group.add(pole);
      }
      return group;
    }
    const material = new THREE.MeshLambertMaterial({ color: paint, emissive: paint, emissiveIntensity: 0.35 });
    if (actor.kind === "drone") {
      const arm = new THREE.BoxGeometry(size * 0.9, size * 0.08, size * 0.08);
      const rotor = new THREE.CylinderGeometry(size * 0.24, size * 0.24, size * 0.03, 12).rotateX(Math.PI / 2);
      for (const turn of [Math.PI / 4, -Math.PI / 4]) {
        const beam = new THREE.Mesh(arm, material);
        beam.rotation.z = turn;
        group.add(beam);
      }
      for (let k = 0; k < 4; k += 1) {
        const disc = new THREE.Mesh(rotor, material);
        const turn = Math.PI / 4 + (k * Math.PI) / 2;
        disc.position.set(size * 0.42 * Math.cos(turn), size * 0.42 * Math.sin(turn), size * 0.08);
        group.add(disc);
      }
      group.add(new THREE.Mesh(new THREE.BoxGeometry(size * 0.3, size * 0.22, size * 0.16), material));
    } else {
      group.add(new THREE.Mesh(new THREE.ConeGeometry(size * 0.35, size, 10).rotateZ(-Math.PI / 2), material));
    }
    // a dot of constant size, so that it is seen from afar
    const dot = new THREE.BufferGeometry();
    dot.setAttribute("position", new THREE.Float32BufferAttribute([0, 0, 0], 3));
    const halo = new THREE.Points(dot, new THREE.PointsMaterial({ color: paint, size: chosen ? 9 : 6, sizeAttenuation: false, map: this.disc(), transparent: true, depthTest: false }));
    halo.renderOrder = 3;
    group.add(halo);
    return group;
  }

  disc() {
    if (!this.discMap) {
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = 32;
      const context = canvas.getContext("2d");
      context.fillStyle = "#ffffff";
      context.beginPath();
      context.arc(16, 16, 14, 0, 7);
      context.fill();
      this.discMap = new this.THREE.CanvasTexture(canvas);
    }
    return this.discMap;
  }

  makeCross() {
    const { THREE } = this;
    const s = 0.45;
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute(
      "position",
      new THREE.Float32BufferAttribute([-s, -s, -s, s, s, s, -s, s, -s, s, -s, s, s, -s, -s, -s, s, s, s, s, -s, -s, -s, s], 3),
    );
    const cross = new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ color: colour("bad"), depthTest: false }));
    cross.visible = false;
    cross.renderOrder = 4;
    return cross;
  }

  // A line of the whole way, faint, and of the way so far; the chosen one's as a ribbon that is seen from afar.
  makeTrail(film, actor, paint, chosen) {
    const { THREE } = this;
    const pos = film.array(actor.pos);
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(pos, 3));
    const past = new THREE.Line(geometry, new THREE.LineBasicMaterial({ color: paint, transparent: true, opacity: chosen ? 1 : 0.65 }));
    past.frustumCulled = false;
    const objects = [past];
    let ribbon = null;
    let ahead = null;
    if (chosen) {
      const whole = new THREE.BufferGeometry();
      whole.setAttribute("position", new THREE.BufferAttribute(pos, 3));
      ahead = new THREE.Line(whole, new THREE.LineBasicMaterial({ color: paint, transparent: true, opacity: 0.3 }));
      ahead.frustumCulled = false;
      ribbon = this.makeRibbon(pos, paint);
      objects.push(ahead, ribbon);
    }
    return { objects, past, ribbon, ahead };
  }

  makeRibbon(pos, paint) {
    const { THREE } = this;
    const count = pos.length / 3;
    const span = Math.hypot(this.bounds[1][0] - this.bounds[0][0], this.bounds[1][1] - this.bounds[0][1]);
    const half = span / 900;
    const points = new Float32Array(6 * count);
    const index = [];
    for (let k = 0; k < count; k += 1) {
      const a = 3 * Math.max(0, k - 1);
      const b = 3 * Math.min(count - 1, k + 1);
      const dx = pos[b] - pos[a];
      const dy = pos[b + 1] - pos[a + 1];
      const length = Math.hypot(dx, dy) || 1;
      for (const [side, sign] of [[0, 1], [1, -1]]) {
        points[6 * k + 3 * side] = pos[3 * k] - (sign * half * dy) / length;
        points[6 * k + 3 * side + 1] = pos[3 * k + 1] + (sign * half * dx) / length;
        points[6 * k + 3 * side + 2] = pos[3 * k + 2];
      }
      if (k) index.push(2 * k - 2, 2 * k - 1, 2 * k, 2 * k, 2 * k - 1, 2 * k + 1);
    }
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(points, 3));
    geometry.setIndex(index);
    const ribbon = new THREE.Mesh(geometry, new THREE.MeshBasicMaterial({ color: paint, side: THREE.DoubleSide, transparent: true, opacity: 0.85 }));
    ribbon.frustumCulled = false;
    return ribbon;
  }

  // ---- a moment --------------------------------------------------------------------------------------------------------

  // Put everything where it is at `t` seconds; options: beams, trails, crowd.
  update(t, options) {
    const movers = new Map();
    let range = 0;
    for (const reel of this.reels) {
      if (reel.version !== reel.film.version) this.renew(reel);
      const moment = reel.film.at(t - reel.film.offset);
      const shown = moment.there && (reel.chosen || !reel.film.head.gone);
      reel.group.visible = shown;
      if (!shown) continue;
      this.updateReel(reel, moment, t, options);
      if (options.crowd && moment.there && t - reel.film.offset <= reel.film.end + 0.5) {
        reel.film.crowd(moment, (id, x, y, z, seen) => {
          const before = movers.get(id);
          movers.set(id, [x, y, z, reel.chosen && seen ? 1 : before ? before[3] : 0, reel.film]);
        });
      }
      if (reel.chosen) range = this.updateBeams(reel, moment, options);
    }
    if (!range) this.hideBeams();
    this.updateCrowd(movers);
    this.dirty = true;
  }

  renew(reel) {
    // the film has grown: only its lines have to be made again
    for (const each of reel.actors) {
      if (!each.trail) continue;
      for (const object of each.trail.objects) {
        reel.group.remove(object);
        object.geometry.dispose();
        object.material.dispose();
      }
      each.trail = this.makeTrail(reel.film, each.actor, reel.tint, reel.chosen);
      reel.group.add(...each.trail.objects);
    }
    reel.version = reel.film.version;
  }

  updateReel(reel, moment, t, options) {
    const { film } = reel;
    const over = t - film.offset >= film.end - 1e-6 && !film.head.running;
    reel.cross.visible = false;
    reel.actors.forEach(({ actor, body, trail }, k) => {
      const here = film.place(k, moment, this.spot);
      body.visible = here;
      if (here) {
        body.position.set(...this.spot);
        const heading = film.heading(k, moment);
        if (heading !== null) body.rotation.z = heading;
      }
      if (k === 0 && here) {
        reel.spot = [...this.spot];
        if (over && actor.destroyed) {
          reel.cross.visible = true;
          reel.cross.position.set(...this.spot);
        }
      }
      if (trail) {
        const upTo = moment.frame + 1;
        trail.past.visible = options.trails && !reel.chosen;
        trail.past.geometry.setDrawRange(0, upTo);
        if (trail.ribbon) {
          trail.ribbon.visible = options.trails;
          trail.ribbon.geometry.setDrawRange(0, 6 * Math.max(0, upTo - 1));
          trail.ahead.visible = options.trails;
        }
      }
    });
  }

  updateCrowd(movers) {
    const { probe } = this;
    const counts = [0, 0];
    for (const [id, [x, y, z, seen, film]] of movers) {
      const sizes = film.array(film.head.crowd.sizes);
      const round = film.array(film.head.crowd.round)[id] ? 1 : 0;
      const mesh = this.crowds[round];
      const k = counts[round];
      if (k >= CROWD_ROOM) continue;
      probe.position.set(x, y, z);
      probe.scale.set(sizes[3 * id], sizes[3 * id + 1], sizes[3 * id + 2]);
      probe.updateMatrix();
      mesh.setMatrixAt(k, probe.matrix);
      mesh.setColorAt(k, seen ? this.seenColour : this.moverColour);
      counts[round] += 1;
    }
    this.crowds.forEach((mesh, round) => {
      mesh.count = counts[round];
      mesh.instanceMatrix.needsUpdate = true;
      if (mesh.instanceColor) mesh.instanceColor.needsUpdate = true;
    });
    this.moversShown = counts[0] + counts[1];
  }

  updateBeams(reel, moment, options) {
    const beams = options.beams && moment.there ? options.beamsOf(reel.film, moment.frame) : null;
    if (!beams || !reel.spot) return 0;
    const heading = reel.film.heading(0, moment) ?? 0;
    const { azimuths, elevations, range, distance } = beams;
    const hits = [];
    const misses = [];
    const ends = [];
    const [x, y, z] = reel.spot;
    for (let h = 0; h < azimuths.length; h += 1) {
      for (let v = 0; v < elevations.length; v += 1) {
        const value = distance[h * elevations.length + v];
        const reach = value === 255 ? range : (value / 254) * range;
        const level = Math.cos(elevations[v]) * reach;
        const turn = heading + azimuths[h];
        const end = [x + level * Math.cos(turn), y + level * Math.sin(turn), z + reach * Math.sin(elevations[v])];
        (value === 255 ? misses : hits).push(x, y, z, ...end);
        if (value !== 255) ends.push(...end);
      }
    }
    this.fill(this.beamHits, hits);
    this.fill(this.beamMisses, misses);
    this.fill(this.beamEnds, ends);
    return range;
  }

  fill(object, points) {
    const { THREE } = this;
    const known = object.geometry.getAttribute("position");
    if (known && known.array.length >= points.length) {
      known.array.set(points);
      known.needsUpdate = true;
    } else {
      object.geometry.dispose();
      object.geometry = new THREE.BufferGeometry();
      object.geometry.setAttribute("position", new THREE.BufferAttribute(new Float32Array(Math.max(900, points.length)).fill(0), 3));
      object.geometry.getAttribute("position").array.set(points);
    }
    object.geometry.setDrawRange(0, points.length / 3);
    object.visible = points.length > 0;
  }

  hideBeams() {
    for (const object of [this.beamHits, this.beamMisses, this.beamEnds]) object.visible = false;
  }

  // ---- camera ------------------------------------------------------------------------------------------------------------

  // "overview", "follow" or "top".
  look(mode) {
    const { THREE } = this;
    this.mode = mode;
    this.touched = false;
    const [low, high] = this.bounds;
    const middle = new THREE.Vector3((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, 0);
    const span = Math.max(high[0] - low[0], high[1] - low[1], 1);
    this.camera.near = span / 2000;
    this.camera.far = span * 20;
    const narrow = Math.max(1, 1.25 / this.camera.aspect);
    this.last = null;
    if (mode === "follow") {
      const spot = this.chosenSpot();
      const near = Math.max(span * 0.13, 1) * Math.sqrt(narrow);
      const turn = this.chosenHeading();
      this.controls.target.set(...spot);
      this.camera.position.set(spot[0] - near * Math.cos(turn), spot[1] - near * Math.sin(turn), spot[2] + near * 0.55);
      this.last = spot;
    } else if (mode === "top") {
      this.controls.target.copy(middle);
      this.camera.position.set(middle.x, middle.y - 0.01, span * 1.12 * narrow);
    } else {
      this.controls.target.copy(middle);
      this.camera.position.set(middle.x - span * 0.18 * narrow, middle.y - span * 0.82 * narrow, span * 0.62 * narrow);
    }
    this.camera.updateProjectionMatrix();
    this.controls.update();
    this.dirty = true;
  }

  chosenReel() {
    return this.reels.find((reel) => reel.chosen);
  }

  chosenSpot() {
    return this.chosenReel()?.spot ?? [0, 0, 1];
  }

  chosenHeading() {
    const reel = this.chosenReel();
    const goal = reel?.actors.find(({ actor }) => actor.kind === "goal");
    const spot = this.chosenSpot();
    return goal ? Math.atan2(goal.body.position.y - spot[1], goal.body.position.x - spot[0]) : 0;
  }

  trackChosen() {
    if (this.mode !== "follow" || !this.last) return;
    const spot = this.chosenSpot();
    const step = spot.map((value, k) => value - this.last[k]);
    this.controls.target.set(...spot);
    this.camera.position.set(this.camera.position.x + step[0], this.camera.position.y + step[1], this.camera.position.z + step[2]);
    this.last = spot;
    this.controls.update();
  }

  // Which film is drawn at a point of the canvas; null where there is none.
  pick(x, y) {
    const box = this.canvas.getBoundingClientRect();
    let best = null;
    let least = 22;
    for (const reel of this.reels) {
      if (!reel.group.visible || !reel.spot) continue;
      const at = new this.THREE.Vector3(...reel.spot).project(this.camera);
      const away = Math.hypot(box.left + ((at.x + 1) / 2) * box.width - x, box.top + ((1 - at.y) / 2) * box.height - y);
      if (at.z < 1 && away < least) [best, least] = [reel.film, away];
    }
    return best;
  }

  // ---- drawing -----------------------------------------------------------------------------------------------------------

  render() {
    this.trackChosen();
    if (!this.dirty) return false;
    this.dirty = false;
    const begun = performance.now();
    this.renderer.render(this.scene, this.camera);
    this.adapt(performance.now() - begun);
    return true;
  }

  // Where drawing takes long, draw fewer pixels.
  adapt(ms) {
    this.spent = 0.9 * this.spent + 0.1 * ms;
    if (this.spent > SLOW_MS && this.coarse > 0.5) {
      this.coarse *= 0.75;
      this.spent = 0;
      this.resize();
    }
  }

  resize() {
    const width = Math.max(1, this.host.clientWidth);
    const height = Math.max(1, this.host.clientHeight);
    this.renderer.setPixelRatio(Math.min(window.devicePixelRatio || 1, 2) * this.coarse);
    this.renderer.setSize(width, height);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
    this.dirty = true;
  }

  readTheme() {
    const { THREE } = this;
    const dark = document.body.classList.contains("body--dark");
    this.dark = dark;
    this.scene.background = new THREE.Color(dark ? 0x0c1218 : 0xe9eff4);
    this.groundColour = new THREE.Color(dark ? 0x1a242e : 0xffffff);
    this.gridColour = new THREE.Color(dark ? 0x2f3d4a : 0xc9d4de);
    this.moverColour = new THREE.Color(dark ? 0xd9a441 : 0xc98a16);
    this.seenColour = new THREE.Color(dark ? 0xff5c4d : 0xd42a1c);
    this.sky.intensity = dark ? 1.3 : 2.0;
    this.beamHits.material.color.set(dark ? 0xff7b6b : 0xc0342b);
    this.beamEnds.material.color.set(dark ? 0xff7b6b : 0xc0342b);
    this.beamMisses.material.color.set(dark ? 0x9fd0ff : 0x0b6fae);
    this.paintStage();
    this.dirty = true;
  }

  paintStage() {
    if (!this.ground) return;
    this.ground.material.color.copy(this.groundColour);
    this.grid.material.color.copy(this.gridColour);
    const low = new this.THREE.Color(this.dark ? 0x4a5f72 : 0xb9c7d3);
    const high = new this.THREE.Color(this.dark ? 0x7d95aa : 0x7f93a6);
    for (const mesh of this.columns) {
      const rows = mesh.userData.rows;
      const tint = new this.THREE.Color();
      for (let k = 0; k < mesh.count; k += 1) mesh.setColorAt(k, tint.lerpColors(low, high, Math.min(1, rows[6 * k + 5] / 6)));
      mesh.instanceColor.needsUpdate = true;
    }
  }

  clear(group) {
    group.traverse((object) => {
      object.geometry?.dispose();
      object.material?.dispose();
      object.dispose?.();
    });
    group.clear();
  }

  dispose() {
    this.clear(this.scene);
    this.controls.dispose();
    this.renderer.dispose();
    this.renderer.forceContextLoss();
    this.canvas.remove();
  }
}
