// The 3-D scene: stage, actors, crowd and the camera. Drawn by three.js, which NiceGUI ships.
import { Actors3D } from "./actors3d.js";
import { Crowd3D } from "./crowd3d.js";
import { clear, Stage3D } from "./stage3d.js";

const SLOW_MS = 55; // frames that take longer than this on average make the picture coarser
const LEAST_PIXELS = 0.5; // lowest resolution, relative to the page's
const STILL_MS = 700; // time without a change after which the scene counts as still

export class Scene3D {
  constructor(host, { THREE, OrbitControls }) {
    this.THREE = THREE;
    this.host = host;
    const software = drawsInSoftware();
    this.renderer = new THREE.WebGLRenderer({ antialias: !software, powerPreference: "low-power" });
    this.canvas = this.renderer.domElement;
    host.append(this.canvas);
    this.scene = new THREE.Scene();
    this.camera = new THREE.PerspectiveCamera(50, 1, 0.05, 5000);
    this.camera.up.set(0, 0, 1);
    this.controls = new OrbitControls(this.camera, this.canvas);
    this.controls.maxPolarAngle = Math.PI / 2 - 0.02;
    this.controls.addEventListener("change", () => (this.dirty = true));
    this.controls.addEventListener("start", () => (this.touched = true)); // from here on a person has the camera
    this.sky = new THREE.HemisphereLight(0xffffff, 0x8899aa, 2.0);
    this.sun = new THREE.DirectionalLight(0xffffff, 1.8);
    this.sun.position.set(-0.5, -0.8, 1.4);
    [this.stage, this.actors, this.crowd] = [new Stage3D(THREE), new Actors3D(THREE), new Crowd3D(THREE)];
    this.scene.add(this.sky, this.sun, this.stage.group, this.actors.group, this.crowd.group);
    this.bounds = [[-1, -1, 0], [1, 1, 1]];
    this.pixels = 1;
    this.mode = "overview";
    this.readTheme();
    this.resize();
  }

  get gridStep() {
    return this.stage.step;
  }

  setStage(shapes) {
    this.bounds = shapes.bounds;
    this.stage.set(shapes);
    this.stage.paint(this.dark);
    this.actors.span = this.stage.span;
    this.dirty = true;
  }

  setPayloads(payloads, selected, tints) {
    this.actors.set(payloads, selected, tints);
    this.dirty = true;
  }

  // Draw the state at `t` seconds; options: beams, trails, crowd, beamsOf.
  update(t, options) {
    this.actors.update(t, options);
    this.crowd.update(this.actors.items, options, t);
    const item = this.chosen();
    const beams = item?.shown && options.beams ? options.beamsOf(item.payload, item.moment.frame) : null;
    this.crowd.showBeams(beams, item?.spot, beams ? item.payload.heading(0, item.moment) ?? 0 : 0);
    this.dirty = true;
  }

  chosen() {
    return this.actors.items.find((item) => item.chosen);
  }

  // ---- camera ------------------------------------------------------------------------------------------------------------

  // "overview", "follow" or "top".
  look(mode) {
    this.mode = mode;
    this.touched = false;
    const [low, high] = this.bounds;
    const [x, y] = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
    const span = Math.max(high[0] - low[0], high[1] - low[1], 1);
    this.camera.near = span / 2000;
    this.camera.far = span * 20;
    const narrow = Math.max(1, 1.3 / this.camera.aspect);
    this.last = null;
    if (mode === "follow") this.lookAfter(Math.max(span * 0.11, 1) * Math.sqrt(narrow));
    else if (mode === "top") this.lookFrom([x, y - 0.01, span * 1.1 * narrow], [x, y, 0]);
    else this.lookFrom([x - span * 0.12 * narrow, y - span * 0.85 * narrow, span * 0.68 * narrow], [x, y - span * 0.06, 0]);
    this.camera.updateProjectionMatrix();
    this.controls.update();
    this.dirty = true;
  }

  lookFrom(place, target) {
    this.camera.position.set(...place);
    this.controls.target.set(...target);
  }

  // View from behind the selected actor, towards its goal.
  lookAfter(away) {
    const item = this.chosen();
    const spot = item?.spot ?? [0, 0, 1];
    const goal = item?.goal;
    const turn = goal ? Math.atan2(goal[1] - spot[1], goal[0] - spot[0]) : item?.moment ? item.payload.heading(0, item.moment) ?? 0 : 0;
    this.lookFrom([spot[0] - away * Math.cos(turn), spot[1] - away * Math.sin(turn), spot[2] + away * 0.6], spot);
    this.last = spot;
  }

  trackChosen() {
    const spot = this.chosen()?.spot;
    if (this.mode !== "follow" || !spot) return;
    if (this.last) {
      const { position } = this.camera;
      position.set(position.x + spot[0] - this.last[0], position.y + spot[1] - this.last[1], position.z + spot[2] - this.last[2]);
    }
    this.controls.target.set(...spot);
    this.last = spot;
    this.controls.update();
  }

  // Return the episode drawn at a point of the page, or null.
  pick(x, y) {
    const box = this.canvas.getBoundingClientRect();
    let [best, least] = [null, 22];
    for (const item of this.actors.items) {
      if (!item.shown || !item.spot) continue;
      const at = new this.THREE.Vector3(...item.spot).project(this.camera);
      const away = Math.hypot(box.left + ((at.x + 1) / 2) * box.width - x, box.top + ((1 - at.y) / 2) * box.height - y);
      if (at.z < 1 && away < least) [best, least] = [item.payload, away];
    }
    return best;
  }

  // ---- drawing -----------------------------------------------------------------------------------------------------------

  render() {
    this.trackChosen();
    if (!this.dirty) return this.renderStill();
    this.dirty = false;
    if (this.sharp) this.setPixels(this.pixels);
    this.renderer.render(this.scene, this.camera);
    this.adapt();
    return true;
  }

  // When nothing has moved for a moment, draw once at full resolution.
  renderStill() {
    const now = performance.now();
    if (this.before && this.pixels < 1 && !this.sharp && now - this.before > STILL_MS) {
      this.setPixels(1);
      this.renderer.render(this.scene, this.camera);
      this.before = null;
    }
    return false;
  }

  setPixels(share) {
    this.sharp = share > this.pixels;
    this.renderer.setPixelRatio(Math.min(window.devicePixelRatio || 1, 2) * share);
  }

  // Lower the resolution if frames take too long.
  adapt() {
    const now = performance.now();
    if (this.before && now - this.before < STILL_MS) this.spent = 0.85 * (this.spent ?? 16) + 0.15 * Math.min(500, now - this.before);
    this.before = now;
    if (this.spent > SLOW_MS && this.pixels > LEAST_PIXELS) {
      this.pixels = Math.max(LEAST_PIXELS, this.pixels * 0.8);
      this.spent = 16;
      this.resize();
    }
  }

  resize() {
    const width = Math.max(1, this.host.clientWidth);
    const height = Math.max(1, this.host.clientHeight);
    this.setPixels(this.pixels);
    this.renderer.setSize(width, height);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
    if (!this.touched && this.mode !== "follow") this.look(this.mode);
    this.dirty = true;
  }

  readTheme() {
    this.dark = document.body.classList.contains("body--dark");
    this.scene.background = new this.THREE.Color(this.dark ? 0x0c1218 : 0xe9eff4);
    this.sky.intensity = this.dark ? 1.3 : 2.0;
    this.stage.paint(this.dark);
    this.crowd.paint(this.dark);
    this.dirty = true;
  }

  dispose() {
    clear(this.scene);
    this.controls.dispose();
    this.renderer.dispose();
    this.renderer.forceContextLoss();
    this.canvas.remove();
  }
}

// Return whether there is no graphics card; antialiasing is then off.
function drawsInSoftware() {
  const probe = document.createElement("canvas").getContext("webgl");
  if (!probe) return true;
  const told = probe.getExtension("WEBGL_debug_renderer_info");
  const name = told ? String(probe.getParameter(told.UNMASKED_RENDERER_WEBGL)) : "";
  probe.getExtension("WEBGL_lose_context")?.loseContext();
  return /swiftshader|llvmpipe|software|basic render/i.test(name);
}
