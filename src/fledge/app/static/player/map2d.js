// The map from above, on a canvas: for tasks without heights, and for browsers without WebGL.
import { actorColour, colour, withAlpha } from "./palette.js";

const SCALE_STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
const narrow = matchMedia("(max-width: 800px)"); // as player.css has it

export class Map2D {
  constructor(host) {
    this.host = host;
    this.canvas = document.createElement("canvas");
    host.append(this.canvas);
    this.payloads = [];
    this.tints = [];
    this.bounds = [[-1, -1, 0], [1, 1, 1]];
    this.view = null; // centre and metres per pixel; null: all of it
    this.mode = "overview";
    this.dirty = true;
    this.spot = [0, 0, 0];
    this.spots = new Map();
    this.listen();
    this.resize();
  }

  setStage(shapes) {
    this.shapes = shapes;
    this.bounds = shapes.bounds;
    this.dirty = true;
  }

  setPayloads(payloads, selected, tints) {
    [this.payloads, this.selected, this.tints] = [payloads, selected, tints];
    this.dirty = true;
  }

  update(t, options) {
    [this.t, this.options, this.dirty] = [t, options, true];
  }

  look(mode) {
    this.mode = mode;
    this.view = null;
    this.dirty = true;
  }

  listen() {
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const view = this.current();
      this.view = { ...view, scale: view.scale * Math.exp(event.deltaY * 0.0012) };
      this.dirty = true;
    }, { passive: false });
    const fingers = new Map();
    this.canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const view = this.current();
      const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      if (others.length) {
        const [x, y] = others[0];
        const ratio = Math.hypot(before[0] - x, before[1] - y) / Math.max(1, Math.hypot(event.clientX - x, event.clientY - y));
        this.view = { ...view, scale: view.scale * ratio };
      } else if (this.mode !== "follow") {
        this.view = { ...view, x: view.x - (event.clientX - before[0]) * view.scale, y: view.y + (event.clientY - before[1]) * view.scale };
      }
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
      this.dirty = true;
    });
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  }

  // Return the bounds of the stage and of all positions, which grow while an episode is running.
  reach() {
    const key = this.payloads.map((payload) => `${payload.number} ${payload.version}`).join();
    if (this.reachOf === this.bounds && this.reachKey === key) return this.reached;
    [this.reachOf, this.reachKey] = [this.bounds, key];
    const [low, high] = [[...this.bounds[0]], [...this.bounds[1]]];
    for (const payload of this.payloads) {
      for (const actor of payload.head.actors) {
        const pos = payload.array(actor.pos);
        const present = actor.present ? payload.array(actor.present) : null;
        for (let k = 0; 3 * k < pos.length; k += 1) {
          if (present && !present[k]) continue;
          for (const axis of [0, 1]) {
            const room = 0.04 * (high[axis] - low[axis]);
            if (pos[3 * k + axis] < low[axis]) low[axis] = pos[3 * k + axis] - room;
            if (pos[3 * k + axis] > high[axis]) high[axis] = pos[3 * k + axis] + room;
          }
        }
      }
    }
    return (this.reached = [low, high]);
  }

  // Return the centre of the picture, and metres per pixel.
  current() {
    const [low, high] = this.reach();
    const whole = Math.max((high[0] - low[0]) / (this.width - 24), (high[1] - low[1]) / (this.height - 24), 1e-6);
    let view = this.view ?? { x: (low[0] + high[0]) / 2, y: (low[1] + high[1]) / 2, scale: this.mode === "follow" ? whole / 2.5 : whole };
    const spot = this.mode === "follow" ? this.spots.get(this.selected) : null;
    if (spot) view = { ...view, x: spot[0], y: spot[1] };
    return view;
  }

  pick(x, y) {
    const box = this.canvas.getBoundingClientRect();
    const view = this.current();
    let [best, least] = [null, 22];
    for (const [payload, spot] of this.spots) {
      const [px, py] = this.point(view, spot[0], spot[1]);
      const away = Math.hypot(box.left + px - x, box.top + py - y);
      if (away < least) [best, least] = [payload, away];
    }
    return best;
  }

  point(view, x, y) {
    return [this.width / 2 + (x - view.x) / view.scale, this.height / 2 - (y - view.y) / view.scale];
  }

  render() {
    if (!this.dirty) return false;
    this.dirty = false;
    const pen = this.canvas.getContext("2d");
    const ratio = this.ratio;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = colour("panel");
    pen.fillRect(0, 0, this.width, this.height);
    const view = this.current();
    this.drawGrid(pen, view);
    this.drawShapes(pen, view);
    this.spots.clear();
    this.payloads.forEach((payload, k) => this.drawEpisode(pen, view, payload, this.tints[k]));
    this.drawScale(pen, view);
    return true;
  }

  drawGrid(pen, view) {
    const step = SCALE_STEPS.find((size) => size / view.scale > 60) ?? 100000;
    pen.strokeStyle = colour("line");
    pen.lineWidth = 1;
    pen.beginPath();
    const left = view.x - (this.width / 2) * view.scale;
    const bottom = view.y - (this.height / 2) * view.scale;
    for (let x = Math.ceil(left / step) * step; x < left + this.width * view.scale; x += step) {
      const px = Math.round(this.point(view, x, 0)[0]) + 0.5;
      pen.moveTo(px, 0);
      pen.lineTo(px, this.height);
    }
    for (let y = Math.ceil(bottom / step) * step; y < bottom + this.height * view.scale; y += step) {
      const py = Math.round(this.point(view, 0, y)[1]) + 0.5;
      pen.moveTo(0, py);
      pen.lineTo(this.width, py);
    }
    pen.stroke();
    this.step = step;
  }

  drawScale(pen, view) {
    const long = this.step / view.scale;
    const [x, y] = [12, this.height - (narrow.matches ? 58 : 14)]; // on a phone, buttons are below
    pen.strokeStyle = pen.fillStyle = colour("text");
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(x, y - 4);
    pen.lineTo(x, y);
    pen.lineTo(x + long, y);
    pen.lineTo(x + long, y - 4);
    pen.stroke();
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "bottom";
    pen.textAlign = "left";
    pen.fillText(this.step >= 1000 ? `${this.step / 1000} km` : `${this.step} m`, x + 6, y - 4);
    pen.textAlign = "right";
    pen.fillText("north is up", this.width - 12, y + 4);
  }

  drawShapes(pen, view) {
    if (!this.shapes) return;
    pen.fillStyle = withAlpha(colour("soft"), 0.45);
    for (const rows of [this.shapes.boxes, this.shapes.cylinders]) {
      for (let k = 0; rows && k < rows.length; k += 6) {
        const [px, py] = this.point(view, rows[k] - rows[k + 3] / 2, rows[k + 1] + rows[k + 4] / 2);
        pen.fillRect(px, py, rows[k + 3] / view.scale, rows[k + 4] / view.scale);
      }
    }
  }

  drawEpisode(pen, view, payload, tint) {
    const moment = payload.at(this.t - payload.offset);
    if (!moment.there) return;
    const chosen = payload === this.selected;
    const over = this.t - payload.offset >= payload.end - 1e-6 && !payload.head.running;
    const single = payload.head.actors.filter((actor) => actor.kind !== "goal").length === 1;
    if (this.options.crowd) this.drawCrowd(pen, view, payload, moment, chosen);
    payload.head.actors.forEach((actor, k) => {
      const paint = actor.kind === "goal" ? colour("good") : single ? tint : actorColour(actor.colour);
      const here = payload.place(k, moment, this.spot);
      const spot = [...this.spot];
      if (this.options.trails) this.drawTrail(pen, view, payload, actor, moment, paint, chosen);
      if (!here) return;
      if (k === 0) this.spots.set(payload, spot);
      const [px, py] = this.point(view, spot[0], spot[1]);
      this.drawActor(pen, px, py, actor, payload.heading(k, moment), paint, chosen);
      const energy = payload.energy(k, moment);
      if (energy !== null) this.drawEnergy(pen, px, py, energy);
      if (over && actor.destroyed) this.drawCross(pen, px, py);
    });
  }

  drawTrail(pen, view, payload, actor, moment, paint, chosen) {
    const pos = payload.array(actor.pos);
    if (pos.length <= 3) return;
    const present = actor.present ? payload.array(actor.present) : null;
    const weapon = actor.kind === "missile";
    pen.strokeStyle = withAlpha(paint, chosen ? 0.9 : 0.5);
    pen.lineWidth = weapon ? 1.2 : chosen ? 2.2 : 1.2;
    pen.setLineDash(weapon ? [5, 3] : []);
    pen.beginPath();
    let open = false;
    const skip = Math.max(1, Math.floor(moment.frame / 2000));
    for (let f = 0; f <= moment.frame; f += skip) {
      if (present && !present[f]) {
        open = false;
        continue;
      }
      const [px, py] = this.point(view, pos[3 * f], pos[3 * f + 1]);
      if (open) pen.lineTo(px, py);
      else pen.moveTo(px, py);
      open = true;
    }
    pen.stroke();
    pen.setLineDash([]);
  }

  drawActor(pen, px, py, actor, heading, paint, chosen) {
    pen.save();
    pen.translate(px, py);
    pen.fillStyle = paint;
    pen.strokeStyle = colour("panel");
    pen.lineWidth = 1.5;
    pen.beginPath();
    if (heading === null || actor.kind === "goal" || actor.kind === "obstacle") {
      pen.arc(0, 0, actor.kind === "goal" ? 7 : 5, 0, 7);
    } else {
      pen.rotate(-heading);
      const s = actor.kind === "missile" ? 6 : chosen ? 11 : 8;
      const w = actor.kind === "missile" ? 0.35 : 0.65;
      pen.moveTo(s, 0);
      pen.lineTo(-s * 0.8, s * w);
      pen.lineTo(-s * 0.45, 0);
      pen.lineTo(-s * 0.8, -s * w);
      pen.closePath();
    }
    pen.fill();
    pen.stroke();
    pen.restore();
    if (actor.kind === "missile" || !chosen) return;
    pen.fillStyle = colour("text");
    pen.font = "600 12px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "top";
    pen.fillText(actor.name, px, py + 12);
  }

  // Draw a bar of the energy that an actor has left.
  drawEnergy(pen, px, py, energy) {
    const [x, y] = [px + 9, py - 12];
    pen.fillStyle = colour("panel");
    pen.fillRect(x - 1, y - 1, 28, 6);
    pen.fillStyle = colour(energy > 0.35 ? "good" : energy > 0.12 ? "warn" : "bad");
    pen.fillRect(x, y, Math.max(26 * energy, 1.5), 4);
    pen.strokeStyle = colour("soft");
    pen.lineWidth = 1;
    pen.strokeRect(x - 0.5, y - 0.5, 27, 5);
  }

  drawCross(pen, px, py) {
    pen.strokeStyle = colour("bad");
    pen.lineWidth = 3;
    pen.beginPath();
    for (const sign of [1, -1]) {
      pen.moveTo(px - 8, py - 8 * sign);
      pen.lineTo(px + 8, py + 8 * sign);
    }
    pen.stroke();
  }

  drawCrowd(pen, view, payload, moment, chosen) {
    if (!payload.head.crowd) return;
    const sizes = payload.array(payload.head.crowd.sizes);
    payload.crowd(moment, (id, x, y, z, seen) => {
      const [px, py] = this.point(view, x, y);
      pen.fillStyle = seen && chosen ? colour("s5") : colour("s4");
      pen.beginPath();
      pen.arc(px, py, Math.max(2, sizes[3 * id] / 2 / view.scale), 0, 7);
      pen.fill();
    });
  }

  resize() {
    this.width = Math.max(1, this.host.clientWidth);
    this.height = Math.max(1, this.host.clientHeight);
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.canvas.width = this.width * this.ratio;
    this.canvas.height = this.height * this.ratio;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.dirty = true;
  }

  readTheme() {
    this.dirty = true;
  }

  dispose() {
    this.canvas.remove();
  }
}
