// The space-time graph: time goes up, the line from you to the enemy goes right.
//
// The red area is where a missile that the enemy fires now can be at each time; the blue area is the same for yours. Lines
// are where manoeuvres take each side, as the distance from where the other is now. A line outside of the other's area is
// safe. A cross marks a hit by a shot fired now or by a missile in the air; it is simulated, not read off the areas.
// Below, on the same axis: the range of a shot fired now.
import { Paper, hitBy, niceStep } from "./paper.js";

const SHORT = { hold: "hold", "hard left": "left", "hard right": "right", "turn away": "away" };
const ZONES = [
  ["r_ne_m", "R_ne", 0.75],
  ["r_tr_m", "R_tr", 0.42],
  ["r_max_m", "R_max", 0.16],
];

export class SpaceTimeGraph {
  static title = "Space-time graph";
  static label = "Space-time graph: time goes up, distance to the right";

  constructor(canvas) {
    this.paper = new Paper(canvas);
    this.span = null;
  }

  draw(graph, { me = 0, names = ["you", "enemy"] } = {}) {
    if (!this.paper.begin() || graph === null) return;
    const { paper } = this;
    const away = graph.range_m;
    this.fit(away);
    this.box = { left: 40, right: paper.width - 10, top: 26, bottom: paper.height - 104 };
    this.times = graph.times_s;
    this.drawAxes();
    const ctx = paper.ctx;
    ctx.save();
    ctx.beginPath();
    ctx.rect(this.box.left, this.box.top, this.box.right - this.box.left, this.box.bottom - this.box.top);
    ctx.clip();
    const foe = 1 - me;
    this.drawReach(graph.sides[foe], away, -1, paper.side[foe]);
    this.drawReach(graph.sides[me], 0, 1, paper.side[me]);
    this.drawCurves(graph.sides[foe], 0, 1, paper.side[foe], false);
    this.drawCurves(graph.sides[me], away, -1, paper.side[me], true);
    this.drawMissiles(graph.sides[foe], 0, 1, paper.side[me]);
    this.drawMissiles(graph.sides[me], away, -1, paper.side[foe]);
    ctx.restore();
    const [own, other] = names[0] === "you" ? names : [names[me], names[foe]];
    const whose = (name) => (name === "you" ? "your" : `${name}'s`);
    this.names = { own, other, ownS: whose(own), otherS: whose(other) };
    this.drawLabels(graph, me, away);
    this.drawZones(`${this.names.ownS} shot`, graph.sides[me].shot, 0, 1, away, paper.side[me], this.box.bottom + 40);
    this.drawZones(`${this.names.otherS} shot`, graph.sides[foe].shot, away, -1, 0, paper.side[foe], this.box.bottom + 72);
  }

  // The scale changes slowly, so that lines can be followed by eye.
  fit(away) {
    const side = Math.min(Math.max(0.55 * away, 9000), 17000);
    const to = { low: -side, high: away + side };
    if (this.span === null || Math.abs(this.span.high - to.high) > 30000) this.span = to;
    for (const name of ["low", "high"]) this.span[name] += 0.3 * (to[name] - this.span[name]);
  }

  x(metres) {
    const { left, right } = this.box;
    return left + ((metres - this.span.low) / (this.span.high - this.span.low)) * (right - left);
  }

  y(seconds) {
    const { top, bottom } = this.box;
    return bottom - (seconds / this.times[this.times.length - 1]) * (bottom - top);
  }

  drawAxes() {
    const { paper, box } = this;
    const { line, soft, text } = paper.colours;
    for (const t of [0, 10, 20, 30, 40, 50, 60]) {
      paper.line([[box.left, this.y(t)], [box.right, this.y(t)]], t ? line : soft, 1);
      paper.text(`${t}`, box.left - 6, this.y(t), soft, { size: 11, align: "right", base: "middle" });
    }
    const step = niceStep(this.span.high - this.span.low, 7);
    for (let k = Math.ceil(this.span.low / step); k * step <= this.span.high; k++) {
      paper.line([[this.x(k * step), box.top], [this.x(k * step), box.bottom]], line, 1);
      paper.text(`${(k * step) / 1000}`, this.x(k * step), box.bottom + 15, soft, { size: 11, align: "center" });
    }
    paper.text("s from now", box.left - 26, box.top - 9, text, { size: 11 });
    paper.text("km along the line of sight", (box.left + box.right) / 2, box.bottom + 27, text, { size: 11, align: "center" });
  }

  drawReach(side, from, direction, colour) {
    const edge = [];
    side.reach_m.forEach((metres, k) => {
      if (metres !== null) edge.push([this.x(from + direction * metres), this.y(this.times[k])]);
    });
    if (edge.length < 2) return;
    const last = edge[edge.length - 1];
    this.paper.area([[this.x(from), this.y(0)], ...edge, [this.x(from), last[1]]], colour, 0.16);
    this.paper.line(edge, colour, 2.2);
  }

  // `from` is the other's present position, `direction` the direction of the axis from there.
  drawCurves(side, from, direction, colour, own) {
    for (const curve of side.curves) {
      const hit = hitBy(side, curve);
      const points = curve.distance_m.map((metres, k) => [this.x(from + direction * metres), this.y(this.times[k])]);
      const main = curve.name === "hold" || curve.name === "turn away";
      const width = own ? (main ? 3 : 1.8) : main ? 1.8 : 1;
      const shade = own ? (hit === null ? this.paper.colours.good : this.paper.colours.bad) : colour;
      const end = hit === null ? points.length : Math.min(Math.ceil(hit) + 1, points.length);
      const dash = main ? [] : [5, 3];
      this.paper.line(points.slice(0, end), shade, width, dash, own ? 1 : 0.75);
      if (end < points.length) this.paper.line(points.slice(end - 1), shade, width, [2, 5], 0.35);
      if (hit !== null && hit <= this.times[this.times.length - 1]) {
        const at = points[Math.round(hit)];
        if (own || main) this.paper.cross(at[0], at[1], own ? this.paper.colours.bad : colour, own ? 5 : 3.5);
      }
    }
  }

  drawMissiles(target, from, direction, colour) {
    for (const missile of target.incoming) {
      const points = missile.distance_m.map((metres, k) => [this.x(from + direction * metres), this.y(this.times[k])]);
      this.paper.line(points, colour, 2, [1.5, 4]);
      const { ctx } = this.paper;
      ctx.fillStyle = colour;
      ctx.beginPath();
      ctx.arc(points[0][0], points[0][1] - 3, 4, 0, 7);
      ctx.fill();
      const hit = missile.fates.hold.hit_s;
      if (hit !== null && hit <= this.times[this.times.length - 1]) {
        this.paper.cross(points[Math.min(Math.round(hit), points.length - 1)][0], this.y(hit), colour, 5);
      }
    }
  }

  drawLabels(graph, me, away) {
    const { paper, box } = this;
    const placed = [];
    for (const curve of graph.sides[me].curves) {
      const last = this.times.length - 1;
      const hit = hitBy(graph.sides[me], curve);
      let k = hit === null ? Math.round(0.86 * last) : Math.min(Math.round(hit) + 4, last);
      const inside = (i) => {
        const x = this.x(away - curve.distance_m[i]);
        return x > box.left + 24 && x < box.right - 24;
      };
      while (k > 4 && !inside(k)) k--;
      let [x, y] = [this.x(away - curve.distance_m[k]), this.y(this.times[k])];
      const taken = () => placed.some(([px, py]) => Math.abs(px - x) < 42 && Math.abs(py - y) < 15);
      for (let tries = 0; taken() && tries < 4; tries++) y -= 15;
      placed.push([x, y]);
      const colour = hit === null ? paper.colours.good : paper.colours.bad;
      paper.text(SHORT[curve.name] ?? curve.name, x, y, colour, { size: 12, align: "center", weight: 650, base: "middle" });
    }
    paper.text(this.names.own, this.x(0), box.bottom - 5, paper.side[me], { size: 12, align: "center", weight: 650 });
    paper.text(this.names.other, this.x(away), box.bottom - 5, paper.side[1 - me], { size: 12, align: "center", weight: 650 });
    this.drawReachLabel(`${this.names.otherS} missile`, graph.sides[1 - me].reach_m, away, -1, paper.side[1 - me], 0, placed);
    this.drawReachLabel(`${this.names.ownS} missile`, graph.sides[me].reach_m, 0, 1, paper.side[me], away, placed);
  }

  // Label the part of an area that does not overlap, between its border and the other's position.
  drawReachLabel(text, reach, from, direction, colour, other, placed) {
    const { paper, box } = this;
    for (const share of [0.85, 0.7, 0.95, 0.55]) {
      const k = Math.round(share * (this.times.length - 1));
      if (reach[k] === null) continue;
      const border = Math.min(Math.max(this.x(from + direction * reach[k]), box.left), box.right);
      const inner = this.x(direction * (other - from) > 0 && direction * (from + direction * reach[k] - other) > 0 ? other : from);
      const [x, y] = [(border + inner) / 2, this.y(this.times[k])];
      if (placed.some(([px, py]) => Math.abs(px - x) < 70 && Math.abs(py - y) < 24)) continue;
      if (x < box.left + 46 || x > box.right - 46 || Math.abs(border - inner) < 70) continue;
      placed.push([x, y]);
      paper.text(text, x, y - 2, colour, { size: 11, align: "center" });
      paper.text("can be here", x, y + 12, colour, { size: 11, align: "center" });
      return;
    }
  }

  // Draw the ranges of a shot on the same axis, and its target.
  drawZones(label, shot, from, direction, target, colour, y) {
    const { paper, box } = this;
    const { ctx } = paper;
    const clip = (x) => Math.min(Math.max(x, box.left), box.right);
    paper.line([[box.left, y], [box.right, y]], paper.colours.line, 8);
    let before = 0;
    for (const [name, , alpha] of ZONES) {
      const [a, b] = [clip(this.x(from + direction * before)), clip(this.x(from + direction * shot[name]))];
      ctx.globalAlpha = alpha;
      ctx.fillStyle = colour;
      ctx.fillRect(Math.min(a, b), y - 4, Math.abs(b - a), 8);
      ctx.globalAlpha = 1;
      before = shot[name];
    }
    this.nameZones(shot, from, direction, colour, y);
    const at = clip(this.x(target));
    ctx.fillStyle = paper.colours.text;
    ctx.beginPath();
    ctx.moveTo(at, y - 3);
    ctx.lineTo(at - 5, y - 11);
    ctx.lineTo(at + 5, y - 11);
    ctx.fill();
    const taken = Math.abs(at - (direction > 0 ? box.right : box.left)) < paper.measure(label, 11) + 8; // the target is drawn there
    const right = direction > 0 !== taken;
    paper.text(label, right ? box.right : box.left, y - 8, colour, { size: 11, align: right ? "right" : "left" });
  }

  // Label the zones below their ends; a zone that ends beyond the axis gets its range.
  nameZones(shot, from, direction, colour, y) {
    const { paper, box } = this;
    const named = [];
    for (const [name, short] of [ZONES[1], ZONES[2], ZONES[0]]) {
      const x = this.x(from + direction * shot[name]);
      const beyond = x < box.left || x > box.right;
      const far = `${short} ${Math.round(shot[name] / 1000)} km`;
      const text = !beyond ? short : x > box.right ? `${far} →` : `← ${far}`;
      const half = paper.measure(text, 10) / 2;
      const middle = Math.min(Math.max(x, box.left + half), box.right - half);
      if (named.some(([other, width]) => Math.abs(other - middle) < half + width + 4)) continue;
      named.push([middle, half]);
      if (!beyond) paper.line([[x, y - 6], [x, y + 6]], colour, 2);
      paper.text(text, middle, y + 16, colour, { size: 10, align: "center" });
    }
  }
}

// the player of recordings loads it from here
globalThis.fledgeGraph = SpaceTimeGraph;
