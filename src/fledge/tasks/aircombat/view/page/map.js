// The tactical map: both sides from above with their trails, missiles with their energy, and ranges of shots.
import { Labels } from "./labels.js";
import { Paper, hitBy, km, niceStep } from "./paper.js";

const TRAIL_S = 90;
const MARK_S = 10; // marks along a trail
const FAST = 1200; // m/s of a missile with all its energy
const SLOW = 200; // m/s at which it is spent

export class TacticalMap {
  constructor(canvas) {
    this.paper = new Paper(canvas);
    this.labels = new Labels(this.paper);
    this.covered = []; // panels above the map: [left, top, right, bottom] in pixels
    this.head = this.foot = 0; // pixels at the top and bottom to keep free of aircraft
    this.mode = "both"; // both: north up, all in view. own: own aircraft in the middle, its nose up
    this.zoom = 1;
    this.rings = "both"; // both, enemy, own, none
    this.ways = true;
    this.view = null;
    this.canvas = canvas;
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoomBy(Math.exp(-event.deltaY / 500));
      },
      { passive: false },
    );
  }

  zoomBy(factor) {
    this.zoom = Math.min(Math.max(this.zoom * factor, 0.2), 20);
  }

  // Return the target view: centre (m), metres in half of the shorter side, rotation (rad).
  wanted(moment, me) {
    const own = moment.sides[me];
    const all = moment.sides.flatMap((side) => [side, ...side.missiles]);
    if (this.mode === "own") {
      const far = Math.max(...all.map((p) => Math.hypot(p.x - own.x, p.y - own.y)), 8000);
      return { x: own.x, y: own.y, half: 1.2 * far, turn: Math.PI / 2 - own.heading };
    }
    const xs = all.map((p) => p.x);
    const ys = all.map((p) => p.y);
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const { width } = this.paper;
    const { height } = this;
    const wide = (right - left) / 2 / Math.max(width / Math.min(width, height), 1);
    const tall = (high - low) / 2 / Math.max(height / Math.min(width, height), 1);
    const half = Math.max(1.35 * Math.max(wide, tall), 6000);
    return { x: (left + right) / 2, y: (low + high) / 2, half, turn: 0 };
  }

  // Return the part of the map that is not covered.
  get height() {
    return Math.max(this.paper.height - this.head - this.foot, 120);
  }

  follow(moment, me) {
    const to = this.wanted(moment, me);
    if (this.view === null || this.jumped) {
      this.view = to;
      this.jumped = false;
    } else {
      const share = this.mode === "own" ? 1 : 0.12;
      for (const name of ["x", "y"]) this.view[name] += share * (to[name] - this.view[name]);
      this.view.half += 0.08 * (to.half - this.view.half);
      const by = to.turn - this.view.turn;
      this.view.turn += 0.25 * Math.atan2(Math.sin(by), Math.cos(by));
    }
    this.scale = (this.zoom * Math.min(this.paper.width, this.height)) / 2 / this.view.half;
    this.cos = Math.cos(this.view.turn);
    this.sin = Math.sin(this.view.turn);
  }

  place(x, y) {
    const dx = x - this.view.x;
    const dy = y - this.view.y;
    return [
      this.paper.width / 2 + this.scale * (this.cos * dx - this.sin * dy),
      this.head + this.height / 2 - this.scale * (this.sin * dx + this.cos * dy),
    ];
  }

  // Draw one state; `names` of the sides, `me`: the user's side, `graph`: the server's newest graph.
  draw(store, moment, { graph = null, me = 0, names = ["blue", "red"], ending = null } = {}) {
    if (!this.paper.begin() || moment === null) return;
    this.follow(moment, me);
    this.labels.clear();
    for (const box of this.covered) this.labels.keepFree(...box);
    this.drawGrid();
    if (graph !== null) this.drawRings(moment, graph, me);
    if (graph !== null && this.ways) this.drawWays(moment, graph, me);
    this.drawRange(moment);
    for (const side of [0, 1]) this.drawTrails(store, moment, side);
    for (const side of [0, 1]) this.drawMissiles(moment, side);
    for (const side of [0, 1]) this.drawFighter(moment, side, names[side], ending);
    this.drawScale();
    this.labels.draw();
  }

  drawGrid() {
    const { paper, view } = this;
    const reach = Math.hypot(paper.width, paper.height) / 2 / this.scale;
    const step = niceStep(2 * view.half / this.zoom, 6);
    for (let k = Math.ceil((view.x - reach) / step); k * step <= view.x + reach; k++) {
      paper.line([this.place(k * step, view.y - reach), this.place(k * step, view.y + reach)], paper.colours.line, k ? 1 : 1.6);
    }
    for (let k = Math.ceil((view.y - reach) / step); k * step <= view.y + reach; k++) {
      paper.line([this.place(view.x - reach, k * step), this.place(view.x + reach, k * step)], paper.colours.line, k ? 1 : 1.6);
    }
    this.step = step;
  }

  drawScale() {
    const { paper } = this;
    const length = this.step * this.scale;
    const [x, y] = [14, paper.height - 14];
    paper.line([[x, y - 5], [x, y], [x + length, y], [x + length, y - 5]], paper.colours.text, 1.5);
    paper.text(`${this.step / 1000} km`, x + 5, y - 6, paper.colours.text, { size: 12 });
    this.labels.keepFree(x, y - 20, x + length, y + 3);
    const north = this.view.turn + Math.PI / 2;
    const [cx, cy] = [paper.width - 24, 28];
    this.labels.keepFree(cx - 22, cy - 26, cx + 22, cy + 24);
    const tip = [cx + 13 * Math.cos(north), cy - 13 * Math.sin(north)];
    paper.line([[cx - 11 * Math.cos(north), cy + 11 * Math.sin(north)], tip], paper.colours.soft, 1.5);
    paper.text("N", cx + 21 * Math.cos(north), cy - 21 * Math.sin(north), paper.colours.soft, { align: "center", base: "middle", size: 11 });
  }

  // Draw, around each side, where an enemy that keeps its course would be hit.
  drawRings(moment, graph, me) {
    const { paper } = this;
    for (const side of [1 - me, me]) {
      const enemy = side !== me;
      if (this.rings === "none" || this.rings === (enemy ? "own" : "enemy")) continue;
      const { x, y } = moment.sides[side];
      const told = graph.sides[side].rings;
      const ring = (name) =>
        told.directions_deg.map((deg, k) => {
          const angle = (deg * Math.PI) / 180;
          return this.place(x + told[name][k] * Math.cos(angle), y + told[name][k] * Math.sin(angle));
        });
      const closed = (points) => [...points, points[0]];
      const colour = paper.side[side];
      const [max, tr, ne] = [ring("r_max_m"), ring("r_tr_m"), ring("r_ne_m")];
      paper.line(closed(max), colour, 1, [2, 6], 0.7);
      paper.area(tr, colour, enemy ? 0.09 : 0.04);
      paper.line(closed(tr), colour, 1.6, [], 0.75);
      paper.area(ne, colour, enemy ? 0.09 : 0.03);
      paper.line(closed(ne), colour, 1, [6, 3], 0.7);
      const highest = (best, p) => (p[1] < best[1] ? p : best);
      const lowest = (best, p) => (p[1] > best[1] ? p : best);
      this.nameRing("R_tr", tr, highest, -4, colour, 4);
      this.nameRing("R_ne", ne, lowest, 12, colour, 5);
      this.nameRing("R_max", max, highest, -4, colour, 5);
    }
  }

  // Put a ring's label where the ring is visible.
  nameRing(name, ring, better, by, colour, rank) {
    const { width, height } = this.paper;
    const seen = ring.filter(([x, y]) => x > 24 && x < width - 24 && y > 16 && y < height - 16);
    if (!seen.length) return;
    const [x, y] = seen.reduce(better);
    this.labels.add(name, x, y + by, colour, { rank });
  }

  // Draw where the user's manoeuvres lead, and where missiles will be if their targets keep their course.
  drawWays(moment, graph, me) {
    const { paper } = this;
    for (const curve of graph.sides[me].curves) {
      const points = [this.place(moment.sides[me].x, moment.sides[me].y)].concat(
        curve.points.slice(2, 31).map(([x, y]) => this.place(x, y)),
      );
      const colour = hitBy(graph.sides[me], curve) === null ? paper.colours.good : paper.colours.bad;
      paper.line(points, colour, 1.3, [4, 4], 0.8);
      if (curve.name === "hold") continue; // the direction of the nose shows it
      const far = points.reduce((best, p) => (Math.hypot(p[0] - points[0][0], p[1] - points[0][1]) > Math.hypot(best[0] - points[0][0], best[1] - points[0][1]) ? p : best));
      this.labels.add(curve.name, far[0], far[1] - 5, colour, { rank: 3 });
    }
    for (const side of [0, 1]) {
      for (const missile of graph.sides[side].incoming) {
        const points = missile.points.map(([x, y]) => this.place(x, y));
        paper.line(points, paper.side[1 - side], 1.4, [1, 5], 0.9);
        if (missile.fates.hold.hit_s !== null && points.length) {
          const end = points[points.length - 1];
          paper.cross(end[0], end[1], paper.side[1 - side], 4);
        }
      }
    }
  }

  drawRange(moment) {
    const { paper } = this;
    const [a, b] = moment.sides;
    const ends = [this.place(a.x, a.y), this.place(b.x, b.y)];
    paper.line(ends, paper.colours.soft, 1, [3, 5], 0.8);
    const away = Math.hypot(a.x - b.x, a.y - b.y);
    const middle = [(ends[0][0] + ends[1][0]) / 2, (ends[0][1] + ends[1][1]) / 2];
    this.labels.add(`${km(away)} km`, middle[0], middle[1] - 6, paper.colours.text, { rank: 1, size: 13, weight: 650, must: true });
  }

  drawTrails(store, moment, side) {
    const { paper } = this;
    const own = moment.sides[side];
    const trail = store.trail(side, moment.tick, TRAIL_S);
    const points = [...trail.map(([x, y]) => this.place(x, y)), this.place(own.x, own.y)];
    const third = Math.ceil(points.length / 3);
    for (let k = 0; k < 3; k++) {
      paper.line(points.slice(k * third, (k + 1) * third + 1), paper.side[side], 2, [], 0.35 + 0.3 * k);
    }
    const every = Math.round(MARK_S / store.tickS);
    paper.ctx.fillStyle = paper.side[side];
    let before = null;
    for (const [x, y, tick] of trail) {
      const mark = Math.floor(tick / every);
      if (before !== null && mark !== before) {
        const [px, py] = this.place(x, y);
        paper.ctx.beginPath();
        paper.ctx.arc(px, py, 2.4, 0, 7);
        paper.ctx.fill();
      }
      before = mark;
    }
    for (const missile of own.missiles) {
      const way = store.missileTrail(side, missile.slot, moment.tick).map(([x, y]) => this.place(x, y));
      paper.line([this.place(missile.x, missile.y), ...way], paper.side[side], 1.2, [], 0.6);
    }
  }

  // Draw a missile as a dart, with a bar of its remaining energy and a flame while its motor burns.
  drawMissiles(moment, side) {
    const { paper } = this;
    for (const missile of moment.sides[side].missiles) {
      const [x, y] = this.place(missile.x, missile.y);
      const { ctx } = paper;
      ctx.save();
      ctx.translate(x, y);
      ctx.rotate(-(missile.heading + this.view.turn));
      if (missile.motor > 0) {
        ctx.fillStyle = paper.colours.warn;
        ctx.beginPath();
        ctx.moveTo(-5, -2.5);
        ctx.lineTo(-13, 0);
        ctx.lineTo(-5, 2.5);
        ctx.fill();
      }
      ctx.fillStyle = paper.side[side];
      ctx.strokeStyle = paper.colours.panel;
      ctx.lineWidth = 1.5;
      ctx.beginPath();
      ctx.moveTo(9, 0);
      ctx.lineTo(-6, -4);
      ctx.lineTo(-6, 4);
      ctx.closePath();
      ctx.stroke();
      ctx.fill();
      ctx.restore();
      const energy = Math.min(Math.max((missile.speed ** 2 - SLOW ** 2) / (FAST ** 2 - SLOW ** 2), 0), 1);
      const [bx, by] = [x + 9, y - 12];
      ctx.fillStyle = paper.colours.panel;
      ctx.fillRect(bx - 1, by - 1, 28, 6);
      ctx.fillStyle = energy > 0.35 ? paper.colours.good : energy > 0.12 ? paper.colours.warn : paper.colours.bad;
      ctx.fillRect(bx, by, Math.max(26 * energy, 1.5), 4);
      ctx.strokeStyle = paper.colours.soft;
      ctx.lineWidth = 1;
      ctx.strokeRect(bx - 0.5, by - 0.5, 27, 5);
      this.labels.keepFree(x - 8, by - 2, bx + 28, y + 6);
      this.labels.add(`${Math.round(missile.speed)} m/s`, bx + 54, by + 6, paper.colours.text, { rank: 2 });
    }
  }

  drawFighter(moment, side, name, ending) {
    const { paper } = this;
    const { ctx } = paper;
    const own = moment.sides[side];
    const [x, y] = this.place(own.x, own.y);
    ctx.save();
    ctx.translate(x, y);
    ctx.rotate(-(own.heading + this.view.turn));
    ctx.fillStyle = paper.side[side];
    ctx.strokeStyle = paper.colours.panel;
    ctx.lineWidth = 2;
    ctx.beginPath();
    // an arrow with swept wings; red has a notch in its nose line, so that sides differ by shape, too
    for (const [px, py] of side === 0 ? [[14, 0], [-9, -9], [-4, 0], [-9, 9]] : [[13, 0], [2, -3], [-8, -10], [-8, 10], [2, 3]]) {
      ctx.lineTo(px, py);
    }
    ctx.closePath();
    ctx.stroke();
    ctx.fill();
    ctx.restore();
    const dead = ending !== null && (ending[side] === "loss" || ending[side] === "draw");
    if (dead) paper.cross(x, y, paper.colours.text, 11);
    this.labels.keepFree(x - 14, y - 13, x + 14, y + 13);
    this.labels.add(name, x, y + 27, paper.side[side], { rank: 0, size: 13, weight: 650, must: true });
    this.labels.add(`${Math.round(own.speed)} m/s`, x, y + 42, paper.colours.text, { rank: 0.5, size: 12, must: true });
  }
}
