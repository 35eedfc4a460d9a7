// The frames of the match that this page has received, and interpolated states between them.

// A state, as maps and graphs draw it: sides with position (m), heading (rad), speed (m/s), and missiles.
export class Store {
  constructor(welcome) {
    this.tickS = welcome.tick_s;
    this.fields = new Map();
    let at = 0;
    for (const [name, shape] of welcome.layout) {
      const size = shape.reduce((a, b) => a * b, 1);
      this.fields.set(name, { at, shape, size });
      at += size;
    }
    this.width = at;
    this.clear();
  }

  clear() {
    this.first = 0; // tick of rows[0]
    this.rows = [];
  }

  get last() {
    return this.first + this.rows.length - 1;
  }

  // Frames from the server: branch and first tick (uint32), then rows.
  add(buffer) {
    const head = new DataView(buffer, 0, 8);
    const first = head.getUint32(4, true);
    const count = Math.floor((buffer.byteLength - 8) / 4 / this.width);
    if (this.rows.length === 0 || first > this.last + 1 || first < this.first) {
      this.rows = [];
      this.first = first;
    }
    this.rows.length = first - this.first; // what follows is new
    for (let k = 0; k < count; k++) this.rows.push(new Float32Array(buffer, 8 + 4 * k * this.width, this.width));
  }

  // The past was changed: drop the frames after `tick`.
  cut(tick) {
    if (tick < this.first) this.clear();
    else this.rows.length = Math.min(this.rows.length, tick - this.first + 1);
  }

  row(tick) {
    return this.rows[Math.min(Math.max(tick - this.first, 0), this.rows.length - 1)];
  }

  value(row, name, index = 0) {
    const field = this.fields.get(name);
    return field === undefined || index >= field.size ? NaN : row[field.at + index];
  }

  // Return the state at a fractional tick; null before the first frame.
  moment(tick) {
    if (this.rows.length === 0) return null;
    const before = Math.floor(tick);
    const a = this.row(before);
    const b = this.row(before + 1);
    const share = Math.min(Math.max(tick - before, 0), 1);
    const mix = (name, k) => {
      const from = this.value(a, name, k);
      return from + share * (this.value(b, name, k) - from);
    };
    const turn = (name, k) => {
      const from = this.value(a, name, k);
      const by = this.value(b, name, k) - from;
      return from + share * Math.atan2(Math.sin(by), Math.cos(by));
    };
    const slots = this.fields.get("missile_alive")?.shape[1] ?? 0;
    const sides = [0, 1].map((side) => {
      const missiles = [];
      for (let s = 0; s < slots; s++) {
        const k = side * slots + s;
        if (this.value(a, "missile_alive", k) < 0.5) continue;
        const goesOn = this.value(b, "missile_alive", k) > 0.5;
        const at = goesOn ? mix : (name, i) => this.value(a, name, i);
        missiles.push({
          slot: s,
          x: at("missile_pos", 2 * k),
          y: at("missile_pos", 2 * k + 1),
          heading: turn("missile_heading", k),
          speed: at("missile_speed", k),
          motor: this.value(a, "missile_motor_s", k) || 0,
        });
      }
      return {
        x: mix("pos", 2 * side),
        y: mix("pos", 2 * side + 1),
        heading: turn("heading", side),
        speed: mix("speed", side),
        rudder: this.value(a, "rudder", side) || 0,
        left: this.value(a, "missiles_left", side),
        missiles,
      };
    });
    return { tick, time: tick * this.tickS, sides };
  }

  // Return the positions of a side over the last `seconds` before a tick: [x, y] in metres, old to new.
  trail(side, tick, seconds) {
    const field = this.fields.get("pos");
    const end = Math.min(Math.floor(tick), this.last);
    const begin = Math.max(this.first, end - Math.round(seconds / this.tickS));
    const every = Math.max(1, Math.floor((end - begin) / 240));
    const points = [];
    for (let t = begin - (begin % every) + every; t <= end; t += every) {
      const row = this.row(t);
      points.push([row[field.at + 2 * side], row[field.at + 2 * side + 1], t]);
    }
    return points;
  }

  // Return the path of a missile that flies at a tick.
  missileTrail(side, slot, tick) {
    const slots = this.fields.get("missile_alive").shape[1];
    const k = side * slots + slot;
    const points = [];
    for (let t = Math.min(Math.floor(tick), this.last); t >= this.first; t -= 2) {
      const row = this.row(t);
      if (this.value(row, "missile_alive", k) < 0.5) break;
      points.push([this.value(row, "missile_pos", 2 * k), this.value(row, "missile_pos", 2 * k + 1)]);
    }
    return points;
  }
}
