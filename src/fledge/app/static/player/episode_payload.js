// Decode one episode (packed by episode_payload.py), and return the state of every actor at any time.
const TYPES = { f4: Float32Array, i2: Int16Array, u1: Uint8Array };

// Return the header of packed bytes, with the arrays that it names in `arrays`.
export function unpackPayload(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 8 || view.getUint32(0, true) !== 0x53495045) throw new Error("the answer is not an episode");
  const length = view.getUint32(4, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const behind = Math.ceil((8 + length) / 8) * 8;
  const arrays = {};
  for (const [name, [type, shape, offset]] of Object.entries(head.arrays)) {
    const size = shape.reduce((product, n) => product * n, 1);
    arrays[name] = { data: new TYPES[type](buffer, behind + offset, size), shape };
  }
  return { head, arrays };
}

function joined(first, second) {
  const both = new first.constructor(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

export class EpisodePayload {
  constructor(buffer) {
    const { head, arrays } = unpackPayload(buffer);
    this.head = head;
    this.arrays = arrays;
    this.number = head.number;
    this.time = arrays.time.data;
    this.next = head.next;
    this.offset = 0; // seconds from the start of the group to the start of this episode
    this.version = 0; // incremented when frames are added
    this.beamParts = new Map();
    this.beamsAsked = new Set();
  }

  get end() {
    return this.time.length ? this.time[this.time.length - 1] : 0;
  }

  get frames() {
    return this.time.length;
  }

  array(name) {
    return this.arrays[name].data;
  }

  // Append the frames from `next` on.
  extend(buffer) {
    const { head, arrays } = unpackPayload(buffer);
    for (const key of ["outcome", "label", "good", "running", "return", "next"]) this.head[key] = head[key];
    this.next = head.next;
    const added = head.frames_here;
    head.actors.forEach((actor, k) => {
      if (this.head.actors[k]) this.head.actors[k].destroyed = actor.destroyed;
      // an actor that was always present may be gone in the new frames, and vice versa
      const ours = this.head.actors[k];
      if (!ours || !added) return;
      for (const [part, named] of [["present", `${k}/present`]]) {
        if (ours[part] && !actor[part]) arrays[named] = { data: new Uint8Array(added).fill(1), shape: [added] };
        if (!ours[part] && actor[part]) {
          this.arrays[named] = { data: new Uint8Array(this.frames).fill(1), shape: [this.frames] };
          ours[part] = named;
        }
      }
    });
    if (!added) return;
    const before = this.frames;
    for (const [name, entry] of Object.entries(arrays)) {
      const known = this.arrays[name];
      if (name.startsWith("stage/") || name === "crowd/sizes" || name === "crowd/round") {
        if (!known || known.data.length < entry.data.length) this.arrays[name] = entry;
      } else if (known && known.shape[0] === before && entry.shape[0] === added) {
        this.arrays[name] = { data: joined(known.data, entry.data), shape: [before + added, ...known.shape.slice(1)] };
      }
    }
    this.time = this.array("time");
    this.version += 1;
  }

  // Return the frame before a time, and the fraction of the way to the next one, 0 to 1.
  at(seconds) {
    const time = this.time;
    let low = 0;
    let high = time.length - 1;
    if (high < 0) return { frame: 0, part: 0, there: false };
    if (seconds <= time[0]) return { frame: 0, part: 0, there: seconds > time[0] - 1e-3 };
    if (seconds >= time[high]) return { frame: high, part: 0, there: true };
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (time[middle] <= seconds) low = middle;
      else high = middle;
    }
    const span = time[high] - time[low];
    return { frame: low, part: span > 0 ? (seconds - time[low]) / span : 0, there: true };
  }

  // Write the position of an actor to out[0..2]; return false if it is not present.
  place(k, { frame, part }, out) {
    const actor = this.head.actors[k];
    const pos = this.array(actor.pos);
    const still = pos.length === 3;
    const a = still ? 0 : 3 * frame;
    if (actor.present && !this.array(actor.present)[still ? 0 : frame]) return false;
    let b = still || part === 0 ? a : a + 3;
    if (actor.present && b !== a && !this.array(actor.present)[frame + 1]) b = a;
    for (let i = 0; i < 3; i += 1) out[i] = pos[a + i] + (pos[b + i] - pos[a + i]) * part;
    return true;
  }

  heading(k, { frame, part }) {
    const actor = this.head.actors[k];
    if (actor.heading) {
      const values = this.array(actor.heading);
      const next = Math.min(frame + 1, values.length - 1);
      let turn = values[next] - values[frame];
      turn -= 2 * Math.PI * Math.round(turn / (2 * Math.PI));
      return values[frame] + turn * part;
    }
    const pos = this.array(actor.pos);
    if (pos.length < 6) return null;
    const a = 3 * Math.min(frame, pos.length / 3 - 2);
    const dx = pos[a + 3] - pos[a];
    const dy = pos[a + 4] - pos[a + 1];
    return dx * dx + dy * dy > 1e-9 ? Math.atan2(dy, dx) : null;
  }

  // Return the energy that an actor has left, 0 to 1; null if it is not recorded.
  energy(k, { frame, part }) {
    const { energy } = this.head.actors[k];
    if (!energy) return null;
    const values = this.array(energy);
    return values[frame] + part * (values[Math.min(frame + 1, values.length - 1)] - values[frame]);
  }

  // Call visit(id, x, y, z, seen) for every moving obstacle, interpolated if it is in both frames.
  crowd({ frame, part }, visit) {
    const crowd = this.head.crowd;
    if (!crowd) return;
    const ids = this.arrays[crowd.ids];
    const pos = this.array(crowd.pos);
    const seen = crowd.seen ? this.array(crowd.seen) : null;
    const width = ids.shape[1];
    const row = frame * width;
    const later = part > 0 && frame + 1 < ids.shape[0] ? row + width : -1;
    for (let k = 0; k < width; k += 1) {
      const id = ids.data[row + k];
      if (id < 0) continue;
      const a = 3 * (row + k);
      let b = a;
      if (later >= 0) {
        let other = ids.data[later + k] === id ? k : -1;
        for (let j = 0; other < 0 && j < width; j += 1) if (ids.data[later + j] === id) other = j;
        if (other >= 0) b = 3 * (later + other);
      }
      visit(
        id,
        pos[a] + (pos[b] - pos[a]) * part,
        pos[a + 1] + (pos[b + 1] - pos[a + 1]) * part,
        pos[a + 2] + (pos[b + 2] - pos[a + 2]) * part,
        seen ? seen[row + k] > 0 : false,
      );
    }
  }

  // Return the beams of a frame, { azimuths, elevations, single, tilt, range, distance }, or null while they are loading.
  beamsAt(frame, size) {
    const part = this.beamParts.get(Math.floor(frame / size));
    if (!part || !part.head.beams) return null;
    const told = part.head.beams;
    const [azimuths, elevations] = [part.arrays[told.azimuths].data, part.arrays[told.elevations].data];
    const count = told.single ? azimuths.length : azimuths.length * elevations.length;
    const row = frame - told.start;
    const distance = part.arrays[told.distance].data;
    if (row < 0 || (row + 1) * count > distance.length) return null;
    return {
      azimuths,
      elevations,
      single: Boolean(told.single), // each ray has its own azimuth and elevation
      tilt: told.tilt === undefined ? [0, 0] : part.arrays[told.tilt].data.subarray(2 * row, 2 * row + 2), // roll, pitch
      range: told.range_m,
      distance: distance.subarray(row * count, (row + 1) * count),
    };
  }
}
